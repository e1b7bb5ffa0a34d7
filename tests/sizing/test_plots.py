"""The pictures say what the plans say: texts of the SVG, heights of the bars."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from asking import GPT_OSS, answered
from matplotlib import rcParams
from vllm_capacity.cli import run
from vllm_capacity.report.palette import LOOKS
from vllm_capacity.sizing.context_curve import context_curves

WORDS = (
    "--model",
    GPT_OSS,
    "--max-model-len",
    "32K",
    "--concurrency",
    "64",
    "--gpu",
    "H100,H200",
    "--no-sensitivity",
)


@pytest.fixture(autouse=True)
def _text_stays_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(rcParams, "svg.fonttype", "none")


def texts(path: Path) -> str:
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()))


def test_a_plan_is_a_stacked_bar_with_the_share_requested(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "plan.svg"
    words = [
        "plan",
        "--model",
        GPT_OSS,
        "--gpu",
        "H100",
        "--tp",
        "2",
        "--vllm-version",
        "0.26.0",
        "--no-suggestions",
        "--json",
    ]
    assert run([*words, "--plot", str(path)]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    shown = texts(path)
    assert GPT_OSS in shown
    assert f"{plan['kv_cache']['size_tokens']:,} tokens" in shown
    assert "requested share (0.92)" in shown
    for component in ("weights", "KV cache", "NCCL", "CUDA graphs"):
        assert component in shown
    weights = sum(t["bytes"] for t in plan["ranks"][0]["terms"] if t["component"] == "weights")
    assert f"{weights / 2**30:.1f}" in shown


def test_equal_input_gives_equal_files(tmp_path: Path):
    for name in ("a.svg", "b.svg"):
        run(
            [
                "plan",
                "--model",
                "Qwen/Qwen3-8B",
                "--gpu",
                "H100",
                "--no-suggestions",
                "--plot",
                str(tmp_path / name),
            ]
        )
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_png_is_written(tmp_path: Path):
    path = tmp_path / "plan.png"
    run(
        [
            "plan",
            "--model",
            "Qwen/Qwen3-8B",
            "--gpu",
            "H100",
            "--tp",
            "1,2",
            "--no-suggestions",
            "--plot",
            str(path),
        ]
    )
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_curves_pass_through_the_rows(tmp_path: Path):
    report = answered(*WORDS)
    for row, curve in zip(report.rows, context_curves(report.question, report.rows), strict=True):
        at = curve.lengths.index(32768)
        assert curve.total_kv_cache_size_tokens[at] == row.total_kv_cache_size_tokens
        assert curve.sequences[at] == row.sequences
        assert list(curve.sequences) == sorted(curve.sequences, reverse=True)
    path = tmp_path / "size.svg"
    assert run(["size", *WORDS, "--plot", str(path)]) == 0
    assert "64 asked" in texts(path)


def test_no_two_components_look_alike():
    assert len(set(LOOKS.values())) == len(LOOKS)


@pytest.mark.parametrize("name", ["plan.txt", "no/such/folder/plan.svg"])
def test_a_name_that_cannot_be_written_is_one_error(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["plan", "--model", "Qwen/Qwen3-8B", "--gpu", "H100", "--plot", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
