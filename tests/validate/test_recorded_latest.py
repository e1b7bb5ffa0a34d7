"""The recorded runs of vLLM 0.33.0, replayed: another accounting than 0.26.0's, and what a plan says of it.

tests/data/records/h200_vllm_0.33.0.jsonl: eight runs of a first session, one H200 each, and fourteen of a second one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.calibration import Calibration, load_calibration
from vllm_capacity.cli import run as command
from vllm_capacity.units import MIB
from vllm_capacity.validate import refine
from vllm_capacity.validate.compare import Comparison, accounting_residual, compare
from vllm_capacity.validate.record import RankRecord, RunRecord, RunStatus, read_records

DATA = Path(__file__).parent.parent / "data" / "records"
RECORDS = DATA / "h200_vllm_0.33.0.jsonl"
ALL = read_records(RECORDS, tolerate_tail=False)
RUNS, LATER = ALL[:8], ALL[8:]
EACH = pytest.mark.parametrize("run", [pytest.param(run, id=run.name) for run in RUNS])
EQUAL = {
    "v0.33-llama-3.1-8b-eager",
    "v0.33-qwen3-30b-a3b",
    "v0.33-deepseek-v2-lite-eager",
    "v0.33-gpt-oss-20b-eager",
    "v0.33-qwen3-8b-t2048-s64",
    "v0.33-granite-4.0-h-tiny-eager",
}
"""Runs whose KV cache memory is met to the byte; the two others estimate graphs in other pages of the driver."""


def replayed(run: RunRecord) -> Comparison:
    return compare(refine.predict_again(run, load_calibration("none")), run)


def result_of(rank: RankRecord) -> dict[str, Any]:
    assert rank.profiling is not None
    assert rank.profiling.result is not None
    return rank.profiling.result


def error(found: Comparison, name: str) -> int:
    row = found.row(name)
    assert row is not None
    assert row.error is not None
    return row.error


def test_all_runs_of_the_session_are_kept_and_came_up() -> None:
    assert [run.status for run in RUNS] == [RunStatus.OK] * 8
    assert {run.versions["vllm"] for run in RUNS} == {"0.33.0"}
    assert {run.ranks[0].model_runner for run in RUNS} == {"V2"}


@pytest.mark.parametrize(
    "run", [pytest.param(run, id=run.name) for run in ALL if run.ranks[0].profiling is not None]
)
def test_requested_less_subtracted_is_available_kv_to_the_byte(run: RunRecord) -> None:
    assert [accounting_residual(rank) for rank in run.ranks] == [0] * len(run.ranks)


@EACH
def test_consumed_is_what_pytorch_reserves_and_the_driver_takes(run: RunRecord) -> None:
    """total_consumed: free memory before less after; so segments count, not tensors, and what comes before the baseline
    snapshot does not.
    """
    result = result_of(run.ranks[0])
    before, after = result["before_create"], result["after_profile"]
    reserved = after["torch_memory"] - before["torch_memory"]
    assert result["total_consumed"] == reserved + result["non_torch_increase"]
    assert result["transient_peak_headroom"] == after["torch_peak"] - after["torch_allocated"]
    assert result["non_torch_increase"] == 72 * MIB
    assert before["torch_memory"] == 32 * MIB, "cuBLAS's workspace, before the snapshot"


@EACH
def test_weights_buffers_activation_and_segments_are_met_to_the_byte(run: RunRecord) -> None:
    found = replayed(run)
    for name in (
        "weights", "activation_peak", "non_torch", "communication", "first_kernels", "kernel_modules",
        "allocator_fragmentation",
    ):  # fmt: skip
        assert error(found, name) == 0, name
    stages, planned = run.ranks[0].stages, found.row("runner_buffers", 0)
    cublas = stages["baseline"]["torch_memory"]
    buffers = stages["load"]["allocated"] - cublas - (run.ranks[0].model_memory_usage or 0)
    assert planned is not None
    assert planned.predicted == buffers


@EACH
def test_pages_blocks_and_tokens_follow_from_the_memory(run: RunRecord) -> None:
    found = replayed(run)
    plan = refine.predict_again(run, load_calibration("none"))
    cache = run.ranks[0].kv_cache
    assert cache is not None
    assert [g["page_size_bytes"] for g in plan["kv_cache"]["groups"]] == [
        g["page_size_bytes"] for g in cache["groups"]
    ]
    if run.name in EQUAL:
        assert [
            error(found, name) for name in ("available_kv", "num_blocks", "kv_cache_size_tokens", "kv_cache")
        ] == [0] * 4
    else:
        assert abs(error(found, "available_kv")) <= 2 * MIB
        assert abs(error(found, "num_blocks")) <= 1


@EACH
def test_graphs_are_met_within_a_page_of_the_driver(run: RunRecord) -> None:
    if run.ranks[0].graph_actual is None:
        pytest.skip("eager")
    found = replayed(run)
    assert (
        max(abs(error(found, name)) for name in ("graph_estimate", "graph_actual", "graph_probe")) <= 2 * MIB
    )


def test_replay_is_within_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["validate", "--replay", str(RECORDS)]) == 3, (
        "two runs lacked a library of another kind of GPU"
    )
    assert capsys.readouterr().out.count("accounting +0 B") == 21


# -- the second session
def test_all_runs_of_the_second_session_are_kept() -> None:
    """Two failed for want of CUTLASS DSL, which that environment was without: one in its profile run, one in its warm-up."""
    assert len(LATER) == 14
    failed = [run for run in LATER if run.status is not RunStatus.OK]
    assert {run.name for run in failed} == {
        "v0.33-deepseek-v3.2-5-layers-eager",
        "v0.33-qwen3-next-12-layers",
    }
    for run in failed:
        assert run.error is not None
        assert "No module named 'cutlass'" in run.error["message"], run.name


@pytest.mark.parametrize(
    "name",
    [
        "v0.33-llama-3.1-8b-tp2-eager",
        "v0.33-qwen3-30b-a3b-tp2-ep-eager",
        "v0.33-qwen2.5-7b-eager-u0.5",
        "v0.33-phi-4-kv-fp8-eager",
        "v0.33-nemotron-nano-9b-v2-eager",
        "v0.33-llama-3.1-8b-lora-eager",
    ],
)
def test_two_gpus_and_families_not_recorded_before_are_met_to_the_byte(name: str) -> None:
    run = next(run for run in LATER if run.name == name)
    found = replayed(run)
    for term in ("available_kv", "num_blocks", "activation_peak", "non_torch"):
        assert error(found, term) == 0, term


@pytest.mark.parametrize("run", [pytest.param(run, id=run.name) for run in LATER])
def test_weights_are_met_to_the_byte(run: RunRecord) -> None:
    """DeepSeek-V3.2's too, whose absorbed matrices lie in blocks that the requantising of its linear layers left."""
    assert error(replayed(run), "weights") == 0


