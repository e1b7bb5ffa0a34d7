"""NCCL: which communicators exist, and what the first collectives add."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from vllm_capacity.calibration import Measurement
from vllm_capacity.context import RankContext
from vllm_capacity.errors import InputError
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm
from vllm_capacity.overheads.terms import constant, measured, nothing
from vllm_capacity.units import MIB

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


_BUFFSIZE = 4 * MIB
"""NCCL_BUFFSIZE's default (DEFAULT_BUFFSIZE, NCCL src/transport.cc and docs: 4 MiB)."""
_MAX_CHANNELS = 32
"""Channels of a communicator at most without NCCL_MAX_NCHANNELS (MAXCHANNELS of NCCL 2.2x)."""


def _bounded(ctx: RankContext, found: Measurement) -> Measurement:
    """The measurement under NCCL_BUFFSIZE and NCCL_MAX_NCHANNELS: its buffers scale with both, the rest with neither.

    How large that part is no recorded run says, so the interval grows to hold all and nothing of it.
    """
    size, channels = (
        _number(ctx, "NCCL_BUFFSIZE", _BUFFSIZE),
        _number(ctx, "NCCL_MAX_NCHANNELS", _MAX_CHANNELS),
    )
    if size == _BUFFSIZE and channels >= _MAX_CHANNELS:
        return found
    ratio = Fraction(size, _BUFFSIZE)
    fewer = min(Fraction(1), Fraction(channels, _MAX_CHANNELS))
    return replace(
        found,
        low=int(found.low * min(Fraction(1), ratio) * fewer),
        high=int(found.high * max(Fraction(1), ratio)),
        origin=f"{found.origin}; NCCL_BUFFSIZE and NCCL_MAX_NCHANNELS change a part of it that is not known",
    )


def _number(ctx: RankContext, name: str, default: int) -> int:
    text = ctx.engine.environment.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not 0 < int(text) <= 1 << 40:
        raise InputError(f"{name}={text:.30} must be a positive number")
    return int(text)


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
    groups = [name for name in names if name != "world"]
    yield constant(
        "nccl_communicators",
        Component.NCCL,
        _bounded(ctx, measured(ctx, "nccl")),
        allocator=Allocator.CUDA,
        lifetime=Lifetime.BEFORE_SNAPSHOT,
        source=GROUPS,
        count=len(groups),
        note=f"groups: {', '.join(groups)}",
    )
    yield constant(
        "nccl_world",
        Component.NCCL,
        _bounded(ctx, measured(ctx, "nccl_world")),
        allocator=Allocator.CUDA,
        lifetime=Lifetime.BEFORE_SNAPSHOT,
        source="v1/worker/gpu_worker.py: init_worker_distributed_environment (torch.distributed)",
    )
    if ctx.engine.parallel.pp > 1:
        yield constant(
            "pipeline_transfers",
            Component.NCCL,
            _bounded(
                ctx, measured(ctx, "pipeline_transfers_last" if ctx.is_last_stage else "pipeline_transfers")
            ),
            allocator=Allocator.CUDA,
            lifetime=Lifetime.AFTER_PROFILE,
            source="first transfers between stages: the warm-up after the KV cache exists (NCCL point to point)",
        )
    if ctx.engine.parallel.tp > 1:
        yield constant(
            "collective_buffers",
            Component.NCCL,
            _bounded(ctx, measured(ctx, "collectives")),
            allocator=Allocator.CUDA,
            lifetime=Lifetime.PROFILE_PERSISTENT,
            source="first collectives of profile_run: NCCL channels, FlashInfer's all-reduce workspace",
        )
