"""One quantity, one name: every key of every published schema is described, and every number once (capacity/vocabulary.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity import vocabulary
from vllm_capacity.cli import run
from vllm_capacity.cli.schema import SCHEMAS, published
from vllm_capacity.logs.failures import OOM_FIGURES, REFUSALS
from vllm_capacity.logs.formats import FORMATS
from vllm_capacity.logs.prose import PROSE
from vllm_capacity.logs.record import LogRecord

ROOT = Path(__file__).parents[2]


@cache
def documents() -> dict[str, dict[str, Any]]:
    """The schemas of `schema`, and the API's own."""
    from vllm_capacity.web.app import create_app
    from vllm_capacity.web.settings import WebSettings

    api = create_app(WebSettings(page=False)).openapi()
    return {
        **{name: published(name) for name in SCHEMAS},
        "a whole log": LogRecord.model_json_schema(),
        "the API": {"$defs": api["components"]["schemas"]},
    }


def members() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """(where, key, its schema, the definitions beside it) of every property."""
    for name, document in documents().items():
        definitions = document.get("$defs", {})
        for title, schema in {**definitions, "": document}.items():
            for key, member in schema.get("properties", {}).items():
                yield f"{name} {title}", key, member, definitions


def test_every_key_is_described() -> None:
    missing = [
        f"{where}.{key}"
        for where, key, member, definitions in members()
        if not member.get("description")
        and not definitions.get(member.get("$ref", "").rpartition("/")[2], {}).get("description")
    ]
    assert not missing


def test_every_number_has_the_unit_and_the_meaning_of_the_vocabulary() -> None:
    found = 0
    for where, key, member, _ in members():
        if vocabulary.is_number(member):
            found += 1
            assert (member.get("unit"), member["description"]) == vocabulary.unit_and_meaning(key), (
                where,
                key,
            )
    assert found > 300


def test_a_number_that_is_not_in_the_vocabulary_is_refused() -> None:
    for key in ("kv_tokens", "engine_tokens", "min_utilization", "total_gib"):
        with pytest.raises(KeyError, match=key):
            vocabulary.add_meanings({"properties": {key: {"anyOf": [{"type": "integer"}, {"type": "null"}]}}})


def test_the_unit_of_a_key_is_the_one_that_its_name_ends_in() -> None:
    ends = {
        "_bytes": "bytes", "_gib": "GiB", "_mib": "MiB", "_seconds": "seconds", "_s": "seconds", "_percent": "per cent",
        "_tokens": "tokens", "_blocks": "blocks", "_watts": "watts", "_ms": "milliseconds", "_per_second": " per second",
    }  # fmt: skip
    for key in (*vocabulary.QUANTITIES, *vocabulary.NUMBERS):
        unit, _ = vocabulary.unit_and_meaning(key)
        for end, word in ends.items():
            if key.endswith(end):
                assert word in unit, key
        for end in ("bytes", "GiB", "MiB"):
            if unit == end and key not in RAW:
                assert re.search(end.lower(), key), key


RAW = {
    "requested_memory", "model_memory_usage", "graph_estimate", "graph_applied", "graph_actual", "returned", "workspaces",
    "buffers", "stages",
}  # fmt: skip
"""A record's measurements, under the names that vLLM has for them."""


def test_no_word_and_no_meaning_stands_for_two_keys() -> None:
    words = [item.word for item in vocabulary.QUANTITIES.values()]
    assert len(set(words)) == len(words)
    assert not vocabulary.QUANTITIES.keys() & vocabulary.NUMBERS.keys()
    meanings = [vocabulary.unit_and_meaning(key)[1] for key in (*vocabulary.QUANTITIES, *vocabulary.NUMBERS)]
    twice = {text for text in meanings if meanings.count(text) > 1}
    assert twice <= {"The same in GiB.", "Requests of max_model_len tokens at once."}


def test_no_number_of_the_vocabulary_is_left_over() -> None:
    """Each is a key of some schema, or stands for one inside of `kv_cache`; `consumed` and `one request` name rows."""
    used = {vocabulary.INSIDE_KV_CACHE.get(key, key) for _, key, _, _ in members()}
    quoted = {f"{key.removesuffix('_gib')}_bytes" for key in used if key.endswith("_gib")}
    assert set(vocabulary.NUMBERS) <= used
    assert vocabulary.QUANTITIES.keys() - used - quoted <= {"request_bytes"}


def test_figures_read_from_logs_have_the_names_of_the_vocabulary() -> None:
    """Failures keep theirs in `values`, which no schema lists: the quantities among them have no second name either."""
    fields = {name for item in FORMATS for name in item.fields}
    fields |= {name for _, _, names in PROSE for name in names}
    fields |= {name for _, _, names in REFUSALS for name in names} | {name for name, _ in OOM_FIGURES}
    retired = re.compile(
        r"kv_tokens|(?<!memory_)utilization|total_gib|(?<!num_)(?<!max_num_)batched_tokens|num_gpu_blocks$|needed|model_loading"
    )
    assert not [
        name
        for name in fields
        if retired.search(name) and name not in ("cuda_total_gib", "workspace_total_gib")
    ]


def words_at_line_starts(text: str) -> set[str]:
    """First cells of a table: what stands before two spaces."""
    return {cell for line in text.splitlines() if (cell := re.split(r" {2,}", line.strip())[0])}


def test_tables_for_people_use_the_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = {item.word for item in vocabulary.QUANTITIES.values()}
    model = ("--model", "Qwen/Qwen3-8B", "--gpu", "H100", "--vllm-version", "0.26.0")
    run(["plan", *model, "--tp", "1,2"])
    columns = words_at_line_starts(capsys.readouterr().out) - {"verdict", "tp 1"}
    assert columns <= words
    assert len(columns) >= 9
    run(["compare", "--tp 1", "--tp 2", *model])
    shown = words_at_line_starts(capsys.readouterr().out.partition("terms of")[0])
    assert shown - words == {"--tp 1", "verdict", "status", "settings", "result", "budget"}
    run(["explain", "--offline", str(ROOT / "tests" / "data" / "logs" / "scenarios" / "sampler_warmup.log")])
    logged = capsys.readouterr().out.partition("Predicted against logged (per GPU)\n")[2].partition("\n\n")[0]
    assert words_at_line_starts(logged) <= words
    assert len(logged.splitlines()) >= 9


def test_the_glossary_shows_every_quantity() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert rows == [(item.word, key, item.unit) for key, item in vocabulary.QUANTITIES.items()]
