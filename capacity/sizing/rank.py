"""Which rows to show, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from vllm_capacity.sizing.row import Row


class Sort(StrEnum):
    """cost: cheapest first; gpus: fewest GPUs, then least memory; headroom: most room; tokens: largest KV cache."""

    COST = "cost"
    GPUS = "gpus"
    HEADROOM = "headroom"
    TOKENS = "tokens"


def best_of(rows: Sequence[Row], sort: Sort) -> Row | None:
    """Of one GPU, model and cache dtype: fewest GPUs bought; among equals plain tensor parallelism with most headroom,
    else the simplest layout.

    With --sort headroom or tokens the equals are told apart by that alone.
    """

    def key(row: Row) -> tuple[Any, ...]:
        if sort is Sort.HEADROOM:
            return not row.starts, row.purchase.gpus_bought, -row.headroom, row.layout
        if sort is Sort.TOKENS:
            return not row.starts, row.purchase.gpus_bought, -row.total_kv_cache_size_tokens, row.layout
        room = -row.headroom if row.layout.plain else 0.0
        return not row.starts, row.purchase.gpus_bought, not row.layout.plain, room, row.layout

    return min(rows, key=key, default=None)


def ranked(rows: Iterable[Row], sort: Sort) -> list[Row]:
    """Rows that start first, in the order asked for; the unquantised model and cache first among equals."""

    def key(row: Row) -> tuple[Any, ...]:
        quality = (row.quantised_variant, row.fp8_cache)
        memory = row.purchase.gpus_bought * row.device.cuda_total_bytes
        first: tuple[Any, ...]
        if sort is Sort.COST:
            first = (row.cost is None, row.cost or 0.0, row.purchase.gpus_bought)
        elif sort is Sort.HEADROOM:
            first = (-row.headroom,)
        elif sort is Sort.TOKENS:
            first = (-row.total_kv_cache_size_tokens,)
        else:
            first = (row.purchase.gpus_bought,)
        return not row.starts, *first, memory, quality, row.device.name, row.model, row.layout

    return sorted(rows, key=key)


def without_needless_loss(rows: Sequence[Row]) -> list[Row]:
    """Leaves out a quantised cache or model on a GPU where the same number of GPUs does it with less loss."""
    kept = []
    for row in rows:
        better = any(
            other.node == row.node
            and other.starts == row.starts
            and other.purchase.gpus_bought <= row.purchase.gpus_bought
            and _loss(other) < _loss(row)
            and all(a <= b for a, b in zip(_loss(other), _loss(row), strict=True))
            for other in rows
        )
        if not better:
            kept.append(row)
    return kept


def _loss(row: Row) -> tuple[bool, bool]:
    return row.quantised_variant, row.fp8_cache
