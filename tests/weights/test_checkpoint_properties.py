"""Headers of strangers: whatever they say, a plan with sane figures or one clear error, quickly."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_capacity import plan
from vllm_capacity.answer import Plan
from vllm_capacity.errors import CapacityError
from vllm_capacity.inputs.checkpoint import with_headers
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.inputs.model_config import MAX_DIMENSION
from vllm_capacity.inputs.safetensors_format import DTYPE_BITS, TensorInfo
from vllm_capacity.inputs.safetensors_headers import CheckpointHeaders
from weights.test_checkpoint import CONFIG, checkpoint, quantised

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 64, 255, 512, 10**6, 2**31, MAX_DIMENSION]), max_size=5)
NAMES = st.sampled_from([
    "", ".", "weight", "model", "model.layers.", "model.layers.0", "model.layers.0.", "model.layers.0.weight",
    "model.layers.99999999999999999999.mlp.down_proj.weight", "model.layers.-1.mlp.down_proj.weight", "lm_head",
    "lm_head.bias", "model.layers.0.mlp.experts.0.w1.weight", "x" * 500, "model.layers.0.self_attn.q_proj.g_idx",
    "visual", "mtp.", "model.layers.0.mlp.gate_proj", "é.weight", "a..b", "model.embed_tokens.qweight",
])  # fmt: skip


@st.composite
def broken_headers(draw: st.DrawFn) -> tuple[bool, list[TensorInfo]]:
    """Headers of a small model with one to five tensors removed, renamed, reshaped, retyped or added."""
    packed = draw(st.booleans())
    tensors = quantised("awq") if packed else checkpoint()
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(tensors) - 1))
        shape, dtype = tuple(draw(SHAPES)), draw(st.sampled_from(sorted(DTYPE_BITS)))
        match draw(st.integers(0, 4)):
            case 0 if len(tensors) > 1:
                tensors.pop(at)
            case 1:
                tensors[at] = replace(tensors[at], name=draw(NAMES))
            case 2:
                tensors[at] = replace(tensors[at], shape=shape, n_bytes=prod(shape) * 2)
            case 3:
                tensors[at] = replace(tensors[at], dtype=dtype)
            case _:
                tensors.append(TensorInfo(draw(NAMES), dtype, shape, prod(shape)))
    return packed, tensors


@settings(max_examples=300, deadline=None)
@given(broken_headers(), st.sampled_from([1, 2, 4]))
def test_broken_headers_end_in_a_plan_or_in_one_error(
    headers: tuple[bool, list[TensorInfo]], tp: int
) -> None:
    packed, tensors = headers
    root: dict[str, Any] = {
        **CONFIG,
        **({"quantization_config": AWQ, "torch_dtype": "float16"} if packed else {}),
    }
    model = normalise("tiny", root, source="test")
    start = time.process_time()
    try:
        made = plan(
            with_headers(model, CheckpointHeaders(tuple(tensors), 1, "test")), gpu="L4", vllm_version="0.26.0",
            tensor_parallel_size=tp, suggestions=False,
        )  # fmt: skip
    except CapacityError as error:
        message = str(error)
        assert message
        assert "\n" not in message
        return
    finally:
        assert time.process_time() - start < 1
    if isinstance(made, Plan):
        assert made.parameters > 0
        for term in made.ranks[0].terms:
            if term.component == "weights":
                assert term.n_bytes >= 0, term.name


def test_names_of_real_checkpoints_that_were_garbled_map_or_not_but_never_fail() -> None:
    from vllm_capacity.architecture.registry import build_architecture
    from vllm_capacity.releases import get_release
    from vllm_capacity.weights.checkpoint_names import NameMap

    lines = (
        (Path(__file__).parents[1] / "data" / "safetensors_names" / "names.jsonl").read_text().splitlines()
    )
    patterns = {name for line in lines for name in json.loads(line)["names"]}
    names = NameMap(build_architecture(normalise("tiny", CONFIG, source="test"), get_release("0.26.0")))
    for pattern in patterns:
        for name in (
            pattern,
            pattern.replace("#", "0"),
            pattern[::-1],
            pattern.replace(".", ""),
            pattern * 3,
        ):
            assert names.target(name).kind
