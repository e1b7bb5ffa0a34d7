"""NCCL: which communicators exist, and what the first collectives add."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm
from vllm_capacity.overheads.terms import constant, measured, nothing

GROUPS = "distributed/parallel_state.py: initialize_model_parallel; device_communicators/pynccl.py"


def communicators(ctx: RankContext) -> tuple[str, ...]:
    """Names of the groups that own an NCCL communicator on this rank.

    Every group of more than one rank creates a PyNccl communicator at start-up: tp, dcp, pcp, pp, dp, and ep
    for models with experts; with EPLB one more. PyTorch's own process group makes one for the whole world
    (torch.distributed). Source: parallel_state.py:1804-1943, cuda_communicator.py:82-87 (0.26.0).
    """
    parallel = ctx.engine.parallel
    sizes = [
        ("tp", parallel.tp),
        ("dcp", parallel.dcp),
        ("pcp", parallel.pcp),
        ("pp", parallel.pp),
        ("dp", parallel.dp),
    ]
    if ctx.architecture.num_experts:
        sizes.append(("ep", parallel.moe_parallel_size))
        if ctx.engine.args.other("enable_eplb"):
            sizes.append(("eplb", parallel.moe_parallel_size))
    names = [name for name, size in sizes if size > 1]
    if parallel.world_size * parallel.dp > 1:
        names.append("world")
    return tuple(names)


def nccl_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """Communicators created before the snapshot (outside the budget) and buffers that the first collectives
    allocate.
    """
    names = communicators(ctx)
    if not names:
        yield nothing(
            "nccl_communicators",
            Component.NCCL,
            "one GPU: no communicator",
            source=GROUPS,
            allocator=Allocator.CUDA,
            lifetime=Lifetime.BEFORE_SNAPSHOT,
        )
        return
    from dataclasses import replace

    groups = [name for name in names if name != "world"]
    communicator = constant(
        "nccl_communicators",
        Component.NCCL,
        measured(ctx, "nccl"),
        allocator=Allocator.CUDA,
        lifetime=Lifetime.BEFORE_SNAPSHOT,
        source=GROUPS,
        count=len(groups),
    )
    yield replace(communicator, note=f"groups: {', '.join(groups)}; {communicator.note}")
    yield constant(
        "nccl_world",
        Component.NCCL,
        measured(ctx, "nccl_world"),
        allocator=Allocator.CUDA,
        lifetime=Lifetime.BEFORE_SNAPSHOT,
        source="v1/worker/gpu_worker.py: init_worker_distributed_environment (torch.distributed)",
    )
    if ctx.engine.parallel.pp > 1:
        yield constant(
            "pipeline_transfers",
            Component.NCCL,
            measured(ctx, "pipeline_transfers"),
            allocator=Allocator.CUDA,
            lifetime=Lifetime.AFTER_PROFILE,
            source="first transfers between stages: the warm-up after the KV cache exists (NCCL point to point)",
        )
    if ctx.engine.parallel.tp > 1:
        yield constant(
            "collective_buffers",
            Component.NCCL,
            measured(ctx, "collectives"),
            allocator=Allocator.CUDA,
            lifetime=Lifetime.PROFILE_PERSISTENT,
            source="first collectives of profile_run: NCCL channels, FlashInfer's all-reduce workspace",
        )
