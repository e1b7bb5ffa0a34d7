"""Arcee against what vLLM 0.26.0's own classes build of docs/arcee.example.json (`vllm-capacity dry-run`, H200, torch 2.11.0)."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_capacity import Plan, plan

CONFIG = Path(__file__).parents[2] / "docs" / "arcee.example.json"


@pytest.mark.parametrize(
    ("tp", "tensor_bytes", "page_bytes"), [(1, 9_259_955_776, 32_768), (2, 4_640_650_816, 16_384)]
)
def test_weights_and_pages_are_vllms(tp: int, tensor_bytes: int, page_bytes: int) -> None:
    answer = plan(str(CONFIG), gpu="H200", vllm_version="0.26.0", tensor_parallel_size=tp, suggestions=False)
    assert isinstance(answer, Plan)
    weights = [term for term in answer.tightest.terms if term.component == "weights"]
    assert sum(term.n_bytes for term in weights if term.name != "allocator_rounding") == tensor_bytes
    assert [group.page_bytes for group in answer.kv_cache.groups] == [36 * page_bytes]
    assert answer.parameters == 4_619_184_640


@pytest.mark.parametrize("release", ["0.19.0", "0.31.0", "0.32.0", "0.33.0"])
def test_the_parameters_are_the_same_under_vllms_class_and_the_transformers_backend(release: str) -> None:
    answer = plan(str(CONFIG), gpu="H200", vllm_version=release, suggestions=False)
    assert isinstance(answer, Plan)
    assert answer.parameters == 4_619_184_640
