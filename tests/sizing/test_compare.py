"""`compare`: both sides are what `plan` says, and differences add up."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from vllm_capacity.cli import run
from vllm_capacity.report.compare_schema import compare_schema

MODEL = ("--model", "Qwen/Qwen3-8B")


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> dict[tuple[str, str], dict[str, Any]]:
    assert run(["compare", "--json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, compare_schema())
    return {(row["group"], row["name"]): row for row in found["rows"]}


def test_two_releases_differ_by_what_their_plans_differ(capsys: pytest.CaptureFixture[str]):
    found = rows(capsys, "--vllm-version 0.26.0", "--vllm-version 0.33.0", *MODEL, "--gpu", "H100")
    tokens = []
    for version in ("0.26.0", "0.33.0"):
        run(["plan", "--json", "--no-suggestions", "--vllm-version", version, *MODEL, "--gpu", "H100"])
        tokens.append(json.loads(capsys.readouterr().out)["kv_cache"]["size_tokens"])
    row = found["result", "kv_cache_size_tokens"]
    assert [row["a"], row["b"]] == tokens
    assert row["difference"] == tokens[1] - tokens[0]


def test_the_budget_difference_is_the_sum_of_its_parts(capsys: pytest.CaptureFixture[str]):
    found = rows(capsys, "--gpu H100 --tp 2", "--gpu H200", *MODEL)
    change = {name: row["difference"] for (group, name), row in found.items() if group == "budget"}
    parts = ("weights", "activation_peak", "non_torch", "runner_buffers", "graph_applied")
    assert change["available_kv_bytes"] == change["requested_bytes"] - sum(
        change[f"{name}_bytes"] for name in parts
    )


def test_a_refused_side_shows_its_reason(capsys: pytest.CaptureFixture[str]):
    assert run(["compare", "--tp 3 --gpu H100", "--tp 2 --gpu H100", *MODEL]) == 0
    out = capsys.readouterr().out
    assert "divisible" in out
    assert "invalid_layout" in out


@pytest.mark.parametrize(
    "words", [(), ("--gpu H100",), ("--gpu 'H100", "--gpu H200"), ("--tp 1,2 ", "--tp 1 ")]
)
def test_sides_that_cannot_be_read_are_one_error(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    assert run(["compare", *words, *MODEL]) == 2
    assert capsys.readouterr().err.count("\n") == 1