@pytest.mark.parametrize(
    "name",
    ["v0.33-llama-3.1-8b-eagle3", "v0.33-qwen3-8b-awq", "v0.33-gpt-oss-120b", "v0.33-qwen3-next-12-layers"],
)
def test_what_loading_leaves_of_segments_is_met_to_the_byte(name: str) -> None:
    """A draft loaded after its target, weights repacked for Machete, scales swizzled for Triton kernels."""
    run = next(run for run in LATER if run.name == name)
    assert error(replayed(run), "allocator_fragmentation") == 0
    (rank,) = refine.predict_again(run, load_calibration("none"))["ranks"]
    (term,) = (term for term in rank["terms"] if term["name"] == "allocator_fragmentation")
    assert term["high_bytes"] - term["low_bytes"] == 2 * MIB, "every step of repacking is known"


def test_a_draft_with_dummy_weights_shares_the_targets_head() -> None:
    """No weight that was read says that it has one of its own (models/utils.py: process_eagle_weight); the stage `load_peak`
    comes before sharing and still holds the draft's own embedding and head.
    """
    (run,) = (run for run in LATER if run.name == "v0.33-llama-3.1-8b-eagle3")
    rank = run.ranks[0]
    built = rank.stages["load_peak"]["allocated"] - rank.stages["runner_init"]["allocated"]
    assert built - (rank.model_memory_usage or 0) == (128256 + 32000) * 4096 * 2
    assert error(replayed(run), "activation_peak") == 0, (
        "auxiliary hidden states are gone when the sampler runs"
    )


