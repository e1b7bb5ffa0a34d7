"""How much room a plan has at one step of vLLM's start: bytes on the tightest rank, negative where it does
not fit."""

from __future__ import annotations

from vllm_capacity.answer import Plan, RankPlan
from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Allocator, Component, Lifetime
from vllm_capacity.logs.failures import Phase
from vllm_capacity.overheads.requests import SAMPLER_WARMUP

_LOADED = frozenset({Lifetime.BEFORE_SNAPSHOT, Lifetime.RUNNER_INIT, Lifetime.LOAD})
_PROFILED = _LOADED | {Lifetime.PROFILE_PERSISTENT}
_UP = _PROFILED | {Lifetime.AFTER_PROFILE}

BUDGET = frozenset({Reason.NO_KV_MEMORY, Reason.ONE_REQUEST_DOES_NOT_FIT})
"""Reasons that vLLM's arithmetic gives, not the GPU."""


def budget_margin(plan: Plan) -> int:
    """Memory available for the KV cache less what one request needs (v1/core/kv_cache_utils.py:
    check_enough_kv_cache_memory)."""
    rest = []
    for rank in plan.ranks:
        if not plan.kv_cache.stages:
            rest.append(rank.budget.available_kv_bytes)
            continue
        stage = plan.kv_cache.stages[rank.ranks[0][1]]
        null_block = stage.bytes_per_block if plan.release.has("null_block_in_admission") else 0
        rest.append(rank.budget.available_kv_bytes - stage.request_bytes - null_block)
    return min(rest)


def request_bytes(plan: Plan) -> int:
    """What one request of max_model_len needs on the rank where it needs most."""
    return max((stage.request_bytes for stage in plan.kv_cache.stages), default=0)


def free_margin(plan: Plan) -> int:
    """Free memory at the start less the requested share (v1/worker/utils.py: request_memory)."""
    return min(rank.budget.free_bytes - rank.budget.requested_bytes for rank in plan.ranks)


def device_margin(plan: Plan, phase: Phase) -> int:
    """Device memory left at a step's peak, other processes' share taken off."""
    total = plan.device.cuda_total_bytes - plan.used_by_others_bytes
    return min(total - _used(plan, rank, phase) for rank in plan.ranks)


def _used(plan: Plan, rank: RankPlan, phase: Phase) -> int:
    if phase in (Phase.INIT, Phase.LOAD, Phase.REPACK):
        return _sum(rank, _LOADED) + rank.load_transient_bytes
    if phase is Phase.PROFILE:
        return _sum(rank, _PROFILED | {Lifetime.PROFILE_TRANSIENT})
    if phase in (Phase.MINIMAL_KV, Phase.GRAPH_ESTIMATE):
        graphs = rank.budget.graph_estimate_bytes if phase is Phase.GRAPH_ESTIMATE else 0
        return _sum(rank, _PROFILED) + minimal_kv_bytes(plan, rank) + graphs
    used = _sum(rank, _UP if phase is not Phase.KV_ALLOCATION else _PROFILED) + rank.kv_bytes
    if phase in (Phase.SAMPLER_WARMUP, Phase.KERNEL_WARMUP):
        used += sum(t.n_bytes for t in rank.terms if t.name == SAMPLER_WARMUP)
    return used


def minimal_kv_bytes(plan: Plan, rank: RankPlan) -> int:
    """The KV cache made to profile graphs: one block per sequence or capture size, whichever is less.

    Source: `_init_minimal_kv_cache_for_profiling`, v1/worker/gpu_model_runner.py:6439-6465 (0.26.0). Nothing
    is made
    without graphs.
    """
    engine = plan.engine
    sizes = engine.cudagraph_capture_sizes
    if engine.cudagraph_mode == "NONE" or not sizes or not plan.kv_cache.stages:
        return 0
    blocks = min(engine.max_num_seqs, max(sizes)) or 1
    return blocks * plan.kv_cache.stages[rank.ranks[0][1]].bytes_per_block


def _sum(rank: RankPlan, lifetimes: frozenset[Lifetime]) -> int:
    return sum(
        t.n_bytes
        for t in rank.terms
        if t.lifetime in lifetimes
        and t.allocator is not Allocator.HOST
        and t.component is not Component.KV_CACHE
        and t.name != SAMPLER_WARMUP
    )


def margin(plan: Plan, cause: object, phase: Phase) -> int:
    """The margin that decides about a cause at a step."""
    if cause is Reason.FREE_BELOW_REQUESTED:
        return free_margin(plan)
    if cause in BUDGET and phase not in (Phase.PROFILE, Phase.KV_ALLOCATION):
        return budget_margin(plan)
    return device_margin(plan, phase)
