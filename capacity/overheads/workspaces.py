"""Workspaces that exist outside the profile run's peak."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.activations.matmul import cublas_workspace
from vllm_capacity.calibration import calibration, facts
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.terms import measured
from vllm_capacity.units import MIB


def workspace_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """cuBLAS's workspace where it comes before the snapshot, what the allocator cannot give back, and the rest that
    no term explains in the recorded runs (a line of its own, never part of another term).
    """
    rest = calibration().find("unexplained", **facts(ctx.device, ctx.engine, ctx.release))
    yield term(
        "unexplained",
        Component.UNEXPLAINED,
        "rest",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.PROFILE_PERSISTENT,
        source="recorded runs less every other term (vllm-capacity refine)",
        low=0,
        high=rest.high if rest else 0,
        note=f"{rest.name}: {rest.origin}" if rest else "the recorded runs leave no rest",
        rest=rest.n_bytes if rest else 0,
    )
    if ctx.release.has("cublas_before_snapshot"):
        yield cublas_workspace(ctx, Lifetime.BEFORE_SNAPSHOT)
    if ctx.release.has("consumed_accounting"):
        found, split_limited = (
            measured(ctx, "allocator_fragmentation"),
            ctx.release.has("profile_max_split_size"),
        )
        yield term(
            "allocator_fragmentation",
            Component.UNEXPLAINED,
            "0",
            allocator=Allocator.TORCH,
            lifetime=Lifetime.PROFILE_PERSISTENT,
            source="utils/mem_utils.py: total_consumed (free memory before less after)",
            high=64 * MIB if split_limited else found.high,
            note="reserved segments that empty_cache cannot release count as consumed; not predicted; "
            + ("blocks above 20 MiB are not split" if split_limited else found.origin),
        )
