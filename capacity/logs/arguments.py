"""The arguments that vLLM prints: `non-default args: {...}` and `Initializing a V1 LLM engine (v...) with
config: ...`.

Both are Python reprs with objects in them (`<CUDAGraphMode.FULL: 2>`, `CompilationConfig(...)`), so nothing
is evaluated:
text is split at its own commas, literals are read as literals, and the rest stays text.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DEPTH = 16
SECRET = frozenset({"api_key", "hf_token", "ssl_keyfile_password"})

_OPEN, _CLOSE = "([{<", ")]}>"


def parse_non_default(text: str) -> dict[str, Any]:
    """The mapping of a `non-default args` line; empty where it is none. Secrets are left out."""
    start = text.find("{")
    if start < 0:
        return {}
    body = text[start + 1 : text.rfind("}") if text.rstrip().endswith("}") else len(text)]
    values = {}
    for part in split_top(body):
        key, colon, value = _partition_top(part, ":")
        name = _literal(key)
        if colon and isinstance(name, str) and name not in SECRET:
            values[name] = _literal(value)
    return values


def parse_engine_config(text: str) -> dict[str, Any]:
    """The `name=value` pairs of the engine's config line (VllmConfig.__str__, config/vllm.py)."""
    _, _, body = text.partition("with config:")
    values = {}
    for part in split_top(body):
        key, equals, value = _partition_top(part, "=")
        if equals and key.strip().isidentifier():
            values[key.strip()] = _literal(value)
    return values


def split_top(text: str) -> Iterator[str]:
    """The text at its commas that stand in no bracket and no string."""
    start = 0
    for position, char in _outside(text):
        if char == ",":
            yield text[start:position]
            start = position + 1
    if text[start:].strip():
        yield text[start:]


def _partition_top(text: str, separator: str) -> tuple[str, str, str]:
    for position, char in _outside(text):
        if char == separator:
            return text[:position], separator, text[position + 1 :]
    return text, "", ""


def _outside(text: str) -> Iterator[tuple[int, str]]:
    """Characters outside brackets and strings."""
    depth, quote, escaped = 0, "", False
    for position, char in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == quote:
                quote = ""
        elif char in "'\"" and (not position or not text[position - 1].isalnum()):
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth = max(depth - 1, 0)
        elif depth == 0:
            yield position, char


def _literal(text: str, depth: int = 0) -> Any:
    text = text.strip()
    if len(text) > 20_000 or depth > MAX_DEPTH:
        return text[:200]
    if text.startswith("<") and text.endswith(">") and ":" in text:
        return text[1:-1].rpartition(":")[0].rpartition(".")[2] or text  # an enum member: its name
    if text.startswith("{") and text.endswith("}"):
        result: dict[str, Any] = {}
        for part in split_top(text[1:-1]):
            key, colon, value = _partition_top(part, ":")
            if not colon:
                break
            result[str(_literal(key, depth + 1))] = _literal(value, depth + 1)
        return result
    if text.startswith("[") and text.endswith("]"):
        return [_literal(part, depth + 1) for part in split_top(text[1:-1])]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a backslash in a path is nothing to tell the reader of a log
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text
    return value if isinstance(value, (str, int, float, bool, type(None), list, tuple, dict)) else text


def as_flag_values(non_default: Mapping[str, Any]) -> dict[str, Any]:
    """What of a non-default mapping are engine flags: objects that are no plain values are left out."""
    return {
        name: value
        for name, value in non_default.items()
        if isinstance(value, (str, int, float, bool, list, tuple, dict)) and not _is_object(value)
    }


def _is_object(value: Any) -> bool:
    return isinstance(value, str) and (("(" in value and "=" in value) or value.startswith("<"))
