"""The command that the page hands on gives the same answer."""

from __future__ import annotations

import json
import shlex

import pytest
from vllm_capacity.cli import run as run_command
from vllm_capacity.report.json_report import plan_to_dict
from vllm_capacity.web.page.answers import Answer, plan_answer
from vllm_capacity.web.page.layouts import Layouts, layouts_answer
from vllm_capacity.web.page.state import PageState
from vllm_capacity.web.settings import WebSettings

SETTINGS = WebSettings()
STATE = PageState(
    model="Qwen/Qwen3-8B", gpu="L40S", release="0.26.0", context="8k", concurrency="4", kv_dtype="fp8", utilisation="0.88",
    flags="--max-num-seqs 64",
)  # fmt: skip


def run(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    words = shlex.split(command)
    assert words[0] == "vllm-capacity"
    assert run_command([words[1], "--json", *words[2:]]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_the_command_of_a_plan_gives_the_plan(capsys: pytest.CaptureFixture[str]):
    answer = plan_answer(STATE, SETTINGS)
    assert isinstance(answer, Answer)
    ours, theirs = json.loads(json.dumps(plan_to_dict(answer.plan))), run(answer.command, capsys)
    ours["vllm_version_source"] = theirs["vllm_version_source"]
    assert ours == theirs


@pytest.mark.parametrize("every_gpu", ["", "yes"])
def test_the_command_of_a_comparison_gives_the_comparison(every_gpu: str, capsys: pytest.CaptureFixture[str]):
    small = PageState(
        model="Qwen/Qwen3-0.6B", gpu="L40S", release="0.26.0", context="8k", concurrency="4", kv_dtype="fp8",
        every_gpu=every_gpu,
    )  # fmt: skip
    answer = layouts_answer(small, SETTINGS)
    assert isinstance(answer, Layouts)
    ours, theirs = json.loads(json.dumps(answer.document)), run(answer.command, capsys)
    assert ours["rows"] == theirs["rows"]
    assert ours["demand"] == theirs["demand"]
