"""One word for one thing (docs/glossary.md): what is never right is looked for in docs, help texts, messages and JSON keys."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from vllm_capacity.cli import COMMANDS, group
from vllm_capacity.report.schema import plan_schema

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import import_picture  # noqa: E402
from doc_examples import BLOCK, PAGES  # noqa: E402

EVERYWHERE = {
    "GPU memory": r"\bV-?RAM\b",
    "KV cache": r"\bKV-cache|\bkvcache\b|\b[Kk]ey-value cache",
    "GPU": r"\b(?:GPU|graphics) cards?\b",
    "measured constant": r"\bfudge\b",
}
"""The right word -> what is wrong wherever it stands."""
IN_PROSE = {
    "quantised": r"\b(?:de|un)?quantiz(?:ed|es|ing|e)\b",
    "British spelling": r"\b(?:optimi|initiali|recogni|normali|summari|organi|seriali)z\w+|\b(?:colors?|behaviors?|centers?)\b",
    "KV cache": r"\b[Kk]v cache\b",
    "out of memory": r"\bOOM\b",
    "longest request, context": r"\bcontext window\b",
}
"""The right word -> what is wrong in sentences; code, names and vLLM's own texts may have it."""
NAMES_OF_OTHERS = re.compile(r"[\w.-]+/[\w.-]+|--[\w-]+|\w*_\w+|Engine core initialization failed")
"""Model ids and paths, flags, identifiers, and a message of vLLM's that is a page's title."""


def wrong(text: str, words: dict[str, str]) -> list[str]:
    return [
        f"{found[0]!r}: say {right}"
        for right, pattern in words.items()
        for found in re.finditer(pattern, text)
    ]


def prose(text: str) -> str:
    """Markdown without code, comments, link targets and names of others."""
    text = re.sub(r"<!--.*?-->", "", BLOCK.sub("", text), flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "", text))
    return NAMES_OF_OTHERS.sub("", text)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_pages_use_the_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.name == "glossary.md":
        text = re.sub(r"\|[^|\n]*\|$", "|", text, flags=re.MULTILINE)
    assert not wrong(re.sub(r"\]\([^)]*\)", "]", text), EVERYWHERE)
    assert not wrong(prose(text), IN_PROSE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_uses_the_words(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    texts = [command.help or "", *(str(getattr(p, "help", "") or "") for p in command.params)]
    assert not [found for text in texts for found in wrong(text, EVERYWHERE) + wrong(prose(text), IN_PROSE)]


def literals(path: Path) -> Iterator[str]:
    """Strings of a module, without docstrings."""
    tree = import_picture.tree_of(path)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def test_messages_use_the_words() -> None:
    found = [
        f"{name}: {problem}"
        for name, path in import_picture.modules().items()
        if not name.startswith(("logs.", "diagnosis."))  # these read and quote what others write
        for text in literals(path)
        for problem in wrong(text, EVERYWHERE)
    ]
    assert not found


def keys(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from node.get("properties", {})
        for child in node.values():
            yield from keys(child)
    elif isinstance(node, list):
        for child in node:
            yield from keys(child)


def test_json_keys_use_the_words_and_name_bytes_only() -> None:
    found = set(keys(plan_schema()))
    assert {"kv_cache", "verdict", "requested_bytes"} <= found
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", key) for key in found)
    assert not [
        key
        for key in found
        if re.search(r"vram|kvcache|(?:^|_)(?:gib|gb|mib|mb|kb|mem)$|utilisation|quantis", key)
    ]


def test_a_wrong_word_is_noticed() -> None:
    assert wrong("24 GB of VRAM for the KV-cache", EVERYWHERE) == [
        "'VRAM': say GPU memory",
        "'KV-cache': say KV cache",
    ]
    assert wrong(prose("quantized by `quantized_by_us` of org/quantized"), IN_PROSE) == [
        "'quantized': say quantised"
    ]
