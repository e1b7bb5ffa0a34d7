from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from vllm_capacity.validate.compare import ExitCode, accounting_residual, compare, table
from vllm_capacity.validate.debug import growth, verdict
from vllm_capacity.validate.record import Profiling, RankRecord, RunRecord, RunRequest, RunStatus
from vllm_capacity.validate.runner import RunnerSettings, run


def plan_for(record: RunRecord, *, kv_factor: float = 1.0, status: str = "starts") -> dict[str, Any]:
    """A plan in the published shape that predicts what was measured, its KV cache times a factor."""
    ranks = []
    for rank in record.ranks:
        assert rank.profiling is not None
        result = rank.profiling.result or {}
        ranks.append(
            {
                "rank": rank.rank,
                "tp_rank": rank.tp_rank,
                "pp_rank": rank.pp_rank,
                "dp_rank": 0,
                "requested_bytes": rank.requested_memory,
                "weights_bytes": rank.model_memory_usage,
                "activation_peak_bytes": result["torch_peak_increase"],
                "non_torch_bytes": result["non_torch_increase"],
                "graph_estimate_bytes": 0,
                "graph_applied_bytes": 0,
                "graph_actual_bytes": 0,
                "available_kv_bytes": int(rank.profiling.returned * kv_factor),
                "device_used_bytes": 1,
                "terms": [
                    {
                        "name": "cuda_context",
                        "component": "cuda_context",
                        "allocator": "cuda",
                        "lifetime": "before_snapshot",
                        "bytes": 500_000_000,
                    }
                ],
            }
        )
    return {
        "gpu": {"name": "H200", "compute_capability": "9.0", "cuda_total_bytes": 150_109_880_320},
        "engine": {"tensor_parallel_size": len(ranks), "model_runner": "V2"},
        "ranks": ranks,
        "kv_cache": {
            "size_tokens": int((record.printed.kv_cache_size_tokens or 0) * kv_factor),
            "num_blocks": 57_537,
        },
        "verdict": {"status": status, "reason": None},
    }


@pytest.fixture
def recorded(make_request: Callable[..., RunRequest], settings: RunnerSettings) -> RunRecord:
    return run(make_request(), settings)


def test_rows_hold_predicted_measured_and_error_with_kv_tokens_on_top(recorded: RunRecord) -> None:
    found = compare(plan_for(recorded, kv_factor=0.99), recorded)
    assert found.rows[0].name == "kv_cache_size_tokens"
    assert found.rows[0].measured == 920_592
    assert found.rows[0].relative == pytest.approx(-0.01, abs=1e-4)
    weights = found.row("weights", 0)
    assert weights is not None
    assert (weights.predicted, weights.measured, weights.error) == (16_110_920_192, 16_110_920_192, 0)
    context = found.row("cuda_context", 0)
    assert context is not None
    assert context.predicted == 500_000_000
    assert {"torch_peak_increase", "non_torch_increase", "non_kv_cache_memory"} <= {
        r.engine_name for r in found.rows
    }
    text = table(found)
    assert text.index("KV cache tokens") < text.index("weights")
    assert json.loads(json.dumps(found.as_json()))["rows"][0]["relative_error"] == pytest.approx(
        -0.01, abs=1e-4
    )


@pytest.mark.parametrize(
    ("factor", "tolerance", "code"),
    [(1.0, 3, 0), (1.029, 3, 0), (0.971, 3, 0), (1.031, 3, 1), (1.01, 0.5, 1)],
)
def test_the_exit_code_is_the_kv_caches_error(
    recorded: RunRecord, factor: float, tolerance: float, code: int
) -> None:
    assert compare(plan_for(recorded, kv_factor=factor), recorded, tolerance).exit_code == code


@pytest.mark.parametrize(
    ("status", "predicted", "code"),
    [
        (RunStatus.REFUSED, "does_not_start", ExitCode.WITHIN),
        (RunStatus.OOM, "does_not_start", ExitCode.WITHIN),
        (RunStatus.REFUSED, "too_close", ExitCode.WITHIN),
        (RunStatus.REFUSED, "starts", ExitCode.OUTSIDE),
        (RunStatus.OOM, "starts", ExitCode.OUTSIDE),
        (RunStatus.FAILED, "starts", ExitCode.NOT_MEASURABLE),
        (RunStatus.TIMEOUT, "does_not_start", ExitCode.NOT_MEASURABLE),
    ],
)
def test_verdicts_are_judged_too(status: RunStatus, predicted: str, code: ExitCode) -> None:
    record = RunRecord(tool_version="0", request=RunRequest(name="r", model="m"), status=status)
    assert compare({"verdict": {"status": predicted}}, record).exit_code is code


def test_a_run_that_started_against_the_plan_is_a_wrong_verdict(recorded: RunRecord) -> None:
    assert compare(plan_for(recorded, status="does_not_start"), recorded).exit_code is ExitCode.OUTSIDE


def test_without_a_plan_nothing_is_compared(recorded: RunRecord) -> None:
    found = compare(None, recorded)
    assert found.exit_code is ExitCode.NOT_MEASURABLE
    assert found.rows[0].predicted is None


def test_the_accounting_of_free_memory_before_minus_after_is_rebuilt_to_the_byte() -> None:
    """Figures made up; the formula is vLLM 0.33.0's (utils/mem_utils.py: memory_profiling)."""
    snapshot = {"free_memory": 149_557_477_376, "torch_peak": 0, "torch_allocated": 0}
    after = {"free_memory": 130_000_000_000, "torch_peak": 18_500_000_000, "torch_allocated": 17_000_000_000}
    consumed, headroom = 19_557_477_376, 1_500_000_000
    available = 138_101_089_895 - consumed - headroom - 300
    result = {"total_consumed": consumed, "before_create": snapshot, "after_profile": after}
    profiling = Profiling(
        requested_memory=138_101_089_895,
        graph_estimate=300,
        graph_applied=300,
        available_kv_cache_memory_bytes=available,
        returned=available,
        result=result,
    )
    assert accounting_residual(RankRecord(rank=0, profiling=profiling)) == 0
    wrong = profiling.model_copy(update={"graph_applied": 0})
    assert accounting_residual(RankRecord(rank=0, profiling=wrong)) == 300


def test_an_explicit_kv_cache_size_leaves_no_accounting_to_check() -> None:
    profiling = Profiling(
        requested_memory=1,
        graph_estimate=0,
        graph_applied=0,
        available_kv_cache_memory_bytes=None,
        returned=5,
        result=None,
    )
    assert accounting_residual(RankRecord(rank=0, profiling=profiling)) is None


def test_what_grew_until_memory_ran_out_is_named(
    make_request: Callable[..., RunRequest], settings: RunnerSettings
) -> None:
    record = run(make_request(die="capture_model:raise:CUDA out of memory."), settings)
    assert dict(growth(record.ranks[0]))["weights"] > 16e9
    assert "CUDA graphs" in verdict(record)[-1]
    assert "oom" in verdict(record)[-1]
