"""`validate` and `refine` as a user calls them; the engine is the stand-in, nvidia-smi a script."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from vllm_capacity.cli import run
from vllm_capacity.validate import planning
from vllm_capacity.validate.record import RunRecord, RunRequest, append_record, read_records
from vllm_capacity.validate.runner import RunnerSettings
from vllm_capacity.validate.runner import run as run_engine
from vllm_capacity.validate.schema import comparison_schema

from .test_compare import plan_for


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi that shows two idle H200."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "nvidia-smi"
    script.write_text(
        "#!/bin/sh\necho '0, NVIDIA H200, 143771, 4, 580.1'\necho '1, NVIDIA H200, 143771, 4, 580.1'\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any] | None], None]:
    """Decides what the plan before the run says, whatever the planner's state: here the command is under
    test.
    """

    def decide(plan: dict[str, Any] | None) -> None:
        monkeypatch.setattr(planning, "planner_for", lambda *_args: lambda _request: plan)

    return decide


def validate(*arguments: str) -> int:
    return run(["validate", "--python", sys.executable, *arguments])


def engine_flags(request: RunRequest) -> list[str]:
    env = [part for name, value in request.env.items() if value for part in ("--env", f"{name}={value}")]
    return ["--model", request.model, "--max-num-batched-tokens", "2048", "--max-num-seqs=64", *env]


@pytest.mark.usefixtures("gpus")
def test_one_run_is_recorded_compared_and_judged(
    make_request: Callable[..., RunRequest],
    settings: RunnerSettings,
    planned: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = make_request()
    measured = run_engine(request, settings)
    planned(plan_for(measured, kv_factor=1.01))
    assert validate(*engine_flags(request), "--requests", "0") == 0
    assert "KV cache tokens +1.00 %, within 3 %" in capsys.readouterr().out
    assert validate(*engine_flags(request), "--tolerance", "0.5", "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    jsonschema.validate(shown, comparison_schema())
    assert shown["rows"][0]["name"] == "kv_cache_size_tokens"
    assert {"weights_bytes", "available_kv_bytes", "cuda_context"} <= {row["name"] for row in shown["rows"]}
    records = read_records(Path("records.jsonl"))
    assert [r.status.value for r in records] == ["ok", "ok"]
    assert records[0].request.flags == {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
    assert records[0].gpus[0].name == "NVIDIA H200"
    assert len(records[0].gpus) == 1


@pytest.mark.usefixtures("gpus")
def test_a_refusal_that_was_predicted_is_exit_code_0(
    make_request: Callable[..., RunRequest], planned: Callable[..., None]
) -> None:
    request = make_request(die="kv_planning:raise:No available memory for the cache blocks.")
    planned({"verdict": {"status": "does_not_start", "reason": "no_kv_memory"}})
    assert validate(*engine_flags(request)) == 0
    planned({"verdict": {"status": "starts"}})
    assert validate(*engine_flags(request)) == 1


@pytest.mark.usefixtures("gpus")
def test_a_dead_engine_is_exit_code_3(
    make_request: Callable[..., RunRequest], planned: Callable[..., None]
) -> None:
    request = make_request(die="load_model:kill")
    planned(None)
    assert validate(*engine_flags(request)) == 3


@pytest.mark.usefixtures("gpus")
def test_bad_input_is_one_line_and_exit_code_2(
    make_request: Callable[..., RunRequest], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    request = make_request()
    for arguments, complaint in (
        (["--model", "m", "--replay", "r"], "exactly one"),
        ([], "exactly one"),
        ([*engine_flags(request), "--tensor-parallel-size", "4"], "needs 4 GPUs, 2 are here"),
        ([*engine_flags(request), "-tp", "4"], "needs 4 GPUs, 2 are here"),
        ([*engine_flags(request), "--gpus", "7"], "GPU 7 is not here"),
        ([*engine_flags(request), "--env", "broken"], "NAME=VALUE"),
        (["--matrix", str(tmp_path / "none.yaml")], "cannot be read"),
        (["--replay", str(tmp_path / "none.jsonl")], "cannot be read"),
        ([*engine_flags(request), "--budget", "soon"], "not a duration"),
    ):
        assert validate(*arguments) == 2, arguments
        captured = capsys.readouterr()
        assert complaint in captured.err
        assert "Traceback" not in captured.err


def test_without_a_gpu_the_error_says_what_still_works(
    monkeypatch: pytest.MonkeyPatch,
    make_request: Callable[..., RunRequest],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert validate(*engine_flags(make_request())) == 2
    assert "--replay" in capsys.readouterr().err


@pytest.mark.usefixtures("gpus")
def test_without_vllm_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert validate("--model", "m") == 2
    assert "pip install 'vllm-capacity[gpu]'" in capsys.readouterr().err


@pytest.mark.usefixtures("gpus")
def test_a_matrix_file_runs_and_resumes(
    make_request: Callable[..., RunRequest], planned: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    planned(None)
    request = make_request()
    tape = request.env["FAKE_ENGINE_TAPE"]
    Path("m.yaml").write_text(
        f"defaults: {{model: {request.model}, env: {{FAKE_ENGINE_TAPE: {tape}}},"
        " flags: {max_num_batched_tokens: 2048, max_num_seqs: 64}}\nruns: [{name: a}, {name: b}]\n"
    )
    assert validate("--matrix", "m.yaml", "--budget", "10m") == 3
    out = capsys.readouterr().out
    assert "a: ok" in out
    assert "accounting +0 B" in out
    validate("--matrix", "m.yaml")
    assert "skipped a: recorded before" in capsys.readouterr().out
    assert [r.name for r in read_records(Path("records.jsonl"))].count("a") == 1


def test_replay_compares_recorded_runs_again_without_a_gpu(
    make_request: Callable[..., RunRequest],
    settings: RunnerSettings,
    planned: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record: RunRecord = run_engine(make_request(), settings)
    append_record(tmp_path / "r.jsonl", record)
    planned(plan_for(record, kv_factor=0.9))
    assert run(["validate", "--replay", str(tmp_path / "r.jsonl")]) == 1
    assert "KV cache tokens -10.00 %" in capsys.readouterr().out


@pytest.mark.usefixtures("gpus")
def test_debug_oom_names_what_grew(
    make_request: Callable[..., RunRequest], planned: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    planned({"verdict": {"status": "does_not_start"}})
    request = make_request(die="capture_model:raise:CUDA out of memory.")
    assert validate(*engine_flags(request), "--debug-oom") == 0
    assert "verdict: oom while allocating CUDA graphs" in capsys.readouterr().out


def test_refine_refuses_too_few_records(
    make_request: Callable[..., RunRequest],
    settings: RunnerSettings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    append_record(tmp_path / "r.jsonl", run_engine(make_request(), settings))
    assert run(["refine", str(tmp_path / "r.jsonl"), "--dry-run"]) == 2
    assert "at least 3 are needed" in capsys.readouterr().err
