"""Lines quoted in public issues, recipes and sweeps (tests/data/logs/public_quotes.jsonl): figures and
causes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.diagnosis import Confidence, diagnose
from vllm_capacity.logs import LogRecord, read_lines
from vllm_capacity.logs.record import StartRecord

QUOTES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "logs" / "public_quotes.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]

TABLE_ROWS = {"pub-067", "pub-069", "pub-072", "pub-073", "pub-186"}
"""A row of numbers whose column heads are not quoted: no reader can tell what they are."""
SEVERAL_RUNS = {
    # one sentence about several runs: the first (or least) is read, the others cannot be told apart
    "pub-085": {"kv_cache_size_tokens"},
    "pub-086": {"kv_cache_size_tokens"},
    "pub-087": {"kv_cache_size_tokens"},
    "pub-150": {"kv_cache_size_tokens", "max_concurrency"},
    "pub-151": {"kv_cache_size_tokens", "max_concurrency"},
    "pub-025": {"activation_peak_gib"},  # two ranks of a pipeline without their prefixes
}

SAME = {
    "graph_gib": ("graph_actual_gib", "graph_capture_gib"),
    "profiled_weights_gib": ("profiled_weights_gib", "weights_gib"),
    "weights_gib": ("weights_gib", "profiled_weights_gib"),
    "available_kv_gib": ("available_kv_gib", "kv_in_use_gib"),
}
"""One quantity that different lines print under different names."""


def record_of(quote: str) -> LogRecord:
    return read_lines(quote.split(" | "))


def figures_of(start: StartRecord, name: str) -> set[float]:
    found: set[float] = set()
    for field in SAME.get(name, (name,)):
        if hasattr(start.processes.get("", StartRecord()), field):
            found |= set(start.values(field))
        found |= {
            float(f.values[field]) for f in start.failures if isinstance(f.values.get(field), (int, float))
        }
    return found


CHECKED = [
    pytest.param(row, name, value, id=f"{row['id']}-{name}")
    for row in QUOTES
    for name, value in row["figures"].items()
    if row["id"] not in TABLE_ROWS and name not in SEVERAL_RUNS.get(row["id"], ())
]


@pytest.mark.parametrize(("row", "name", "value"), CHECKED)
def test_every_figure_of_a_quote_is_read(row: dict[str, Any], name: str, value: float) -> None:
    start = record_of(row["quote"]).last
    assert start is not None
    assert value in figures_of(start, name), row["quote"]


def test_nearly_all_quotes_are_checked() -> None:
    assert len(QUOTES) == 192
    figures = sum(len(row["figures"]) for row in QUOTES)
    assert len(CHECKED) >= 0.94 * figures


FAILED = [row for row in QUOTES if row["outcome"] != "ok"]

SILENT = {
    "pub-119": "the summary before the sampler warm-up; that it died there stands in the notes",
    "pub-134": "the KV line only",
    "pub-146": "the KV line and 'ValueError'",
    "pub-233": "the block count only",
    "pub-239": "a healthy start's lines",
    "pub-247": "the loading line and a sentence without the error's text",
}
"""Quotes without the failure itself: a reader of these lines alone cannot know it."""


def cause_of(text: str) -> tuple[str | None, Confidence | None]:
    record = record_of(text)
    if not record.starts:
        return None, None
    finding = diagnose(record).finding
    return (None, None) if finding is None else (finding.cause.value, finding.confidence)


@pytest.mark.parametrize("row", FAILED, ids=lambda row: row["id"])
def test_the_cause_agrees_with_outcome_and_notes(row: dict[str, Any]) -> None:
    """From the quoted lines alone: the right cause, or none, or an out-of-memory error whose step is left
    open."""
    cause, confidence = cause_of(row["quote"])
    if row["id"] in SILENT:
        assert cause is None
    elif row["id"] == "pub-178":
        # The message stands without a traceback: the step is not in the quote, and the diagnosis says so.
        assert (cause, confidence) == ("out_of_memory", Confidence.LOW)
    else:
        assert cause == row["cause"]


def test_with_the_step_named_the_cause_is_exact() -> None:
    row = next(row for row in FAILED if row["id"] == "pub-178")
    assert cause_of(row["quote"] + " " + row["notes"])[0] == "minimal_kv_profiling"


@pytest.mark.parametrize("row", [row for row in QUOTES if row["outcome"] == "ok"], ids=lambda row: row["id"])
def test_no_trouble_is_seen_where_there_was_none(row: dict[str, Any]) -> None:
    assert cause_of(row["quote"])[0] is None


def test_torch_message_is_read_whole() -> None:
    row = next(row for row in FAILED if row["id"] == "pub-040")
    start = record_of(row["quote"]).last
    assert start is not None
    values = start.failures[0].values
    assert values["tried_bytes"] == 786 * 2**20
    assert values["free_at_failure_bytes"] == round(552.5 * 2**20)
    assert values["cuda_total_bytes"] == round(79.19 * 2**30)
    assert values["process_bytes"] == round(78.64 * 2**30)
    assert values["allocated_bytes"] == round(74.91 * 2**30)


def test_plain_allocator_message_is_read_whole() -> None:
    row = next(row for row in FAILED if row["id"] == "pub-219")
    start = record_of(row["quote"]).last
    assert start is not None
    assert start.failures[0].values == {
        "tried_bytes": 2097152,
        "free_at_failure_bytes": 2031616,
        "cuda_total_bytes": 23661248512,
    }
