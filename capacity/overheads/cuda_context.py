"""The CUDA context and the modules that the driver loads: not PyTorch's, so vLLM sees them as non-torch
memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm
from vllm_capacity.overheads.terms import constant, measured


def cuda_context_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """Context before vLLM's baseline snapshot; kernels loaded lazily while the model and the sampler are
    profiled.
    """
    yield constant(
        "cuda_context",
        Component.CUDA_CONTEXT,
        measured(ctx, "cuda_context"),
        allocator=Allocator.CUDA,
        lifetime=Lifetime.BEFORE_SNAPSHOT,
        source="v1/worker/gpu_worker.py: init_device, before init_snapshot",
    )
    yield constant(
        "kernel_modules",
        Component.CUDA_CONTEXT,
        measured(ctx, "kernel_modules"),
        allocator=Allocator.CUDA,
        lifetime=Lifetime.PROFILE_PERSISTENT,
        source="the driver loads modules at the first launch, during profile_run",
    )
    if ctx.is_last_stage and ctx.architecture.runner_type == "generate":
        yield constant(
            "sampler_modules",
            Component.CUDA_CONTEXT,
            measured(ctx, "sampler_modules"),
            allocator=Allocator.CUDA,
            lifetime=Lifetime.PROFILE_PERSISTENT,
            source="head and sampler kernels, loaded in the dummy sampler run",
        )
