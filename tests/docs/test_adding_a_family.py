"""docs/adding-a-model-family.md: its steps, taken in a copy without that family, give the plan of this package."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from copied_package import ROOT, Copy, parts
from doc_examples import blocks
from vllm_capacity.cli import run

PAGE = "adding-a-model-family.md"
ASKED = ("--model", "afm", "--gpu", "H200", "--vllm-version", "0.26.0")
STEPS = parts(PAGE)


@pytest.fixture
def without(tmp_path: Path) -> Copy:
    copy = Copy.make(tmp_path)
    for block in STEPS.values():
        copy.undo(block)
    (tmp_path / "afm").mkdir()
    shutil.copy(ROOT / "docs" / "arcee.example.json", tmp_path / "afm" / "config.json")
    return copy


def test_the_page_changes_one_module_and_one_row() -> None:
    assert list(STEPS) == ["capacity/architecture/arcee.py", "capacity/architecture/registry.py"]


def test_the_steps_turn_the_refusal_into_the_plan(
    without: Copy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = without.plan(*ASKED)
    (shown,) = (block.body for block in blocks(ROOT / "docs" / PAGE) if block.language == "text")
    assert (refused.returncode, refused.stderr) == (2, shown)
    for block in STEPS.values():
        without.apply(block)
    planned = without.plan_json(*ASKED)
    monkeypatch.chdir(without.folder)
    assert run(["plan", *ASKED, "--json"]) == 0
    assert planned == json.loads(capsys.readouterr().out)
