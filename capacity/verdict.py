"""The verdict: does it start, which limit decides, and how far it is from the limits around it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vllm_capacity.answer import ConcurrencyAnswer, RankPlan, Status, Verdict
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineConfig
from vllm_capacity.errors import Reason
from vllm_capacity.frozen import dataclass
from vllm_capacity.kv_cache.planning import Filling, KVCachePlan, estimate_max_model_len
from vllm_capacity.ledger import Allocator, Component, Lifetime
from vllm_capacity.overheads.requests import SAMPLER_WARMUP, WARMUP_BEFORE_GRAPHS
from vllm_capacity.releases.release import Release
from vllm_capacity.units import GIB

_Finding = tuple[Reason, str] | None


def judge(
    ranks: Sequence[RankPlan],
    kv_cache: KVCachePlan,
    *,
    engine: EngineConfig,
    device: Device,
    release: Release,
    used_by_others_bytes: int,
    at_low: Filling,
    at_high: Filling,
    concurrency: int | None,
) -> Verdict:
    """Checks in the order of vLLM's start-up; `at_low`/`at_high` are what the ends of the interval make of the pool."""
    total = device.cuda_total_bytes
    caches: tuple[KVCachePlan | Filling, ...] = (kv_cache, at_low, at_high)
    nominal, worst, best = (
        _first(_checks(uses, cache, engine, total, used_by_others_bytes))
        for uses, cache in zip(_uses(ranks), caches, strict=True)
    )
    if (worst is None) == (best is None):
        status = Status.STARTS if nominal is None else Status.DOES_NOT_START
    else:
        status = Status.TOO_CLOSE
    finding = nominal or (worst if status is Status.TOO_CLOSE else None)
    unclaimed = status is Status.STARTS and device.vendor != "nvidia"
    max_gpu_memory_utilization = _max_utilization(ranks, total)
    return Verdict(
        status=Status.TOO_CLOSE if unclaimed else status,
        reason=finding[0] if finding else None,
        message=finding[1] if finding else NOT_CLAIMED if unclaimed else "",
        max_model_len_that_fits=_longest(kv_cache, engine, release),
        min_gpu_memory_utilization=_utilization_for(ranks, kv_cache, release, total, requests=1, limit=1.0),
        max_gpu_memory_utilization=max_gpu_memory_utilization,
        concurrency=None
        if concurrency is None
        else _concurrency(ranks, kv_cache, release, total, concurrency, max_gpu_memory_utilization),
    )


def _first(findings: Iterable[_Finding]) -> _Finding:
    return next((finding for finding in findings if finding is not None), None)


@dataclass(frozen=True, slots=True)
class _Use:
    """Device bytes of one rank by lifetime at one end of its terms' intervals, the KV cache apart."""

    rank: RankPlan
    by_lifetime: Mapping[Lifetime, int]
    sampler_warmup: int

    def during(self, lifetimes: Iterable[Lifetime]) -> int:
        return sum([self.by_lifetime[lifetime] for lifetime in lifetimes])


_NOTHING = dict.fromkeys(Lifetime, 0)


def _uses(ranks: Sequence[RankPlan]) -> tuple[list[_Use], list[_Use], list[_Use]]:
    """Nominal, worst and best use of each rank, in one pass over its terms."""
    nominal, worst, best = [], [], []
    for rank in ranks:
        sums, highs, lows = _NOTHING.copy(), _NOTHING.copy(), _NOTHING.copy()
        warmup = [0, 0, 0]
        for t in rank.terms:
            if not t.high or t.allocator is Allocator.HOST or t.component is Component.KV_CACHE:
                continue
            if t.name == SAMPLER_WARMUP:
                warmup = [t.n_bytes, t.high, t.low]
            elif t.name == WARMUP_BEFORE_GRAPHS:
                graphs = rank.graph_actual_bytes
                warmup = [max(0, n - graphs) for n in (t.n_bytes, t.high, t.low)]
            sums[t.lifetime] += t.n_bytes
            highs[t.lifetime] += t.high
            lows[t.lifetime] += t.low
        nominal.append(_Use(rank, sums, warmup[0]))
        worst.append(_Use(rank, highs, warmup[1]))
        best.append(_Use(rank, lows, warmup[2]))
    return nominal, worst, best


def _checks(
    uses: Sequence[_Use],
    kv_cache: KVCachePlan | Filling,
    engine: EngineConfig,
    total: int,
    used_by_others: int,
) -> Iterator[_Finding]:
    for use in uses:
        yield _free_at_start(
            use.rank, engine, total, total - used_by_others - use.during((Lifetime.BEFORE_SNAPSHOT,))
        )
    for use in uses:
        loaded = used_by_others + use.during(_BEFORE_PROFILE) + use.rank.load_transient_bytes
        yield _over(Reason.LOAD_PEAK, "while loading the weights", loaded, total)
    if kv_cache.refusal is not None:
        yield kv_cache.refusal.reason, kv_cache.refusal.message
    for use in uses:
        yield _over(Reason.NO_KV_MEMORY, "in the profile run", used_by_others + use.during(_AT_PEAK), total)
    for use in uses:
        block_bytes = use.rank.kv_bytes // max(use.rank.kv_blocks, 1)
        up = used_by_others + use.during(_ONCE_UP) + kv_cache.num_blocks * block_bytes
        yield _over(Reason.GRAPH_CAPTURE, "while capturing CUDA graphs", up, total)
        yield _over(
            Reason.SAMPLER_WARMUP,
            "in the sampler warm-up",
            up + use.sampler_warmup,
            total,
        )


