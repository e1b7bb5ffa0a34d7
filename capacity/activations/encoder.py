"""Hook for the multimodal encoder's part of the profile run."""

from __future__ import annotations

from vllm_capacity.activations.live import Phase
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import MemoryTerm


def encoder_phases(ctx: RankContext, kept: tuple[MemoryTerm, ...]) -> tuple[list[Phase], tuple[MemoryTerm, ...]]:
    """The encoder's own phase, and what it leaves alive while the language model runs."""
    del ctx, kept
    return [], ()
