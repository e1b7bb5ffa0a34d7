"""Against a real vLLM: DRY_RUN_PYTHON=/path/to/python pytest -m vllm tests/dry_run (no GPU needed, minutes)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from vllm_capacity.cli import run
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.validate.dry_run import golden, selftest
from vllm_capacity.validate.dry_run.command import installed_release
from vllm_capacity.validate.dry_run.job import describe_gpu
from vllm_capacity.validate.dry_run.session import Session
from vllm_capacity.validate.dry_run.stub import build_stub

PYTHON = os.environ.get("DRY_RUN_PYTHON", "")
GOLDEN = Path(__file__).parents[1] / "data" / "vllm_exact"
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="DRY_RUN_PYTHON names no Python with vLLM"),
]


@pytest.fixture(scope="module")
def session():
    with Session(
        PYTHON, describe_gpu(find_device("H200")), stub=build_stub(), warm_up=selftest.MODEL
    ) as started:
        yield started


@pytest.fixture
def cases() -> dict[str, dict]:
    path = GOLDEN / f"golden_{installed_release(PYTHON)}.jsonl"
    return {case["name"]: case for case in map(json.loads, path.read_text().splitlines())}


def test_self_test(session):
    selftest.self_test(session)


@pytest.mark.parametrize("layout", ["tp1", "tp2"])
def test_golden_cases_come_out_again(session, cases, layout):
    case = golden.GoldenCase(model="Qwen/Qwen3-4B", gpu="H200", layout=layout, flags={"max_model_len": 32768})
    if case.name not in cases:
        pytest.skip(f"{case.name} is not in this release's golden set")
    assert json.loads(json.dumps(golden.build_case(session, case))) == cases[case.name]


def test_eager_peak_of_a_recorded_h200_run(capsys):
    """tests/data/runs/h200_vllm_0.26.0.jsonl, qwen3-8b-eager: 1,778,401,792 bytes, 50,730 blocks."""
    if installed_release(PYTHON) != "0.26.0":
        pytest.skip("recorded on vLLM 0.26.0")
    flags = [
        "--enforce-eager",
        "--usage",
        "offline",
        "--max-model-len",
        "32768",
        "--max-num-batched-tokens",
        "16384",
    ]
    code = run(["dry-run", "--model", "Qwen/Qwen3-8B", "--gpu", "H200", *flags, "--max-num-seqs", "1024",
                "--python", PYTHON, "--json"])  # fmt: skip
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    [rank] = answer["ranks"]
    assert rank["activation_peak_bytes"] == 1_778_401_792
    assert answer["dry_run"]["not_exact"] == {}


def test_a_layout_that_vllm_refuses(capsys):
    code = run(
        ["dry-run", "--model", "Qwen/Qwen3-8B", "--gpu", "H200", "--tp", "3", "--python", PYTHON, "--json"]
    )
    answer = json.loads(capsys.readouterr().out)
    assert code == 1
    assert answer["verdict"]["reason"] == "invalid_layout"
    assert "divisible by tensor parallel size (3)" in answer["verdict"]["message"]