NOT_CLAIMED = (
    "Weights and KV cache are planned, but no start on this vendor's GPUs is recorded, so none is promised: its runtime, "
    "communication and kernels take other memory."
)

_BEFORE_PROFILE = frozenset({Lifetime.BEFORE_SNAPSHOT, Lifetime.RUNNER_INIT, Lifetime.LOAD})
_AT_PEAK = _BEFORE_PROFILE | {Lifetime.PROFILE_TRANSIENT, Lifetime.PROFILE_PERSISTENT}
_ONCE_UP = _BEFORE_PROFILE | {Lifetime.PROFILE_PERSISTENT, Lifetime.AFTER_PROFILE}


def _free_at_start(rank: RankPlan, engine: EngineConfig, total: int, free: int) -> _Finding:
    """`request_memory`, v1/worker/utils.py:425-445 (0.26.0), word for word."""
    requested = rank.budget.requested_bytes
    if free >= requested:
        return None
    return (
        Reason.FREE_BELOW_REQUESTED,
        f"Free memory on device cuda:0 ({_round(free)}/{_round(total)} GiB) on startup is less than desired GPU memory "
        f"utilization ({engine.gpu_memory_utilization}, {_round(requested)} GiB). Decrease GPU memory utilization or reduce "
        "GPU memory used by other processes.",
    )


def _round(n_bytes: int) -> str:
    return f"{round(n_bytes / GIB, 2)}"


def _over(reason: Reason, when: str, n_bytes: int, total: int) -> _Finding:
    if n_bytes <= total:
        return None
    return (
        reason,
        f"CUDA out of memory {when}: {_round(n_bytes)} GiB are needed, the GPU has {_round(total)} GiB.",
    )


def _longest(kv_cache: KVCachePlan, engine: EngineConfig, release: Release) -> int | None:
    """The largest max_model_len, up to what the model allows, whose single request fits; None without a KV cache."""
    if not kv_cache.stages:
        return None
    ceiling = max(engine.derived_max_model_len, engine.max_model_len)
    limits = kv_cache.limits.at(ceiling)
    lengths = []
    for stage in kv_cache.stages:
        n_bytes = kv_cache.num_blocks * stage.bytes_per_block
        if release.has("null_block_in_admission"):
            n_bytes -= stage.bytes_per_block
        lengths.append(
            estimate_max_model_len(stage.groups, limits, release, n_bytes, block_bytes=stage.bytes_per_block)
        )
    return min(lengths)


def _utilization_for(
    ranks: Sequence[RankPlan],
    kv_cache: KVCachePlan,
    release: Release,
    total: int,
    *,
    requests: int,
    limit: float,
) -> float | None:
    """The least utilisation, to four digits as vLLM prints it, at which `requests` whole requests fit at once."""
    if not kv_cache.stages:
        return None
    needed_blocks = requests * kv_cache.blocks_per_request
    if requests > 1 or release.has("null_block_in_admission"):
        needed_blocks += 1  # the null block takes no request
    least = 0.0
    for rank in ranks:
        stage = kv_cache.stages[rank.ranks[0][1]]
        cache = max(needed_blocks * stage.bytes_per_block, stage.request_bytes if requests == 1 else 0)
        needed = rank.budget.non_kv_bytes + rank.budget.graph_applied_bytes + cache
        least = max(least, needed / total)
    rounded = math.ceil(least * 10_000) / 10_000
    return rounded if rounded <= limit else None


def _max_utilization(ranks: Sequence[RankPlan], total: int) -> float:
    free = min(rank.budget.free_bytes for rank in ranks)
    return max(min(math.floor(free / total * 10_000) / 10_000, 1.0), 0.0)


def _concurrency(
    ranks: Sequence[RankPlan],
    kv_cache: KVCachePlan,
    release: Release,
    total: int,
    requested: int,
    limit: float,
) -> ConcurrencyAnswer:
    # Block 0 is vLLM's null block and holds no request (v1/core/block_pool.py:188-191, 0.26.0).
    fits = kv_cache.num_blocks - 1 >= requested * kv_cache.blocks_per_request
    return ConcurrencyAnswer(
        asked=requested,
        fits=fits,
        min_gpu_memory_utilization=_utilization_for(
            ranks, kv_cache, release, total, requests=requested, limit=limit
        ),
    )
