"""Figures as people retell them: issue reports and summaries that shorten vLLM's lines ("KV cache available
0.98 GiB").

Tried only on lines that carry no log header and that hold none of vLLM's own formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_capacity.logs.formats import F, N, Value

_X = r"(?:~|about )?" + F + "x"

PROSE: tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (kind, re.compile(pattern.replace("<F>", F).replace("<N>", N).replace("<X>", _X)), fields)
    for kind, pattern, fields in (
        ("consumed", r"[Ww]eights \+ non-torch:? <F> Gi?B", ("consumed_gib",)),
        ("weights", r"\b[Ww]eights(?:/GPU| on GPU| take)?:? <F> Gi?B", ("weights_gib",)),
        ("weights", r"\b<F> Gi?B (?:of )?weights", ("weights_gib",)),
        (
            "available",
            r"KV(?: cache)?(?: available| reported at startup:)?:? <F> Gi?B",
            ("available_kv_gib",),
        ),
        ("available", r"(?<![\d.])<F> GiB (?:of )?(?:KV\b|available|remaining)", ("available_kv_gib",)),
        ("available", r": <F> GiB / [\d,]+ tokens", ("available_kv_gib",)),
        ("tokens", r"KV cache size(?: as reported at startup)?:? <N>\b", ("kv_cache_size_tokens",)),
        ("tokens", r"KV cache:? <N> tokens", ("kv_cache_size_tokens",)),
        ("tokens", r"[Cc]acheable tokens:? <N>", ("kv_cache_size_tokens",)),
        (
            "tokens",
            r"(?:(?:->|/|, |pool of|[Cc]ontext:) ?|^|~)(?<![\d,])<N> tok(?:ens)?\b",
            ("kv_cache_size_tokens",),
        ),
        (
            "concurrency",
            r"<X> (?:max(?:imum)? )?concurrency(?: at <N>)?",
            ("max_concurrency", "concurrency_max_model_len"),
        ),
        ("concurrency", r"[Cc]oncurrency:? <X>", ("max_concurrency",)),
        ("concurrency", r"/ <X> at \d", ("max_concurrency",)),
        ("context", r"\bContext <N> tok", ("concurrency_max_model_len",)),
    )
)
_ANY = re.compile(r"GiB|GB|tokens|concurrency|KV cache size|\btok\b", re.IGNORECASE)


def read_prose(text: str) -> Iterator[tuple[str, dict[str, Value]]]:
    """(kind, figures) that a sentence states; each figure once."""
    if _ANY.search(text) is None or len(text) > 2000:
        return
    seen: set[str] = set()
    for kind, pattern, fields in PROSE:
        match = pattern.search(text)
        if match is None or kind in seen:
            continue
        values: dict[str, Value] = {}
        for name, part in zip(fields, match.groups(), strict=True):
            if part is not None:
                number = part.replace(",", "")
                values[name] = (
                    int(number) if name.endswith(("tokens", "len")) and "." not in number else float(number)
                )
        if values:
            seen.add(kind)
            yield kind, values
