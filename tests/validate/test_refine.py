from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.calibration import Calibration, Measurement
from vllm_capacity.errors import InputError
from vllm_capacity.validate import refine
from vllm_capacity.validate.fit import Equation, solve
from vllm_capacity.validate.record import Profiling, RankRecord, RunRecord, RunRequest, RunStatus

TOTAL = 150_109_880_320
TRUE = {
    "cuda_context": 552_402_944,
    "nccl": 480_000_000,
    "kernel_modules": 75_000_000,
    "sampler_modules": 166_172_480,
}
BASE = {
    "cuda_context": 500_000_000,
    "nccl": 400_000_000,
    "kernel_modules": 90_000_000,
    "sampler_modules": 100_000_000,
    "l2_cache": 62_914_560,
}


def calibration(values: Mapping[str, int]) -> Calibration:
    return Calibration(
        tuple(Measurement(c, c, n, n, n, "", (), {}, "built-in") for c, n in values.items()), "built-in"
    )


def run_of(
    name: str,
    model: str,
    *,
    tp: int = 1,
    pp_rank_is_last: bool = True,
    extra: int = 0,
    values: Mapping[str, int] = TRUE,
) -> RunRecord:
    """A run whose figures follow from the given constants: the truth that a refit has to find."""
    context = values["cuda_context"]
    baseline = context + (2 * values["nccl"] if tp > 1 else 0)
    non_torch = values["kernel_modules"] + (values["sampler_modules"] if pp_rank_is_last else 0) + extra
    profiling = Profiling(
        requested_memory=1,
        graph_estimate=0,
        graph_applied=0,
        available_kv_cache_memory_bytes=1,
        returned=1,
        result={"non_torch_increase": non_torch, "torch_peak_increase": 0},
    )
    rank = RankRecord(
        rank=0,
        tp_rank=0,
        pp_rank=0,
        profiling=profiling,
        stages={"context": {"cuda_memory": context}, "baseline": {"cuda_memory": baseline}},
    )
    return RunRecord(
        tool_version="0",
        status=RunStatus.OK,
        ranks=[rank],
        versions={"torch": "2.11.0+cu130", "vllm": "0.26.0"},
        request=RunRequest(
            name=name,
            model=model,
            flags={"tensor_parallel_size": tp},
            note="" if pp_rank_is_last else "first",
        ),
    )


def predict(record: RunRecord, known: Calibration) -> dict[str, Any]:
    """A plan that is linear in the calibration, as the real one is."""
    tp = record.request.flags["tensor_parallel_size"]
    found = {
        m: known.get(m, sm=90, tp=tp, world=tp, torch="2.11.0", device="H200").n_bytes
        for m in BASE
        if m != "l2_cache"
    }
    sampler = 0 if record.request.note == "first" else found["sampler_modules"]
    terms = [
        {
            "name": "cuda_context",
            "component": "cuda_context",
            "lifetime": "before_snapshot",
            "allocator": "cuda",
            "bytes": found["cuda_context"],
        }
    ]
    if tp > 1:
        terms.append(
            {
                "name": "nccl",
                "component": "nccl",
                "lifetime": "before_snapshot",
                "allocator": "cuda",
                "bytes": 2 * found["nccl"],
            }
        )
    return {
        "gpu": {"name": "H200", "compute_capability": "9.0", "cuda_total_bytes": TOTAL},
        "engine": {"tensor_parallel_size": tp, "model_runner": "V2"},
        "ranks": [
            {
                "rank": 0,
                "tp_rank": 0,
                "pp_rank": 0,
                "dp_rank": 0,
                "terms": terms,
                "non_torch_bytes": found["kernel_modules"] + sampler,
            }
        ],
    }


def runs() -> list[RunRecord]:
    return [
        *[run_of(f"a{i}", f"model{i}") for i in range(4)],
        *[run_of(f"b{i}", f"model{i}", tp=2) for i in range(3)],
        *[run_of(f"c{i}", f"model{i}", pp_rank_is_last=False) for i in range(3)],
    ]


def by_component(found: refine.Refinement) -> dict[str, Measurement]:
    return {m.component: m for m in found.entries}


