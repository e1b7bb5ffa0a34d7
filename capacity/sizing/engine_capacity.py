"""How much of a demand one engine takes: the plan's blocks, less a safety margin, divided by what requests hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from vllm_capacity.answer import Plan
from vllm_capacity.kv_cache.planning import tokens_per_block
from vllm_capacity.kv_cache.pool import blocks_per_request
from vllm_capacity.kv_cache.specs import SinkFullAttentionSpec
from vllm_capacity.sizing.demand import Demand
from vllm_capacity.sizing.margins import Margin


class Limit(StrEnum):
    """What keeps one engine from taking more requests."""

    KV_CACHE = "kv_cache"
    MAX_NUM_SEQS = "max_num_seqs"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapacity:
    """One engine (one data-parallel rank). Blocks are per engine; `safe_blocks` leaves out the margin and the null block."""

    sequences: int
    limit: Limit
    safe_blocks: int
    blocks_mean: float
    blocks_p95: int
    shared_blocks: int


def engine_capacity(plan: Plan, demand: Demand, margin: Margin) -> EngineCapacity:
    """How many of the demand's requests one engine of `plan` holds at once.

    n requests need `n x mean + sqrt(n) x (p95 - mean)` blocks of their own and the shared prefix once. What one request may
    take at its worst moment is vLLM's own count, where windows stop growing and a state is one block.
    """
    seqs = plan.engine.max_num_seqs
    if not plan.kv_cache.stages:
        return EngineCapacity(
            sequences=seqs,
            limit=Limit.MAX_NUM_SEQS,
            safe_blocks=0,
            blocks_mean=0.0,
            blocks_p95=0,
            shared_blocks=0,
        )
    per_length = {point.tokens: blocks_for(plan, point.tokens) for point in demand.lengths}
    shared = shared_blocks(plan, demand.shared_tokens)
    mean = sum(per_length[point.tokens] * point.weight for point in demand.lengths) - shared
    p95 = blocks_for(plan, demand.p95_tokens) - shared
    safe = safe_blocks(plan, margin)
    held = _largest_count(safe - shared, max(mean, 0.0), p95)
    return EngineCapacity(
        sequences=min(held, seqs), limit=Limit.KV_CACHE if held <= seqs else Limit.MAX_NUM_SEQS, safe_blocks=safe,
        blocks_mean=mean, blocks_p95=p95, shared_blocks=shared,
    )  # fmt: skip


def blocks_for(plan: Plan, tokens: int) -> int:
    """Blocks that a request of `tokens` tokens may take at its worst moment."""
    cache = plan.kv_cache
    if tokens == cache.max_model_len:
        return cache.blocks_per_request
    return blocks_per_request(
        cache.stages[0].groups, replace(cache.limits, max_model_len=tokens), cache.release
    )


def safe_blocks(plan: Plan, margin: Margin) -> int:
    """Blocks for requests if every rank gets the lower of its interval's end and its plan less our own error.

    Block 0 is vLLM's null block and holds no request (v1/core/block_pool.py:188-191, 0.26.0); a sink takes its blocks once.
    """
    cache, engine = plan.kv_cache, plan.engine
    blocks = cache.num_blocks
    if engine.num_gpu_blocks_override is None and engine.kv_cache_memory_bytes is None:
        for rank in plan.ranks:
            stage = cache.stages[rank.ranks[0][1]]
            available = min(
                rank.budget.available_kv_low_bytes, rank.budget.available_kv_bytes - margin.n_bytes
            )
            blocks = min(blocks, available // stage.bytes_per_block)
    for group in cache.groups:
        if isinstance(group.spec, SinkFullAttentionSpec) and group.spec.sink_len:
            blocks -= group.spec.sink_len // group.spec.block_size
    return max(blocks - 1, 0)


def shared_blocks(plan: Plan, tokens: int) -> int:
    """Whole blocks of the common prefix, in the groups that keep the whole context, where prefix caching is on."""
    if not tokens or not plan.engine.enable_prefix_caching:
        return 0
    limits = plan.kv_cache.limits
    growing = (tokens_per_block(group.spec, limits) for group in plan.kv_cache.groups)
    return sum(tokens // per_block for per_block in growing if per_block is not None)


def _largest_count(blocks: int, mean: float, p95: int) -> int:
    """The largest n with n x mean + sqrt(n) x (p95 - mean) <= blocks, and one request of p95 blocks must fit."""
    if blocks < max(p95, mean) or blocks <= 0:
        return 0
    if mean <= 0:
        return blocks
    spread = max(p95 - mean, 0.0)
    root = (-spread + math.sqrt(spread * spread + 4 * mean * blocks)) / (2 * mean)
    count = int(root * root) + 2
    while count and count * mean + math.sqrt(count) * spread > blocks + 1e-9:
        count -= 1
    return count
