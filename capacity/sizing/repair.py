"""The gentlest change that lets a layout start where only the share of memory or the number of sequences keeps it from it."""

from __future__ import annotations

import math
from dataclasses import replace

from vllm_capacity.answer import Plan, RankPlan
from vllm_capacity.budget import PERSISTENT
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Allocator, Component
from vllm_capacity.overheads.requests import SAMPLER_WARMUP

_SHARE_TOO_LARGE = frozenset({Reason.FREE_BELOW_REQUESTED, Reason.GRAPH_CAPTURE, Reason.SAMPLER_WARMUP})


def repair(asked: EngineArgs, args: EngineArgs, plan: Plan) -> EngineArgs | None:
    """The gentlest change that lets it start, or None. What the user set is left alone."""
    reason = plan.verdict.reason
    if reason in _SHARE_TOO_LARGE and asked.gpu_memory_utilization is None and not args.kv_cache_memory_bytes:
        share = math.floor(100 * min(_safe_share(plan, rank) for rank in plan.ranks)) / 100
        given_up = math.floor((plan.engine.gpu_memory_utilization - share) * plan.device.cuda_total_bytes)
        if share > 0 and given_up > 0 and _leaves_a_request(plan, given_up):
            return replace(args, gpu_memory_utilization=share)
    if reason is Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS and asked.max_num_seqs is None:
        stages = plan.kv_cache.stages
        fewest = min(
            rank.budget.available_kv_low_bytes // stages[rank.ranks[0][1]].bytes_per_block
            for rank in plan.ranks
        )
        if fewest > 0:
            return replace(args, max_num_seqs=1 << (fewest.bit_length() - 1))
    return None


def _leaves_a_request(plan: Plan, given_up: int) -> bool:
    """Whether a share smaller by so many bytes still holds one request on every rank: else it need not be planned."""
    stages = plan.kv_cache.stages
    return not stages or all(
        rank.budget.available_kv_bytes - given_up >= stages[rank.ranks[0][1]].request_bytes
        for rank in plan.ranks
    )


def _safe_share(plan: Plan, rank: RankPlan) -> float:
    """The share of the GPU with which even the upper ends of all terms leave it in one piece: at start-up and once up."""
    total = plan.device.cuda_total_bytes
    once_up = rank.kv_bytes + sum(
        t.high
        for t in rank.terms
        if t.component is not Component.KV_CACHE
        and t.allocator is not Allocator.HOST
        and (t.lifetime in PERSISTENT or t.name == SAMPLER_WARMUP)
    )
    excess = max(once_up - total, 0)
    return min(rank.budget.free_low / total, plan.engine.gpu_memory_utilization - excess / total)
