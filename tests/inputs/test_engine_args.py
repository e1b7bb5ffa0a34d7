"""Flag values: what vLLM's parser accepts, in types, with one-line errors that name the flag."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.engine_args import merge_engine_args, parse_engine_args, read_json
from vllm_capacity.inputs.flags import flags_for
from vllm_capacity.releases import get_release

R26 = get_release("0.26.0")


def error_of(values: dict[str, Any]) -> str:
    with pytest.raises(InputError) as error:
        parse_engine_args(values, release=R26)
    return str(error.value)


def test_nothing_given_is_the_default() -> None:
    assert parse_engine_args({}, release=R26) == EngineArgs()
    assert parse_engine_args({"max_model_len": None, "quantization": "None"}, release=R26) == EngineArgs()


def test_text_and_python_values_are_the_same() -> None:
    text = {
        "tensor_parallel_size": "4",
        "max_model_len": "32K",
        "gpu_memory_utilization": "0.9",
        "enforce_eager": "true",
        "compilation_config": '{"mode": 3}',
        "cudagraph_capture_sizes": ["1", "2"],
        "kv_cache_memory_bytes": "12G",
    }
    python = {
        "tensor_parallel_size": 4,
        "max_model_len": 32768,
        "gpu_memory_utilization": 0.9,
        "enforce_eager": True,
        "compilation_config": {"mode": 3},
        "cudagraph_capture_sizes": (1, 2),
        "kv_cache_memory_bytes": 12 << 30,
    }
    assert parse_engine_args(text, release=R26) == parse_engine_args(python, release=R26)


@pytest.mark.parametrize(
    ("text", "value"),
    [("auto", -1), ("-1", -1), ("32k", 32000), ("32K", 32768), ("25.6k", 25600), ("1_000", 1000)],
)
def test_model_length(text: str, value: int) -> None:
    """human_readable_int_or_auto, engine/arg_utils.py (0.26.0)."""
    assert parse_engine_args({"max_model_len": text}, release=R26).max_model_len == value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_model_len": "25.6K"}, "--max-model-len: '25.6K': decimals are only allowed"),
        ({"max_model_len": 0}, "--max-model-len must be at least 1, or auto"),
        ({"tensor_parallel_size": 0}, "--tensor-parallel-size must be at least 1"),
        ({"tensor_parallel_size": "2.5"}, "--tensor-parallel-size must be an integer"),
        ({"max_num_seqs": True}, "--max-num-seqs must be an integer"),
        ({"max_num_seqs": "9" * 40}, "more than any memory holds"),
        ({"gpu_memory_utilization": "95%"}, "--gpu-memory-utilization must be a number"),
        ({"gpu_memory_utilization": "nan"}, "--gpu-memory-utilization must be a number"),
        ({"gpu_memory_utilization": 0}, "--gpu-memory-utilization must be above 0 and at most 1"),
        ({"enforce_eager": "maybe"}, "--enforce-eager is on or off"),
        ({"optimization_level": 4}, "--optimization-level must be 0, 1, 2 or 3"),
        ({"hf_overrides": "[]"}, "--hf-overrides must be a JSON object"),
        ({"compilation_config": "{" * 70}, "--compilation-config must be JSON"),
        ({"cudagraph_capture_sizes": ["a"]}, "--cudagraph-capture-sizes must be an integer"),
        ({"performance_mode": "fast"}, "--performance-mode"),
        ({"usage": "batch"}, "--usage must be server"),
        ({"max_model_length": 1}, "did you mean max_model_len?"),
        ({"environment": "A=1"}, "environment must map names to values"),
    ],
)
def test_errors_name_the_flag(values: dict[str, Any], message: str) -> None:
    assert message in error_of(values)


def test_json_bounds() -> None:
    assert read_json('{"a": 32K, "b": "32K"}') == {"a": 32768, "b": "32K"}
    for text in ("[" * 100 + "]" * 100, "NaN", '{"a": Infinity}', " " * (1 << 21)):
        with pytest.raises(ValueError, match=r"deep|number|characters"):
            read_json(text)


def test_flags_that_are_not_modelled_need_leave() -> None:
    flag = next(f for f in flags_for(R26).values() if f.effect == "unmodelled" and f.kind == "bool")
    assert "may change memory in a way that is not modelled" in error_of({flag.name: True})
    assert parse_engine_args({flag.name: False}, release=R26).others == {flag.name: False}
    allowed = parse_engine_args({flag.name: True, "allow_unmodelled": True}, release=R26)
    assert allowed.others == {flag.name: True, "allow_unmodelled": True}


def test_later_values_override_a_pasted_line() -> None:
    base = EngineArgs(
        tensor_parallel_size=4, max_num_seqs=8, environment={"A": "1", "B": "1"}, others={"port": 1}
    )
    merged = merge_engine_args(
        base, {"max_num_seqs": "16", "environment": {"B": "2"}, "usage": "offline"}, release=R26
    )
    assert (merged.tensor_parallel_size, merged.max_num_seqs, merged.usage) == (4, 16, "offline")
    assert (merged.environment, merged.others) == ({"A": "1", "B": "2"}, {"port": 1})
