"""GPTQ on ExLlama kernels (vllm/model_executor/layers/quantization/gptq.py, 0.21.0): shapes worked out from its code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.releases import get_release
from vllm_capacity.weights.quantisation.base import QuantContext
from vllm_capacity.weights.quantisation.exllama import ExLlama
from vllm_capacity.weights.sharding import LocalLinear

CONTEXT = QuantContext(
    dtype="float16", device=find_device("A100-80GB"), release=get_release("0.21.0"), parallel=ParallelConfig()
)
WHOLE = LocalLinear("mlp.down_proj", 11008, (4096,), 0, None, True, 11008, 4096, 1)
HALF = replace(WHOLE, inputs=5504, tp=2)


def shapes(bits: int, group: int, act_order: bool, layer: LocalLinear = WHOLE) -> dict[str, tuple[int, ...]]:
    stored = ExLlama(CONTEXT, bits, group, act_order).linear(layer).stored
    return {tensor.name: tensor.shape for tensor in stored}


def test_three_bits_pack_32_weights_into_3_words():
    assert shapes(3, 128, False) == {
        "qweight": (11008 * 3 // 32, 4096),
        "qzeros": (86, 4096 * 3 // 32),
        "scales": (86, 4096),
    }


def test_act_order_keeps_its_order_and_whole_scales_on_a_divided_input():
    assert shapes(4, 128, True, HALF) == {
        "qweight": (5504 // 8, 4096),
        "qzeros": (86, 512),
        "scales": (86, 4096),
        "g_idx": (5504,),
    }
    assert shapes(4, 128, False, HALF)["scales"] == (43, 4096)


def test_one_group_is_one_row_of_scales_on_every_rank():
    assert shapes(4, -1, False, HALF)["scales"] == (1, 4096)


@pytest.mark.parametrize(
    ("context", "bits", "error", "words"),
    [
        (CONTEXT, 5, RefusedError, "2/3/4/8-bit"),
        (replace(CONTEXT, dtype="bfloat16"), 3, RefusedError, "torch.bfloat16 is not supported"),
    ],
)
def test_what_vllm_refuses_is_refused(context: QuantContext, bits: int, error: Any, words: str):
    with pytest.raises(error, match=words):
        ExLlama(context, bits, 128, False)


def test_rows_that_do_not_fill_words_are_refused():
    with pytest.raises(RefusedError, match="not aligned") as refused:
        ExLlama(CONTEXT, 3, 128, False).linear(replace(WHOLE, outputs=(4080,)))
    assert refused.value.reason is Reason.INVALID_LAYOUT


def test_experts_are_no_guess():
    with pytest.raises(InputError, match="experts"):
        ExLlama(CONTEXT, 4, 128, False).experts(type("E", (), {"name": "experts"})())  # type: ignore[arg-type]
