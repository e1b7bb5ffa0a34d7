"""Two recorded sessions, replayed: the accounting closes to the byte, `validate --replay` and `refine` work on them.

tests/data/records/h200_vllm_0.26.0.jsonl: thirty-nine runs on two H200, failed ones included.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from vllm_capacity.calibration import load_calibration
from vllm_capacity.cli import run as command
from vllm_capacity.errors import InputError
from vllm_capacity.validate import refine
from vllm_capacity.validate.compare import accounting_residual, compare
from vllm_capacity.validate.record import RankRecord, RunRecord, RunStatus, read_records

RECORDS = Path(__file__).parent.parent / "data" / "records" / "h200_vllm_0.26.0.jsonl"
RUNS = read_records(RECORDS, tolerate_tail=False)
RANKS = [
    pytest.param(rank, id=f"{i}-{run.name}-rank{rank.rank}")
    for i, run in enumerate(RUNS)
    for rank in run.ranks
]


def test_all_runs_of_the_sessions_are_kept() -> None:
    assert len(RUNS) == 39
    statuses = [run.status for run in RUNS]
    assert statuses.count(RunStatus.OK) == 34
    assert statuses.count(RunStatus.TIMEOUT) == 4
    assert statuses.count(RunStatus.FAILED) == 1


@pytest.mark.parametrize("rank", RANKS)
def test_requested_less_subtracted_is_available_kv_to_the_byte(rank: RankRecord) -> None:
    if rank.profiling is None:
        pytest.skip("killed before the KV cache was sized")
    if rank.profiling.result is None:
        pytest.skip("the KV cache was given: vLLM measured nothing for it")
    assert accounting_residual(rank) == 0


def test_only_one_run_died_before_its_accounting() -> None:
    assert [run.name for run in RUNS if any(rank.profiling is None for rank in run.ranks)] == [
        "qwen3-30b-a3b-fp8"
    ]


def test_no_record_names_the_machine() -> None:
    text = RECORDS.read_text(encoding="utf-8")
    assert not any(part in text for part in ("/tmp/", "/home/", "/root/", "/usr/", "GPU-"))


@pytest.mark.parametrize("run", [pytest.param(run, id=f"{i}-{run.name}") for i, run in enumerate(RUNS)])
def test_the_plan_of_this_version_meets_what_was_measured(run: RunRecord) -> None:
    """Weights within 1 MiB, activations to the byte, KV cache within 0.05 % of the device, per rank."""
    found = compare(refine.predict_again(run, load_calibration("none")), run)
    for row in found.rows:
        if row.error is None:
            continue
        if row.name == "weights":
            assert abs(row.error) <= 1 << 20
        if row.name == "activation_peak":
            assert row.error == 0
        if row.name == "available_kv":
            assert found.cuda_total_bytes
            assert abs(row.error) <= 0.0005 * found.cuda_total_bytes


@pytest.mark.parametrize(
    "run", [pytest.param(run, id=f"{i}-{run.name}") for i, run in enumerate(RUNS) if run.ranks[0].kv_cache]
)
def test_blocks_pages_and_tokens_follow_from_the_bytes_that_vllm_had(run: RunRecord) -> None:
    """With the KV memory that each run measured, or was given: groups, page sizes, blocks and tokens as it had them."""
    left = [rank.profiling.available_kv_cache_memory_bytes for rank in run.ranks if rank.profiling]
    given = run.request.flags.get("kv_cache_memory_bytes") or min(n for n in left if n is not None)
    flags = {**run.request.flags, "kv_cache_memory_bytes": given}
    request = run.request.model_copy(update={"flags": flags})
    plan = refine.predict_again(run.model_copy(update={"request": request}), load_calibration("none"))
    cache = run.ranks[0].kv_cache
    assert cache is not None
    groups = [(g["layers"], g["spec"], g["block_size"], g["page_size_bytes"]) for g in cache["groups"]]
    planned = [
        (g["layers"], g["spec"], g["block_size"], g["page_size_bytes"]) for g in plan["kv_cache"]["groups"]
    ]
    if run.request.flags.get("pipeline_parallel_size", 1) == 1:
        assert sorted(planned) == sorted(groups)
        assert plan["kv_cache"]["num_blocks"] == cache["num_blocks"]
        if run.printed.kv_cache_size_tokens is not None:
            assert plan["kv_cache"]["size_tokens"] == run.printed.kv_cache_size_tokens


def test_replay_says_how_far_each_run_was_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3: five runs are not measurable (timeout, failed); the others are within tolerance."""
    assert command(["validate", "--replay", str(RECORDS)]) == 3
    assert capsys.readouterr().out.count("accounting +0 B") >= 30
    finished = tmp_path / "finished.jsonl"
    lines = [line for line in RECORDS.read_text().splitlines() if json.loads(line)["status"] == "ok"]
    finished.write_text("\n".join(lines) + "\n")
    assert command(["validate", "--replay", str(finished)]) == 0


def test_starts_that_were_meant_to_be_warm_compiled_again() -> None:
    """Their model lay in another folder, which is part of vLLM's cache key; so nothing here says what a warm start needs."""
    named = {run.name: run for run in RUNS if run.name.endswith(("-cold", "-warm"))}
    assert len(named) == 4
    assert all(run.printed.compile_cache_hit is False for run in named.values())