def test_a_refit_finds_the_constants_that_made_the_runs() -> None:
    entries = by_component(refine.refine(runs(), predict, calibration(BASE)))
    for component, n_bytes in TRUE.items():
        assert entries[component].n_bytes == pytest.approx(n_bytes, rel=2e-3), component
    assert entries["cuda_context"].when == {"sm": [90], "torch": "2.11"}
    assert entries["nccl"].when == {"sm": [90], "torch": "2.11", "world": [2]}
    assert "l2_cache" not in entries


def test_one_odd_run_does_not_move_the_fit() -> None:
    odd = run_of("odd", "odd", extra=900_000_000)
    entries = by_component(refine.refine([*runs(), odd], predict, calibration(BASE)))
    assert entries["sampler_modules"].n_bytes == pytest.approx(TRUE["sampler_modules"], rel=0.02)


def test_errors_on_models_left_out_are_reported() -> None:
    found = refine.refine(runs(), predict, calibration(BASE))
    assert found.left_out_mean is not None
    assert found.left_out_mean < 2_000_000
    assert set(found.by_model) == {f"model{i}" for i in range(4)}
    noisy = [
        run_of(f"n{i}", f"n{i}", extra=e) for i, e in enumerate((0, 40_000_000, 80_000_000, 120_000_000))
    ]
    worse = refine.refine(noisy, predict, calibration(BASE))
    assert worse.left_out_mean is not None
    assert worse.left_out_mean > found.left_out_mean
    assert (worse.left_out_worst or 0) >= worse.left_out_mean


def test_too_few_runs_are_refused_entry_by_entry_and_altogether() -> None:
    with pytest.raises(InputError, match="at least 3"):
        refine.refine(runs()[:2], predict, calibration(BASE))
    few_tp = [r for r in runs() if not r.name.startswith("b")] + [run_of("b0", "model0", tp=2)]
    found = refine.refine(few_tp, predict, calibration(BASE))
    assert "nccl" not in by_component(found)
    assert found.refused == {"nccl-sm90-torch2.11-world2": "1 runs, 3 needed"}


def test_exact_terms_are_never_touched() -> None:
    found = refine.refine(runs(), predict, calibration(BASE))
    assert {m.component for m in found.entries} <= {*TRUE, "unexplained"}


def test_what_is_left_unexplained_is_a_line_of_its_own_and_bounded() -> None:
    def without_modules(record: RunRecord, known: Calibration) -> dict[str, Any]:
        plan = predict(record, known)
        plan["ranks"][0]["non_torch_bytes"] = 0
        return plan

    big = [run_of(f"x{i}", f"x{i}", extra=5_000_000_000) for i in range(4)]
    entries = by_component(refine.refine(big, without_modules, calibration(BASE)))
    assert entries["unexplained"].n_bytes == int(TOTAL * 0.005)


def test_the_file_is_one_that_plans_read(tmp_path: Path) -> None:
    from vllm_capacity.calibration import _read

    found = refine.refine(runs(), predict, calibration(BASE))
    path = tmp_path / "calibration.yaml"
    refine.write_file(path, refine.to_yaml(found))
    assert {(m.name, m.n_bytes, m.low, m.high, m.runs) for m in _read(path, "x")} == {
        (m.name, m.n_bytes, m.low, m.high, m.runs) for m in found.entries
    }


def test_refitting_the_users_file_collects_records_and_says_when_there_are_too_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "vllm-capacity" / "calibration.yaml"
    assert "not refitted" in refine.refit_user_file(runs()[:1], predict, calibration(BASE))
    assert not file.exists()
    assert "refitted" in refine.refit_user_file(runs()[1:], predict, calibration(BASE))
    assert file.exists()


def test_what_the_equations_leave_open_stays_at_the_prior() -> None:
    equations = [Equation({"a": 1.0, "b": 1.0}, 10.0, f"r{i}", "m") for i in range(3)]
    found = solve(equations, {"a": 4.0, "b": 2.0})
    assert found["a"] + found["b"] == pytest.approx(10.0, rel=1e-3)
    assert found["a"] - found["b"] == pytest.approx(2.0, rel=1e-3)
