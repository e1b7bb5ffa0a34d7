"""Every point of a context curve is the plan that --max-model-len gives."""

from __future__ import annotations

import pytest
from vllm_capacity import plan
from vllm_capacity.answer import Plan, Status
from vllm_capacity.context_curve import context_curve

CASES = [
    ("meta-llama/Llama-3.1-8B-Instruct", {"gpu": "H100-80GB", "vllm_version": "0.26.0"}),
    ("google/gemma-3-27b-it", {"gpu": "H100-80GB"}),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"gpu": "H200", "tensor_parallel_size": 2, "max_model_len": "32K"}),
]


@pytest.mark.parametrize(("model", "options"), CASES)
def test_points_are_plans(model: str, options: dict[str, object]):
    whole = plan(model, **options)  # type: ignore[arg-type]
    assert isinstance(whole, Plan)
    points = context_curve(whole)
    lengths = [p.max_model_len for p in points]
    assert lengths == sorted(set(lengths))
    assert {1024, whole.kv_cache.max_model_len, whole.engine.derived_max_model_len} <= set(lengths)
    for point in points:
        alone = plan(model, **{**options, "max_model_len": point.max_model_len}, suggestions=False)  # type: ignore[arg-type]
        assert isinstance(alone, Plan)
        assert (point.status, point.kv_cache_size_tokens, point.max_concurrency) == (
            alone.verdict.status,
            alone.kv_cache.size_tokens,
            alone.kv_cache.max_concurrency,
        )


def test_the_curve_changes_its_verdict_where_the_plan_says():
    whole = plan("google/gemma-3-27b-it", gpu="H100-80GB")
    assert isinstance(whole, Plan)
    fits = whole.verdict.max_model_len_that_fits
    assert fits is not None
    points = {p.max_model_len: p for p in context_curve(whole)}
    assert points[fits].max_concurrency >= 1
    assert all(p.status is Status.DOES_NOT_START for length, p in points.items() if length > fits)
    assert all(p.status is Status.STARTS for length, p in points.items() if length < fits)


def test_a_model_without_a_cache_has_no_curve():
    found = plan("BAAI/bge-m3", gpu="L4")
    assert isinstance(found, Plan)
    assert context_curve(found) == ()


def test_used_memory_and_calibration_count():
    options = {"gpu": "H100-80GB", "max_model_len": "8K", "used_memory": "2GiB"}
    whole = plan("meta-llama/Llama-3.1-8B-Instruct", **options)  # type: ignore[arg-type]
    assert isinstance(whole, Plan)
    other = plan("meta-llama/Llama-3.1-8B-Instruct", **{**options, "max_model_len": "16K"})  # type: ignore[arg-type]
    assert isinstance(other, Plan)
    (point,) = [p for p in context_curve(whole) if p.max_model_len == 16384]
    assert point.status is other.verdict.status
