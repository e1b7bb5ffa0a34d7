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
REDUCE_SCATTER_MAX = 16 * MIB
"""CustomAllreduce._DEFAULT_REDUCE_SCATTER_MAX_SIZE and _DEFAULT_MNNVL_REDUCE_SCATTER_MAX_SIZE (0.27.0 to 0.33.0)."""
MULTICAST_GATHER_MAX = {2: 8 * MIB, 4: 4 * MIB, 6: 2 * MIB, 8: 2 * MIB, 16: 2 * MIB}
"""CustomAllreduce._DEFAULT_MNNVL_ALL_GATHER_MAX_SIZES: bytes by world size (0.27.0 to 0.33.0)."""
RENDEZVOUS_POINTERS = (512, 512)
"""Blocks of the peers' buffers and signal pads that a rendezvous of PyTorch's symmetric memory leaves, whether or not there is
multicast (torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu; 1,024 bytes in the recorded starts of 0.33.0)."""
POINTERS = 8 * MIB
"""CustomAllreduce.rank_data."""
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
    """Custom all-reduce (two IPC buffers and 8 MiB of pointers, from 0.27.0 on a multicast buffer) and the buffer of the
    all-reduce in symmetric memory.
    """
    yield _custom(ctx)
    if not _why_no_custom(ctx):
        yield _pointers()
        if ctx.release.has("custom_all_gather"):
            yield _multicast(ctx)
    yield _symmetric(ctx)


def early_tensors(ctx: RankContext) -> tuple[int, ...]:
    """Bytes of the tensors that custom all-reduce makes before vLLM's snapshot, in order: their segments have room left that
    later tensors take.
    """
    if _why_no_custom(ctx):
        return ()
    return (POINTERS, *RENDEZVOUS_POINTERS) if ctx.release.has("custom_all_gather") else (POINTERS,)


def _why_no_custom(ctx: RankContext) -> str:
    tp = ctx.engine.parallel.tp
    supported = (2, 4, 6, 8, 16) if ctx.release.has("custom_all_gather") else (2, 4, 6, 8)
    if tp == 1:
        return "one GPU in the tensor-parallel group"
    if ctx.engine.args.other("disable_custom_all_reduce"):
        return "--disable-custom-all-reduce"
    if tp not in supported:
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
    reduced = DEFAULT_MAX
    if symmetric_bytes(ctx):
        reduced = min(CUSTOM_MAX.get(ctx.device.sm, {}).get(ctx.engine.parallel.tp, DEFAULT_MAX), DEFAULT_MAX)
    return term(
        "custom_all_reduce",
        Component.CUSTOM_ALL_REDUCE,
        "round_up(reduced + meta, granule) + round_up(buffer, granule)",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.BEFORE_SNAPSHOT,
        source=CUSTOM,
        low=0 if not ctx.device.nvlink else None,
        note="needs peer-to-peer access",
        reduced=reduced,
        buffer=max(reduced, REDUCE_SCATTER_MAX) if ctx.release.has("custom_all_gather") else reduced,
        meta=META_BYTES,
        granule=2 * MIB,
    )


def _pointers() -> MemoryTerm:
    return term(
        "custom_all_reduce_pointers",
        Component.CUSTOM_ALL_REDUCE,
        "20 * 1048576",
        source=CUSTOM,
        note="8 MiB of pointers, in PyTorch's first segment of 20",
        lifetime=Lifetime.BEFORE_SNAPSHOT,
    )


def _multicast(ctx: RankContext) -> MemoryTerm:
    """The all-gather's and reduce-scatter's triple buffers; given back at once where a rendezvous finds no multicast."""
    tp, device = ctx.engine.parallel.tp, ctx.device
    if not device.nvlink or device.sm < 90 or _multicast_is_off(ctx):
        return nothing(
            "custom_all_reduce_multicast",
            Component.CUSTOM_ALL_REDUCE,
            "no NVLink multicast",
            source=CUSTOM,
            allocator=Allocator.CUDA,
            lifetime=Lifetime.BEFORE_SNAPSHOT,
        )
    return term(
        "custom_all_reduce_multicast",
        Component.CUSTOM_ALL_REDUCE,
        "6 * max(gathered * world, scattered)",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.BEFORE_SNAPSHOT,
        source="distributed/device_communicators/custom_all_reduce.py: CustomAllreduce._init_mnnvl_buffer",
        low=0,
        note="kept where NVSwitch multicast is there, which no recorded run had",
        gathered=MULTICAST_GATHER_MAX[tp],
        world=tp,
        scattered=REDUCE_SCATTER_MAX,
    )


def _multicast_is_off(ctx: RankContext) -> bool:
    return ctx.engine.environment.get("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0") == "1"


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