@pytest.mark.parametrize(
    ("model", "first", "then"),
    [("llama-3.1-8b", 1_184_948_736, 939_540_992), ("qwen3-30b-a3b", 2_873_417_728, 2_873_417_728)],
)
def test_a_second_start_finds_its_kernels_and_the_plan_says_what_it_gets(
    model: str, first: int, then: int
) -> None:
    """One cache filled and hit, dense and MoE: a plan's warm peak and tokens are what the second start measured."""
    named = {run.name: run for run in RUNS}
    cold, warm = named[f"{model}-cache-filled"], named[f"{model}-cache-hit"]
    assert (cold.printed.compile_cache_hit, warm.printed.compile_cache_hit) == (False, True)
    for run, peak in ((cold, first), (warm, then)):
        profiling = run.ranks[0].profiling
        assert profiling is not None
        assert profiling.result is not None
        assert profiling.result["torch_peak_increase"] == peak
    plan = refine.predict_again(warm, load_calibration("none"))
    assert plan["ranks"][0]["activation_peak_bytes"] == first
    assert plan["ranks"][0]["activation_peak_warm_bytes"] == then
    cache, block = plan["kv_cache"], plan["kv_cache"]["block_size"]
    assert abs(cache["size_tokens"] - (cold.printed.kv_cache_size_tokens or 0)) <= block
    assert abs(cache["second_start_size_tokens"] - (warm.printed.kv_cache_size_tokens or 0)) <= block
    row = compare(plan, warm).row("activation_peak")
    assert row is not None
    assert row.error == 0


def test_combo_kernels_do_not_move_the_peak() -> None:
    names = ("llama-3.1-8b-cold", "llama-3.1-8b-no-combo")
    peaks = {
        run.name: run.ranks[0].profiling.result["torch_peak_increase"]
        for run in RUNS
        if run.name in names and run.ranks[0].profiling and run.ranks[0].profiling.result
    }
    assert peaks == dict.fromkeys(names, 1_184_948_736)


# -- refine
def test_refine_fits_real_records_and_reports_errors_on_models_left_out() -> None:
    found = refine.refine(RUNS, refine.predict_again, load_calibration("none"))
    by_name = {m.name: m for m in found.entries}
    assert by_name["nccl-sm90-torch2.11-world2"].n_bytes == pytest.approx(486 * 2**20, abs=2**20)
    assert by_name["nccl-world-sm90-torch2.11-world2"].n_bytes == pytest.approx(284 * 2**20, abs=2**20)
    assert by_name["first-kernels-sm90-torch2.11"].n_bytes == pytest.approx(162 * 2**20, abs=2**20)
    assert found.left_out_mean is not None
    assert found.left_out_mean < 2 * 2**20
    assert (found.left_out_worst or 0) < 4 * 2**20
    assert abs(found.unexplained) < 2**20
    collectives = by_name["collectives-sm90-torch2.11-tp2-fused-all-reduceFalse-nvlsFalse"]
    assert collectives.n_bytes == pytest.approx(0, abs=3 * 2**20), (
        "nothing grows without the fused all-reduce"
    )
    assert "graph-nodes-oai-triton-sm90-torch2.11" in found.refused, "one run only"


def test_refine_of_the_fitting_half_predicts_the_other_half() -> None:
    """Factors from the models that may stand behind constants (split.yaml); non-torch memory of the others."""
    unseen = yaml.safe_load((RECORDS.parent / "split.yaml").read_text())["unseen"]
    finished = [run for run in RUNS if run.status is RunStatus.OK]
    found = refine.refine(
        [run for run in finished if run.request.model not in unseen],
        refine.predict_again,
        load_calibration("none"),
    )
    from vllm_capacity.calibration import Calibration

    fitted = Calibration((*found.entries, *load_calibration("none").measurements), "fitting half")
    tested = [run for run in finished if run.request.model in unseen]
    assert len(tested) == 10
    for run in tested:
        if run.request.flags.get("kv_cache_memory_bytes"):
            continue
        row = compare(refine.predict_again(run, fitted), run).row("non_torch")
        assert row is not None
        assert row.error is not None
        assert abs(row.error) <= 8 * 2**20, run.name


def test_refine_refuses_two_runs() -> None:
    with pytest.raises(InputError, match="at least 3"):
        refine.refine(RUNS[:2], refine.predict_again, load_calibration("none"))


def test_refitting_the_users_file_changes_what_plans_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`validate --refine` after real answers: the file is written beside its records, and `plan` names it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    said = refine.refit_user_file([run for run in RUNS if run.status is RunStatus.OK])
    assert said.startswith("refitted")
    assert "leave-one-model-out" in said
    path = tmp_path / "vllm-capacity" / "calibration.yaml"
    assert len(read_records(path.with_name("records.jsonl"))) == 34
    arguments = ["plan", "--model", "Qwen/Qwen3-8B", "--gpu", "H200", "--vllm-version", "0.26.0", "--json"]
    assert command(arguments) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["calibration"]["source"] == str(path)
    assert any(t["name"] == "unexplained" for t in plan["ranks"][0]["terms"])
    assert command([*arguments, "--calibration", "none"]) == 0
    without = json.loads(capsys.readouterr().out)
    assert without["calibration"]["source"] == "built-in"
