"""Buffers of vLLM's own all-reduce paths: custom all-reduce and PyTorch symmetric memory. All exist before
the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.terms import nothing, switched_on
from vllm_capacity.units import MIB

CUSTOM = "distributed/device_communicators/custom_all_reduce.py: CustomAllreduce.__init__"
SYMMETRIC = "distributed/device_communicators/symm_mem.py: SymmMemCommunicator.__init__"

CUSTOM_MAX = {
    90: {2: 64 * MIB, 4: 32 * MIB, 6: MIB // 2, 8: MIB // 4},
    100: {2: 2 * MIB, 4: 2 * MIB, 6: MIB, 8: MIB},
    103: {2: 4 * MIB, 4: 4 * MIB, 6: 8 * MIB, 8: 4 * MIB},
    107: {2: 4 * MIB, 4: 4 * MIB, 6: 8 * MIB, 8: 4 * MIB},
}
"""CUSTOM_ALL_REDUCE_MAX_SIZES: bytes by compute capability and world size (all_reduce_utils.py, 0.26.0; 10.7
from 0.33.0).
"""

SYMMETRIC_MAX = {
    90: {2: 64 * MIB, 4: 32 * MIB, 6: 64 * MIB, 8: 64 * MIB},
    100: {2: 8 * MIB, 4: 32 * MIB, 6: 128 * MIB, 8: 128 * MIB},
    103: {2: 4 * MIB, 4: 32 * MIB, 6: 32 * MIB, 8: 64 * MIB},
    107: {2: 4 * MIB, 4: 32 * MIB, 6: 32 * MIB, 8: 64 * MIB},
}
"""SYMM_MEM_ALL_REDUCE_MAX_SIZES (same file)."""

DEFAULT_MAX = 8 * MIB
META_BYTES = 80 * 1024
"""Upper bound of `ops.meta_size()`, the signal block of csrc/custom_all_reduce.cuh; rounded up to CUDA's 2
MiB anyway.
"""


def symmetric_bytes(ctx: RankContext) -> int:
    """Size of the symmetric-memory buffer of the tp group; 0 where it is off or not made for this device."""
    if ctx.engine.parallel.tp == 1 or not switched_on(ctx, "VLLM_ALLREDUCE_USE_SYMM_MEM", True):
        return 0
    return SYMMETRIC_MAX.get(ctx.device.sm, {}).get(ctx.engine.parallel.tp, 0)


def all_reduce_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """Custom all-reduce (two IPC buffers and 8 MiB of pointers) and the symmetric-memory buffer."""
    yield _custom(ctx)
    yield from _pointers(ctx)
    yield _symmetric(ctx)


def _why_no_custom(ctx: RankContext) -> str:
    tp = ctx.engine.parallel.tp
    if tp == 1:
        return "one GPU in the tensor-parallel group"
    if ctx.engine.args.other("disable_custom_all_reduce"):
        return "--disable-custom-all-reduce"
    if tp not in (2, 4, 6, 8):
        return f"not made for {tp} GPUs"
    if tp > 2 and not ctx.device.nvlink:
        return "more than two GPUs without NVLink"
    return ""


def _custom(ctx: RankContext) -> MemoryTerm:
    reason = _why_no_custom(ctx)
    if reason:
        return nothing(
            "custom_all_reduce",
            Component.CUSTOM_ALL_REDUCE,
            reason,
            source=CUSTOM,
            allocator=Allocator.CUDA,
            lifetime=Lifetime.BEFORE_SNAPSHOT,
        )
    size = DEFAULT_MAX
    if symmetric_bytes(ctx):
        size = min(CUSTOM_MAX.get(ctx.device.sm, {}).get(ctx.engine.parallel.tp, DEFAULT_MAX), DEFAULT_MAX)
    return term(
        "custom_all_reduce",
        Component.CUSTOM_ALL_REDUCE,
        "round_up(buffer + meta, granule) + round_up(buffer, granule)",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.BEFORE_SNAPSHOT,
        source=CUSTOM,
        low=0 if not ctx.device.nvlink else None,
        note="needs peer-to-peer access",
        buffer=size,
        meta=META_BYTES,
        granule=2 * MIB,
    )


def _pointers(ctx: RankContext) -> Iterator[MemoryTerm]:
    if not _why_no_custom(ctx):
        yield term(
            "custom_all_reduce_pointers",
            Component.CUSTOM_ALL_REDUCE,
            "20 * 1048576",
            source=CUSTOM,
            note="8 MiB of pointers, in PyTorch's first segment of 20",
            lifetime=Lifetime.BEFORE_SNAPSHOT,
        )


def _symmetric(ctx: RankContext) -> MemoryTerm:
    size = symmetric_bytes(ctx)
    if not size:
        tp = ctx.engine.parallel.tp
        reason = (
            "one GPU in the tensor-parallel group"
            if tp == 1
            else f"off, or not made for {tp} GPUs of sm{ctx.device.sm}"
        )
        return nothing(
            "symmetric_memory",
            Component.CUSTOM_ALL_REDUCE,
            reason,
            source=SYMMETRIC,
            allocator=Allocator.CUDA,
            lifetime=Lifetime.BEFORE_SNAPSHOT,
        )
    return term(
        "symmetric_memory",
        Component.CUSTOM_ALL_REDUCE,
        "round_up(buffer + pad, 2097152)",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.BEFORE_SNAPSHOT,
        source=SYMMETRIC,
        buffer=size,
        pad=2048,
        note="stays referenced even where multicast is missing",
    )