def test_each_step_of_a_draft_captures_on_a_stream_of_its_own() -> None:
    """Two workspaces of 32 MiB, and two segments of 20 MiB and two of 2 beside them; sizes are whole requests of 4 tokens, so
    that two full graphs are the target's."""
    (run,) = (run for run in LATER if run.name == "v0.33-llama-3.1-8b-eagle3")
    found = replayed(run)
    for term in ("graph_estimate", "graph_actual", "graph_probe", "available_kv"):
        assert abs(error(found, term)) <= 2 * MIB, term
    assert abs(error(found, "num_blocks")) <= 1


def test_with_two_gpus_the_first_collectives_load_the_kernels_before_the_snapshot() -> None:
    """4 MiB of modules are inside of the budget instead of 72, and 12 MiB of the segment behind custom all-reduce's pointers are
    taken by what comes later.
    """
    (run,) = (run for run in LATER if run.name == "v0.33-llama-3.1-8b-tp2-eager")
    result = result_of(run.ranks[0])
    assert result["non_torch_increase"] == 4 * MIB
    assert result["before_create"]["torch_memory"] == 54 * MIB, (
        "cuBLAS's 32, the pointers' 20, one small segment"
    )
    fragmentation = replayed(run).row("allocator_fragmentation", 0)
    assert fragmentation is not None
    assert fragmentation.predicted is not None
    assert fragmentation.predicted < 0


# -- refine over both releases
@pytest.fixture(scope="module")
def both() -> list[RunRecord]:
    older = read_records(DATA / "h200_vllm_0.26.0.jsonl", tolerate_tail=False)
    return [run for run in (*older, *RUNS) if run.status is RunStatus.OK]


def test_refine_keeps_the_releases_apart_by_pytorch(both: list[RunRecord]) -> None:
    found = refine.refine(both, refine.predict_again, load_calibration("none"))
    by_name = {m.name: m.n_bytes for m in found.entries}
    assert by_name["first-kernels-sm90-torch2.11"] == pytest.approx(162 * MIB, abs=MIB)
    assert by_name["first-kernels-sm90-torch2.14"] == pytest.approx(158 * MIB, abs=1024)
    assert by_name["runner-kernels-sm90-torch2.14"] == pytest.approx(70 * MIB, abs=1024)
    assert by_name["kernel-modules-sm90-torch2.14"] == pytest.approx(2 * MIB, abs=1024)
    assert found.left_out_mean is not None
    assert found.left_out_mean < 2 * MIB
    assert abs(found.unexplained) < MIB


def test_refine_of_the_fitting_half_predicts_the_other_models_of_0_33() -> None:
    """Factors from Llama, Qwen3-MoE, DeepSeek-V2-Lite and gpt-oss; KV memory of three others."""
    unseen = {"Qwen/Qwen3-8B", "x/gemma-3-27b-text", "ibm-granite/granite-4.0-h-tiny"}
    fitting = [run for run in RUNS if run.request.model not in unseen]
    found = refine.refine(fitting, refine.predict_again, load_calibration("none"))
    fitted = Calibration((*found.entries, *load_calibration("none").measurements), "fitting half")
    tested = [run for run in RUNS if run.request.model in unseen]
    assert len(tested) == 3
    for run in tested:
        assert abs(error(compare(refine.predict_again(run, fitted), run), "available_kv")) <= 4 * MIB, (
            run.name
        )
