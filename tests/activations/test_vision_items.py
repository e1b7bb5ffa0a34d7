"""Items of the encoder's profile run: counts and budgets that vLLM printed, sizes from the configs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from recorded import run_named
from vllm_capacity.activations.encoder import encoder_batch, encoder_budget, encoder_phases
from vllm_capacity.activations.vision import largest_item
from vllm_capacity.context import RankContext
from vllm_capacity.inputs.models import load_model
from vllm_capacity.releases import get_release

GEMMA = "h100/google-gemma-3-4b-it--h100-80gb--tp1pp1dp1--8192"
MISTRAL = "h100/mistralai-mistral-small---h100-80gb--tp1pp1dp1--8192"
LLAMA4 = "h100/meta-llama-llama-4-scout--h100-80gb--tp4pp1dp1--8192"


def context(
    name: str = GEMMA, *, model: str | None = None, others: dict[str, Any] | None = None, **engine: Any
) -> RankContext:
    ctx = run_named(name).context()
    if model is not None:
        ctx = replace(ctx, config=load_model(model, offline=True))
    args = replace(ctx.engine.args, others=others or {})
    return replace(ctx, engine=replace(ctx.engine, args=args, **engine))


@pytest.mark.parametrize(
    ("name", "items", "tokens"),
    [(GEMMA, 32, 256), (MISTRAL, 2, 55 * 56), (LLAMA4, 3, 17 * 144)],
)
def test_items_that_fill_a_batch_of_8192_tokens(name: str, items: int, tokens: int) -> None:
    """The recorded activation peaks need exactly these (see test_activation_peak)."""
    batch = encoder_batch(context(name))
    assert batch is not None
    assert (batch.count, batch.item.tokens) == (items, tokens)


def test_a_video_that_fills_the_context_is_the_largest_item_of_qwen_vl() -> None:
    """Qwen2.5-Omni-7B printed an encoder cache budget of 32,768 tokens at max_model_len 32,768."""
    ctx = context(model="Qwen/Qwen2.5-VL-7B-Instruct", max_model_len=32768)
    assert encoder_budget(ctx) == 32768


def test_a_smaller_image_limit_shrinks_the_item() -> None:
    others = {"limit_mm_per_prompt": {"video": 0}, "mm_processor_kwargs": {"max_pixels": 1024 * 28 * 28}}
    item = largest_item(context(model="Qwen/Qwen2.5-VL-7B-Instruct", others=others))
    assert item is not None
    assert (item.modality, item.tokens, item.patches) == ("image", 1024, 4096)


def test_qwen3_vl_budget_is_the_one_a_start_printed() -> None:
    """Qwen3-VL-30B-A3B-Instruct printed a budget of 153,600 tokens for one video."""
    ctx = context(model="Qwen/Qwen3-VL-8B-Instruct", max_model_len=65536)
    assert encoder_budget(ctx) == 153_600


@pytest.mark.parametrize(
    "others",
    [{"limit_mm_per_prompt": {"image": 0}}, {"language_model_only": True}, {"skip_mm_profiling": True}],
)
def test_nothing_is_encoded_where_the_flags_say_so(others: dict[str, Any]) -> None:
    assert encoder_phases(context(others=others), ()) == ([], ())


@pytest.mark.parametrize(("release", "profiles"), [("0.26.0", False), ("0.27.0", True)])
def test_runner_v2_profiles_the_encoder_from_0_27_on(release: str, profiles: bool) -> None:
    ctx = replace(context(model_runner="V2"), release=get_release(release))
    assert bool(encoder_phases(ctx, ())[0]) is profiles


def test_whole_heads_on_every_rank_take_more_than_divided_ones() -> None:
    divided = encoder_phases(context(LLAMA4), ())[0][0]
    whole = encoder_phases(context(LLAMA4, others={"mm_encoder_tp_mode": "data"}), ())[0][0]
    assert whole.n_bytes > divided.n_bytes
