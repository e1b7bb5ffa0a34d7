"""The accounting of both formulas, on terms made by hand; figures of a recorded run close the loop elsewhere."""

from __future__ import annotations

import pytest
from vllm_capacity.budget import PERSISTENT, Account, account_of, device_bytes, rank_budget, requested_bytes
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.releases import get_release
from vllm_capacity.units import GIB, MIB

OLD, NEW = get_release("0.26.0"), get_release("0.27.0")


def make(
    component: Component, n_bytes: int, allocator: Allocator, lifetime: Lifetime, spread: int = 0
) -> MemoryTerm:
    return term(
        f"{component}_{lifetime}", component, "n", allocator=allocator, lifetime=lifetime, source="made by hand",
        low=n_bytes - spread, high=n_bytes + spread, n=n_bytes,
    )  # fmt: skip


LEDGER = (
    make(Component.CUDA_CONTEXT, 500 * MIB, Allocator.CUDA, Lifetime.BEFORE_SNAPSHOT),
    make(Component.RUNNER_BUFFERS, 600 * MIB, Allocator.TORCH, Lifetime.RUNNER_INIT),
    make(Component.WEIGHTS, 15 * GIB, Allocator.TORCH, Lifetime.LOAD),
    make(Component.ACTIVATION, 1 * GIB, Allocator.TORCH, Lifetime.PROFILE_TRANSIENT, spread=50 * MIB),
    make(Component.WORKSPACE, 100 * MIB, Allocator.TORCH, Lifetime.PROFILE_PERSISTENT),
    make(Component.NCCL, 200 * MIB, Allocator.CUDA, Lifetime.PROFILE_PERSISTENT, spread=10 * MIB),
    make(Component.FLASHINFER, 394 * MIB, Allocator.TORCH, Lifetime.AFTER_PROFILE),
    make(Component.CUDA_GRAPHS, 700 * MIB, Allocator.CUDA, Lifetime.AFTER_PROFILE),
    make(Component.OFFLOAD, 8 * GIB, Allocator.HOST, Lifetime.LOAD),
)


def budget(release=OLD, terms=LEDGER, **changes):  # type: ignore[no-untyped-def]
    values = {
        "cuda_total_bytes": 80 * GIB, "used_by_others_bytes": 0, "utilization": 0.92, "kv_cache_memory_bytes": None,
        "graph_estimate": None, "graph_estimate_enabled": True,
    }  # fmt: skip
    return rank_budget(terms, release, **(values | changes))


def test_the_requested_share_is_of_total_memory_rounded_up():
    # H200 of the recorded runs: cudaMemGetInfo total 150109880320, requested 138101089895 at 0.92 (vLLM 0.26.0).
    assert requested_bytes(150109880320, 0.92) == 138101089895


def test_up_to_0_26_runner_buffers_are_in_no_figure():
    result = budget(OLD)
    inside = 15 * GIB + 1 * GIB + 100 * MIB + 200 * MIB
    assert result.non_kv_bytes == inside
    assert result.available_kv_bytes == result.requested_bytes - inside
    assert result.totals[Account.RUNNER_BUFFERS] == 0


def test_from_0_27_every_persistent_byte_between_the_snapshots_counts():
    assert budget(NEW).available_kv_bytes == budget(OLD).available_kv_bytes - 600 * MIB
    assert budget(NEW).totals[Account.RUNNER_BUFFERS] == 600 * MIB


def test_what_exists_before_the_snapshot_only_reduces_free_memory():
    result = budget()
    assert result.free_bytes == result.free_low == 80 * GIB - 500 * MIB
    assert budget(used_by_others_bytes=3 * GIB).free_bytes == 77 * GIB - 500 * MIB
    assert account_of(LEDGER[0], OLD) is Account.OUTSIDE


def test_free_memory_may_be_less_by_what_the_terms_before_the_snapshot_may_be_more():
    context = make(
        Component.CUDA_CONTEXT, 500 * MIB, Allocator.CUDA, Lifetime.BEFORE_SNAPSHOT, spread=40 * MIB
    )
    result = budget(terms=(context, *LEDGER[1:]))
    assert result.free_bytes - result.free_low == 40 * MIB


def test_the_interval_of_available_memory_follows_the_terms():
    result = budget()
    assert result.available_kv_bytes - result.available_kv_low_bytes == 60 * MIB
    assert result.available_kv_high_bytes - result.available_kv_bytes == 60 * MIB


def test_what_is_in_no_account_does_not_widen_the_interval():
    graphs = make(Component.CUDA_GRAPHS, 700 * MIB, Allocator.CUDA, Lifetime.AFTER_PROFILE, spread=300 * MIB)
    result = budget(terms=(*LEDGER, graphs))
    assert result.available_kv_high_bytes - result.available_kv_low_bytes == 120 * MIB


@pytest.mark.parametrize(("enabled", "applied"), [(True, 300 * MIB), (False, 0)])
def test_the_graph_estimate_is_subtracted_only_where_the_release_says_so(enabled: bool, applied: int):
    estimate = make(Component.CUDA_GRAPHS, 300 * MIB, Allocator.CUDA, Lifetime.AFTER_PROFILE, spread=30 * MIB)
    result = budget(graph_estimate=estimate, graph_estimate_enabled=enabled)
    assert result.graph_estimate_bytes == 300 * MIB
    assert result.graph_applied_bytes == applied
    assert result.available_kv_bytes == budget().available_kv_bytes - applied
    widened = 30 * MIB if enabled else 0
    assert result.available_kv_high_bytes - result.available_kv_bytes == 60 * MIB + widened
    assert result.available_kv_bytes - result.available_kv_low_bytes == 60 * MIB + widened


def test_in_use_once_the_server_is_up_is_what_persists_on_the_device():
    """Neither what the profile run gave back nor pinned host memory."""
    assert device_bytes(LEDGER, PERSISTENT) == (500 + 600 + 100 + 200 + 394 + 700) * MIB + 15 * GIB
    assert device_bytes(LEDGER, [Lifetime.PROFILE_TRANSIENT]) == GIB


def test_kv_cache_memory_bytes_replaces_the_share():
    result = budget(kv_cache_memory_bytes=12 * GIB)
    assert (result.available_kv_low_bytes, result.available_kv_bytes, result.available_kv_high_bytes) == (
        12 * GIB,
    ) * 3
    estimate = make(Component.CUDA_GRAPHS, 300 * MIB, Allocator.CUDA, Lifetime.AFTER_PROFILE)
    assert budget(kv_cache_memory_bytes=12 * GIB, graph_estimate=estimate).graph_applied_bytes == 0


def test_every_account_is_the_sum_of_its_terms():
    for release in (OLD, NEW):
        result = budget(release)
        for account in Account:
            of_account = [t.n_bytes for t, a in zip(LEDGER, result.accounts, strict=True) if a is account]
            assert result.totals[account] == sum(of_account)
