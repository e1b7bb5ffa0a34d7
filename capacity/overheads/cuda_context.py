"""The CUDA context and the modules that the driver loads: not PyTorch's, so vLLM sees them as non-torch
memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm
from vllm_capacity.overheads.terms import constant, measured


def cuda_context_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """The context, PyTorch's own kernels at the first launch, and the model's while it is profiled.

    PyTorch's kernels come with the runner's first tensor. With more than one GPU the groups' first collectives
    launch them earlier: then they lie before vLLM's baseline snapshot and outside of the budget. Both are seen
    in the records of one and of two GPUs (stages `baseline`, `runner_init` and `profile_peak`). Where cuBLAS is called
    before the snapshot (from 0.33.0 on), that launches PyTorch's kernels there, and most of the others come with the runner, or,
    with more than one GPU, with the collectives too.
    """
    early = ctx.release.has("cublas_before_snapshot")
    alone = ctx.engine.parallel.world_size * ctx.engine.parallel.dp == 1
    yield constant(
        "cuda_context",
        Component.CUDA_CONTEXT,
        measured(ctx, "cuda_context"),
        allocator=Allocator.CUDA,
        lifetime=Lifetime.BEFORE_SNAPSHOT,
        source="v1/worker/gpu_worker.py: init_device, before init_snapshot",
    )
    yield constant(
        "first_kernels",
        Component.CUDA_CONTEXT,
        measured(ctx, "first_kernels"),
        allocator=Allocator.CUDA,
        lifetime=Lifetime.RUNNER_INIT if alone and not early else Lifetime.BEFORE_SNAPSHOT,
        source="the driver loads PyTorch's modules at the first launch: the runner's first tensor, a collective, or cuBLAS's",
    )
    if early:
        yield constant(
            "runner_kernels",
            Component.CUDA_CONTEXT,
            measured(ctx, "runner_kernels"),
            allocator=Allocator.CUDA,
            lifetime=Lifetime.RUNNER_INIT if alone else Lifetime.BEFORE_SNAPSHOT,
            source="the driver loads modules while the model runner is built, or for the first collectives",
        )
    yield constant(
        "kernel_modules",
        Component.CUDA_CONTEXT,
        measured(ctx, "kernel_modules"),
        allocator=Allocator.CUDA,
        lifetime=Lifetime.PROFILE_PERSISTENT,
        source="the driver loads modules at the first launch, during profile_run",
    )
