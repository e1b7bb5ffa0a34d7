"""Numbers in a text beside those of its JSON: how a report may write a value, and what of a text JSON has not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from vllm_capacity.units import GIB

NUMBER = re.compile(r"(?<![\w.-])[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w.]*\d)")


def values_in(data: Any) -> Iterator[Any]:
    """Every scalar of a document; of a term without its formula and what explains it."""
    if isinstance(data, dict):
        explained = ("values", "formula", "source") if "formula" in data else ()
        for key, value in data.items():
            if key not in explained:
                yield from values_in(value)
    elif isinstance(data, list):
        for value in data:
            yield from values_in(value)
    else:
        yield data


def spellings(value: Any) -> Iterator[str]:
    """How a report may write a number of the JSON."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if isinstance(value, int):
        yield from (f"{value:,}", str(value), f"{value:+,}", f"{value / GIB:,.2f}", f"{value / GIB:.2f}",
                    f"{value / GIB:,.3f}", f"{value / GIB:.3f}", f"{value / GIB:+.2f}", f"{value / GIB:+,.3f}")  # fmt: skip
    else:
        yield from (f"{value:.2f}", f"{value:.4f}", f"{value:g}")


def without_texts_of(data: Any, shown: str) -> str:
    """A text without the names, flags and messages that JSON holds as they are."""
    texts = {v for v in values_in(data) if isinstance(v, str) and re.search("[A-Za-z]", v)}
    for words in sorted(texts, key=len, reverse=True):
        shown = re.sub(rf"(?<![\w.]){re.escape(words)}(?![\w.]*\d)", " ", shown)
    return shown


def only_in_text(shown: str, data: Any, more: Iterable[str] = ()) -> list[str]:
    """Numbers of a text that no number of the JSON is written like."""
    accepted = {s for value in values_in(data) for s in spellings(value)}
    accepted |= {v for v in values_in(data) if isinstance(v, str)} | set(more)
    return [number for number in NUMBER.findall(without_texts_of(data, shown)) if number not in accepted]
