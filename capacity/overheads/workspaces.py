"""Workspaces that exist outside the profile run's peak."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.activations.live import Sizes
from vllm_capacity.activations.matmul import cublas_workspace
from vllm_capacity.activations.sampler import flashinfer_rows, flashinfer_scratch
from vllm_capacity.calibration import constants
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.all_reduce import early_tensors
from vllm_capacity.overheads.lora import lora_pointers, lora_tensors
from vllm_capacity.overheads.runner_buffers import runner_tensors, sampler_tensors
from vllm_capacity.overheads.speculative import draft_rank
from vllm_capacity.overheads.terms import measured
from vllm_capacity.units import MIB
from vllm_capacity.weights.allocator import LOAD_MAX_SPLIT, MIN_BLOCK
from vllm_capacity.weights.allocator_settings import allocator_settings
from vllm_capacity.weights.imports import imported_tables
from vllm_capacity.weights.model import rank_weights
from vllm_capacity.weights.segments import pinned_bytes


def workspace_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """cuBLAS's workspace where it comes before the snapshot, what the allocator cannot give back, and the rest that
    no term explains in the recorded runs (a line of its own, never part of another term).
    """
    rest = constants(ctx).find("unexplained")
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
        yield _fragmentation(ctx)


def _fragmentation(ctx: RankContext) -> MemoryTerm:
    """Parts of segments that nothing is in and `empty_cache` cannot give back, because something is in the rest: consumed.

    Simulated for loading (weights/segments.py), equal to the byte in the recorded starts of 0.33.0. What the profile run
    adds where it may split large blocks (up to 0.30) is not predicted. Below 0 where tensors fill more of segments from before
    the snapshot than stays free in later ones: those were consumed already.
    """
    settings, release = allocator_settings(ctx.engine.environment), ctx.release
    max_split = LOAD_MAX_SPLIT if release.has("load_max_split_size") else settings.max_split
    early, before = early_tensors(ctx), (*imported_tables(ctx), *runner_tensors(ctx))
    left = tuple(t.n_bytes for t in (*flashinfer_scratch(ctx), *flashinfer_rows(ctx, Sizes.of(ctx))))
    pointers = lora_pointers(ctx)
    left += (MIN_BLOCK,) * (pointers.n_bytes // MIN_BLOCK if pointers else 0)
    draft, unused = draft_rank(ctx), 0
    models = (rank_weights(ctx), *(() if draft is None else (rank_weights(draft),)))
    if not settings.expandable:
        unused = pinned_bytes(
            models, early, before, (*lora_tensors(ctx), *sampler_tensors(ctx)), left, max_split
        )
    if not release.has("profile_max_split_size"):
        found = measured(ctx, "allocator_fragmentation")
        low, high, note = unused, max(unused, found.high), "the profile run may add more: " + found.origin
    elif not any(section.uncertain for weights in models for section in weights.sections):
        low, high, note = unused, unused + 2 * MIB, "the profile run does not split blocks of 20 MiB and more"
    else:
        low, high, note = (
            min(0, unused),
            unused + 64 * MIB,
            "repacking of quantised weights leaves segments partly used",
        )
    return term(
        "allocator_fragmentation",
        Component.RUNNER_BUFFERS,
        "unused",
        lifetime=Lifetime.RUNNER_INIT,
        source="c10/cuda/CUDACachingAllocator.cpp: release_cached_blocks; utils/mem_utils.py: total_consumed",
        low=low,
        high=high,
        note=note,
        unused=unused,
    )
