"""To come."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Component, MemoryTerm
from vllm_capacity.overheads.terms import nothing


def lora_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    yield nothing("lora", Component.LORA, "not asked for", source="engine/arg_utils.py")
