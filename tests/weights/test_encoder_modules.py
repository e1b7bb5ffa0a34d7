"""Which ranks hold a multimodal encoder, and how it is divided.

By `_mark_tower_model` (interfaces.py, 0.26.0 and 0.33.0) and `--mm-encoder-tp-mode` (models/vision.py). Byte equality of
towers on each stage and tp rank is held by tests/architecture/test_built_by_vllm.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from vllm_capacity import plan
from vllm_capacity.answer import Plan, RankPlan, RefusedPlan
from vllm_capacity.ledger import Component


def ranks(model: str, **flags: Any) -> tuple[RankPlan, ...]:
    made = plan(model, gpu="H200", suggestions=False, **flags)
    assert isinstance(made, Plan), made.verdict.message
    return made.ranks


def weights(rank: RankPlan, name: str | None = None) -> int:
    return sum(
        term.n_bytes
        for term in rank.terms
        if term.component is Component.WEIGHTS and (name is None or name in term.name)
    )


def encoder(rank: RankPlan) -> int:
    return weights(rank, "encoder")


QWEN_VL, GEMMA = "Qwen/Qwen2.5-VL-7B-Instruct", "google/gemma-3-27b-it"


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0"])
@pytest.mark.parametrize(
    "flags",
    [{"language_model_only": True}, {"limit_mm_per_prompt": {"image": 0, "video": 0}}],
    ids=["language-model-only", "limits of 0"],
)
def test_a_tower_that_no_modality_needs_is_not_built(version: str, flags: dict[str, Any]) -> None:
    (whole,) = ranks(QWEN_VL, vllm_version=version)
    (without,) = ranks(QWEN_VL, vllm_version=version, **flags)
    assert encoder(whole) > 1 << 30
    assert encoder(without) == 0
    assert weights(whole) - weights(without) >= encoder(whole)


def test_one_modality_left_keeps_the_tower() -> None:
    (whole,) = ranks(QWEN_VL)
    (images,) = ranks(QWEN_VL, limit_mm_per_prompt={"video": 0})
    assert encoder(images) == encoder(whole)


def test_later_stages_have_no_tower_since_0_33() -> None:
    flags: dict[str, Any] = {"pipeline_parallel_size": 2, "tensor_parallel_size": 1}
    first, last = ranks(QWEN_VL, vllm_version="0.26.0", **flags)
    assert encoder(first) == encoder(last) > 0
    first, last = ranks(QWEN_VL, vllm_version="0.33.0", **flags)
    assert encoder(first) > 0 == encoder(last)


def test_data_mode_holds_the_tower_whole_on_every_rank() -> None:
    (one,) = ranks(QWEN_VL)
    divided = ranks(QWEN_VL, tensor_parallel_size=4)[0]
    whole = ranks(QWEN_VL, tensor_parallel_size=4, mm_encoder_tp_mode="data")[0]
    assert encoder(whole) == encoder(one)
    assert encoder(divided) < encoder(one) / 3


def test_a_class_without_data_mode_keeps_its_tower_divided() -> None:
    # "This model does not support `--mm-encoder-tp-mode data`. Falling back ..." (config/model.py:703-710, 0.26.0)
    divided = ranks(GEMMA, tensor_parallel_size=2)[0]
    asked = ranks(GEMMA, tensor_parallel_size=2, mm_encoder_tp_mode="data")[0]
    assert encoder(asked) == encoder(divided) > 0


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0"])
def test_a_towers_heads_refuse_a_layout_unless_it_is_whole(version: str) -> None:
    """16 heads in Qwen2.5-VL's tower, 64 in the 72B text model: `dist_utils.divide(num_heads, tp_size)`,
    qwen2_5_vl.py:366 (0.26.0). Dry-runs said the same, also that leaving the tower out does not help.
    """
    flags: dict[str, Any] = {
        "tensor_parallel_size": 32, "gpu": "H200", "suggestions": False, "vllm_version": version,
    }  # fmt: skip
    for more in ({}, {"language_model_only": True}, {"limit_mm_per_prompt": {"image": 0, "video": 0}}):
        refused = plan("Qwen/Qwen2.5-VL-72B-Instruct", **flags, **more)
        assert isinstance(refused, RefusedPlan), more
        assert "16 is not divisible by 32" in refused.verdict.message
    assert isinstance(plan("Qwen/Qwen2.5-VL-72B-Instruct", **flags, mm_encoder_tp_mode="data"), Plan)


def test_moonvit_is_whole_where_tp_does_not_divide_its_heads() -> None:
    # is_vit_use_data_parallel(num_heads) of kimi_k25_vit.py; 16 heads, 64 in the text model
    divided = ranks("moonshotai/Kimi-K2.5", tensor_parallel_size=16)[0]
    whole = ranks("moonshotai/Kimi-K2.5", tensor_parallel_size=32)[0]
    asked = ranks("moonshotai/Kimi-K2.5", tensor_parallel_size=16, mm_encoder_tp_mode="data")[0]
    assert encoder(whole) == encoder(asked) > encoder(divided)
