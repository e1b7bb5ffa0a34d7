"""The `explain` command as its users meet it: files, pipes, exit codes, JSON, records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_capacity.cli import run
from vllm_capacity.validate.compare import compare
from vllm_capacity.validate.record import RunStatus, read_records

LOGS = Path(__file__).parents[1] / "data" / "logs" / "scenarios"
PROGRAM = str(Path(sys.executable).with_name("vllm-capacity"))


def explain(*arguments: str) -> int:
    return run(["explain", "--offline", *arguments])


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("healthy_llama.log", 0),
        ("sampler_warmup.log", 1),
        ("cache_full_preemptions.log", 1),
        ("carrier_gzip.log.gz", 1),
    ],
)
def test_exit_code_says_whether_a_problem_was_found(
    name: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(str(LOGS / name)) == code
    out = capsys.readouterr()
    assert out.out
    assert not out.err


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x00\xff" * 500, b"\x1f\x8b\x08broken"])
def test_no_vllm_log_is_one_line_and_exit_code_2(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(content)
    assert explain(str(file)) == 2
    out = capsys.readouterr()
    assert not out.out
    assert out.err.count("\n") == 1


def test_a_missing_file_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain("no/such/file.log") == 2
    assert "no/such/file.log" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_standard_input(arguments: list[str]) -> None:
    data = (LOGS / "carrier_gzip.log.gz").read_bytes()
    done = subprocess.run(
        [PROGRAM, "explain", "--offline", *arguments], input=data, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert b"needs 16 GiB of KV cache, 11.21 GiB are there" in done.stdout


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain("--json", str(LOGS / "sampler_warmup.log")) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["finding"]["cause"] == "sampler_warmup"
    assert data["finding"]["missing_bytes"] == 786 * 2**20 - round(552.5 * 2**20)
    assert data["remedies"][0]["spare_bytes"] >= 0
    assert data["start"]["version"] == "0.19.0"
    assert data["start"]["processes"]["EngineCore"]["activation_peak_gib"] == 2.87
    assert any(row["name"] == "kv_cache_size_tokens" for row in data["predicted"])


def test_what_the_log_leaves_open_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    """The mamba scenario names no GPU; with one its remedies are planned."""
    log = str(LOGS / "mamba_blocks_below_sequences.log")
    explain("--json", log)
    before = json.loads(capsys.readouterr().out)
    assert any("--gpu" in text for text in before["missing"])
    assert {remedy["basis"] for remedy in before["remedies"]} == {"logged"}
    explain("--json", "--gpu", "H200", log)
    after = json.loads(capsys.readouterr().out)
    assert "planned" in {remedy["basis"] for remedy in after["remedies"]}
    assert after["predicted"]


def test_an_unknown_gpu_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain("--gpu", "H101", str(LOGS / "mamba_blocks_below_sequences.log")) == 2
    assert "H101" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("healthy_llama.log", RunStatus.OK, None),
        ("sampler_warmup.log", RunStatus.OOM, "sampler_warmup"),
        ("one_request_llama_131072.log", RunStatus.REFUSED, "one_request_does_not_fit"),
    ],
)
def test_record_makes_a_validation_record(
    name: str, status: RunStatus, reason: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record is one that `validate` reads and compares with its plan."""
    file = tmp_path / "runs.jsonl"
    explain("--records", str(file), str(LOGS / name))
    explain("--records", str(file), str(LOGS / name))
    capsys.readouterr()
    records = read_records(file, tolerate_tail=False)
    assert len(records) == 2
    record = records[0]
    assert (record.status, record.reason) == (status, reason)
    assert record.versions["vllm"]
    assert record.plan is not None
    comparison = compare(record.plan, record)
    row = comparison.row("weights")
    assert row is not None
    assert row.relative is not None
    assert abs(row.relative) < 0.02
    assert not any("pid=" in line for line in record.log)
