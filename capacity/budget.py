"""vLLM's accounting: from a rank's ledger to the bytes that are left for the KV cache.

This is the only module that knows which term a release subtracts. Terms state physical facts (allocator, lifetime); the map
from those to an account changed in 0.27.0 and no term had to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cache

from vllm_capacity.frozen import dataclass
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm
from vllm_capacity.releases.release import Release


class Account(StrEnum):
    """What a release makes of a term."""

    WEIGHTS = "weights"
    """`model_memory_usage`: what "Model loading took" prints."""
    ACTIVATION = "activation"
    """`torch_peak_increase` of MemoryProfilingResult."""
    NON_TORCH = "non_torch"
    """`non_torch_increase` of MemoryProfilingResult."""
    RUNNER_BUFFERS = "runner_buffers"
    """The runner's own tensors: part of `total_consumed` from 0.27.0 on, in no figure before."""
    CUDA_GRAPHS = "cuda_graphs"
    """The graphs themselves, captured after the KV cache; the budget subtracts an estimate of them."""
    KV_CACHE = "kv_cache"
    OUTSIDE = "outside"
    """Real bytes that this release's accounting leaves out: they must fit beside the requested share."""


_NOTHING = dict.fromkeys(Account, 0)
_DURING_PROFILE = frozenset({Lifetime.PROFILE_TRANSIENT, Lifetime.PROFILE_PERSISTENT})
_BETWEEN_SNAPSHOTS = frozenset({Lifetime.RUNNER_INIT, Lifetime.LOAD, Lifetime.PROFILE_PERSISTENT})

INSIDE = (Account.WEIGHTS, Account.ACTIVATION, Account.NON_TORCH, Account.RUNNER_BUFFERS)
"""The accounts that are subtracted from the requested share."""


def account_of(term: MemoryTerm, release: Release) -> Account:
    """The account a release puts a term in.

    Source: `determine_available_memory`, v1/worker/gpu_worker.py, and `memory_profiling`, utils/mem_utils.py. Up to
    0.26.0: weights + torch peak increase + non-torch increase, so tensors of the runner that exist before profiling are in
    no figure. From 0.27.0 (feature `consumed_accounting`): free memory before minus after, plus the transient peak, so
    every persistent byte between the two snapshots counts.
    """
    return _account(term.component, term.allocator, term.lifetime, release.has("consumed_accounting"))


@cache
def _account(component: Component, allocator: Allocator, lifetime: Lifetime, consumed: bool) -> Account:
    if component is Component.KV_CACHE:
        return Account.KV_CACHE
    if allocator is Allocator.HOST:
        return Account.OUTSIDE
    if component is Component.CUDA_GRAPHS:
        return Account.CUDA_GRAPHS
    if allocator is Allocator.CUDA:
        return Account.NON_TORCH if lifetime in _BETWEEN_SNAPSHOTS else Account.OUTSIDE
    if lifetime is Lifetime.LOAD:
        return Account.WEIGHTS
    if lifetime in _DURING_PROFILE:
        return Account.ACTIVATION
    if lifetime is Lifetime.RUNNER_INIT and consumed:
        return Account.RUNNER_BUFFERS
    return Account.OUTSIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBudget:
    """One rank's budget in bytes, under vLLM's own names.

    `available_kv_bytes` may be negative; `available_kv_low_bytes` and `available_kv_high_bytes` follow from the terms'
    intervals. `free_bytes` is what the device has free at vLLM's baseline snapshot.
    """

    accounts: tuple[Account, ...]
    """Account of each term, in the ledger's order."""
    totals: dict[Account, int]
    free_bytes: int
    free_low: int
    requested_bytes: int
    graph_estimate_bytes: int
    graph_applied_bytes: int
    available_kv_bytes: int
    available_kv_low_bytes: int
    available_kv_high_bytes: int

    @property
    def non_kv_bytes(self) -> int:
        """`non_kv_cache_memory`: what is subtracted before the graph estimate."""
        return sum(self.totals[account] for account in INSIDE)


def requested_bytes(cuda_total_bytes: int, utilization: float) -> int:
    """`request_memory`, v1/worker/utils.py: the share of TOTAL memory that vLLM may use, in bytes."""
    return math.ceil(cuda_total_bytes * utilization)


def rank_budget(
    terms: Sequence[MemoryTerm],
    release: Release,
    *,
    cuda_total_bytes: int,
    used_by_others_bytes: int,
    utilization: float,
    kv_cache_memory_bytes: int | None,
    graph_estimate: MemoryTerm | None,
    graph_estimate_enabled: bool,
) -> RankBudget:
    """The budget of one rank.

    `graph_estimate` is vLLM's own estimate (None or 0 bytes where it makes none); `graph_estimate_enabled` is
    VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS after the release's default. With `kv_cache_memory_bytes` vLLM skips the
    subtraction and takes that figure (gpu_worker.py, `determine_available_memory`).
    """
    accounts = tuple([account_of(t, release) for t in terms])
    totals = _NOTHING.copy()
    slack_low = slack_high = 0
    for t, account in zip(terms, accounts, strict=True):
        totals[account] += t.n_bytes
        if t.low != t.high and account in INSIDE:
            slack_low += t.n_bytes - t.low
            slack_high += t.high - t.n_bytes
    before = [
        t for t in terms if t.lifetime is Lifetime.BEFORE_SNAPSHOT and t.allocator is not Allocator.HOST
    ]
    free = cuda_total_bytes - used_by_others_bytes - sum(t.n_bytes for t in before)
    estimate = graph_estimate.n_bytes if graph_estimate else 0
    applied = estimate if graph_estimate_enabled else 0
    if graph_estimate and graph_estimate_enabled:
        slack_low += estimate - graph_estimate.low
        slack_high += graph_estimate.high - estimate
    requested = requested_bytes(cuda_total_bytes, utilization)
    if kv_cache_memory_bytes:
        available = low = high = kv_cache_memory_bytes
        applied = 0
    else:
        available = requested - sum(totals[account] for account in INSIDE) - applied
        low, high = available - slack_high, available + slack_low
    return RankBudget(
        accounts=accounts,
        totals=totals,
        free_bytes=free,
        free_low=free - sum(t.high - t.n_bytes for t in before),
        requested_bytes=requested,
        graph_estimate_bytes=estimate,
        graph_applied_bytes=applied,
        available_kv_bytes=available,
        available_kv_low_bytes=low,
        available_kv_high_bytes=high,
    )


def device_bytes(terms: Iterable[MemoryTerm], lifetimes: Iterable[Lifetime]) -> int:
    """Sum over the terms that live on the device with one of these lifetimes."""
    wanted = frozenset(lifetimes)
    return sum([t.n_bytes for t in terms if t.lifetime in wanted and t.allocator is not Allocator.HOST])


PERSISTENT = frozenset(
    {
        Lifetime.BEFORE_SNAPSHOT,
        Lifetime.RUNNER_INIT,
        Lifetime.LOAD,
        Lifetime.PROFILE_PERSISTENT,
        Lifetime.AFTER_PROFILE,
    }
)
"""What is in use once the server is up and idle, the KV cache included."""
