"""The ceiling that memory bandwidth puts on decoding, from the bytes that every step must read. No forecast."""

from __future__ import annotations

from vllm_capacity.answer import Plan, RankPlan
from vllm_capacity.architecture.modules import Architecture, MixtureOfExperts
from vllm_capacity.kv_cache.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm_capacity.ledger import Component, MemoryTerm

NOT_READ = frozenset({"encoder", "expert_map", "rope_cache", "allocator_rounding", "draft_rounding"})
"""Weights that a decode step does not read in full: towers run at prefill, tables are looked up row by row."""


def decode_ceiling(plan: Plan, sequences: int, tokens: float) -> float | None:
    """Tokens per second of one replica that nothing exceeds, with `sequences` per engine of `tokens` tokens each.

    Every step reads a rank's weights once (of the experts as many as one token needs, spread over the ranks) and every
    sequence's KV cache once, and makes one token per sequence. The slowest rank decides; arithmetic, links and the experts of
    other tokens come on top. None where the GPU's bandwidth is unknown or nothing is served.
    """
    bandwidth = plan.device.bandwidth_bytes_per_second
    if not bandwidth or sequences < 1:
        return None
    seconds = max(_read_bytes(plan, rank, sequences, tokens) for rank in plan.ranks) / bandwidth
    return plan.engine.parallel.dp * sequences / seconds if seconds else None


def _read_bytes(plan: Plan, rank: RankPlan, sequences: int, tokens: float) -> float:
    weights = sum(_weight_bytes(t, plan.architecture) for t in rank.terms if t.component is Component.WEIGHTS)
    return weights + sequences * _kv_bytes(plan, rank, tokens)


def _weight_bytes(term: MemoryTerm, architecture: Architecture) -> float:
    role = term.name.removeprefix("weights_")
    if role in NOT_READ or (role == "embedding" and not architecture.tie_word_embeddings):
        return 0.0
    if role == "experts":
        return term.n_bytes * _experts_read(architecture)
    return term.n_bytes


def _experts_read(architecture: Architecture) -> float:
    """Share of the experts that a step reads at least: those of one token (all sequences may choose the same ones)."""
    mixtures = [g.feed_forward for g in architecture.layers if isinstance(g.feed_forward, MixtureOfExperts)]
    return min((m.top_k / m.num_experts for m in mixtures), default=1.0)


def _kv_bytes(plan: Plan, rank: RankPlan, tokens: float) -> float:
    if not plan.kv_cache.stages:
        return 0.0
    shards = plan.kv_cache.limits.kv_shards
    total = 0.0
    for group in plan.kv_cache.stages[rank.ranks[0][1]].groups:
        for run in group.layer_specs:
            total += len(run.layers) * _layer_bytes(run.spec, tokens, shards)
    return total


def _layer_bytes(spec: KVCacheSpec, tokens: float, shards: int) -> float:
    """What one layer reads of one sequence: its whole context, its window, or its state."""
    if isinstance(spec, MambaSpec):
        return spec.state_bytes
    per_token = spec.page_size_bytes / spec.block_size
    if isinstance(spec, SlidingWindowSpec):
        return min(tokens, spec.sliding_window) * per_token
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return 0.0  # may have begun a new chunk
    if isinstance(spec, FullAttentionSpec):
        window = spec.sliding_window or spec.attention_chunk_size
        return min(tokens, window) * per_token if window else tokens / shards * per_token
    return 0.0
