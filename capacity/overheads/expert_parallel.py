"""Expert parallelism beside the experts: buffers that exchange tokens, and what load balancing (EPLB) keeps.

Which kernels exchange tokens: `FusedMoEParallelConfig`, layers/fused_moe/config.py:1050-1112; DeepEP's buffers:
distributed/device_communicators/all2all.py:209-325 and DeepEP's csrc/config.hpp; EPLB:
distributed/eplb/eplb_state.py:351-485 (0.26.0; the shapes are those of 0.19.0 to 0.33.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_capacity.architecture.modules import Architecture, MixtureOfExperts
from vllm_capacity.context import RankContext
from vllm_capacity.errors import InputError
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.terms import nothing
from vllm_capacity.units import GIB, MIB

ALL2ALL = "distributed/device_communicators/all2all.py"
EPLB = "distributed/eplb/eplb_state.py: EplbState.add_model"

DEFAULT_BACKEND = "allgather_reducescatter"
_COLLECTIVES = frozenset({DEFAULT_BACKEND, "naive", "pplx"})
"""Backends that exchange through NCCL: no buffer of their own."""

_SLOTS = 1024
"""MAX_EXPERT_REDUNDANCY + 1: columns of the map from a logical expert to its copies."""
_WINDOW = 1000
"""EPLBConfig.window_size, config/parallel.py."""
_NVL_PEERS = 8
"""GPUs that DeepEP takes for one node (NUM_MAX_NVL_PEERS)."""
_DEEPEP_WORKSPACE = 32 * MIB
"""NUM_WORKSPACE_BYTES, DeepEP csrc/kernels/configs.cuh."""
_HEAP_GRANULE = 512 * MIB
"""NVSHMEM_CUMEM_GRANULARITY as DeepEP sets it (deep_ep/buffer.py): its heap grows in such steps."""


def expert_parallel_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """Buffers of `--all2all-backend` and of `--enable-eplb`."""
    if not ctx.architecture.num_experts:
        return
    yield from _all2all(ctx)
    if ctx.engine.args.other("enable_eplb") and ctx.engine.parallel.expert_parallel:
        yield from _eplb(ctx)


def uses_all2all(ctx: RankContext) -> bool:
    """`use_all2all_kernels`: expert parallelism over data-parallel or prefill-context ranks."""
    parallel = ctx.engine.parallel
    return parallel.expert_parallel and (parallel.dp > 1 or parallel.pcp > 1)


def _all2all(ctx: RankContext) -> Iterator[MemoryTerm]:
    backend = str(ctx.engine.args.other("all2all_backend") or DEFAULT_BACKEND)
    if not uses_all2all(ctx) or backend in _COLLECTIVES:
        reason = (
            "tokens are exchanged by NCCL collectives" if uses_all2all(ctx) else "no data-parallel experts"
        )
        yield _none(reason)
    elif backend == "deepep_high_throughput":
        yield _deepep_high_throughput(ctx)
    elif backend == "deepep_low_latency":
        yield _deepep_low_latency(ctx)
    elif ctx.engine.args.other("allow_unmodelled"):
        yield term(
            "all2all_buffers", Component.WORKSPACE, "0", allocator=Allocator.CUDA, lifetime=Lifetime.LOAD,
            source=ALL2ALL, high=4 * GIB, note=f"--all2all-backend {backend}: its buffers are not modelled",
        )  # fmt: skip
    else:
        raise InputError(
            f"--all2all-backend {backend}: its buffers are not modelled; modelled are {DEFAULT_BACKEND}, "
            "deepep_high_throughput and deepep_low_latency (or pass --allow-unmodelled)"
        )


def _none(reason: str) -> MemoryTerm:
    return nothing(
        "all2all_buffers", Component.WORKSPACE, reason, source=ALL2ALL, allocator=Allocator.CUDA,
        lifetime=Lifetime.LOAD,
    )  # fmt: skip


def _buffer_mib(ctx: RankContext) -> int:
    """VLLM_DEEPEP_BUFFER_SIZE_MB (envs.py, default 1024)."""
    text = ctx.engine.environment.get("VLLM_DEEPEP_BUFFER_SIZE_MB", "1024").strip()
    if not text.isdecimal() or int(text) > 1 << 20:
        raise InputError(f"VLLM_DEEPEP_BUFFER_SIZE_MB={text:.20} must be a number of MiB")
    return int(text)


def _deepep_high_throughput(ctx: RankContext) -> MemoryTerm:
    """One NVLink buffer per rank and, between nodes, one for RDMA of the same size."""
    internode = ctx.engine.parallel.moe_parallel_size > _NVL_PEERS
    size = _buffer_mib(ctx) * MIB
    return term(
        "all2all_buffers", Component.WORKSPACE, "workspace + (1 + internode) * buffer",
        allocator=Allocator.CUDA, lifetime=Lifetime.LOAD, source=f"{ALL2ALL}: DeepEPHTAll2AllManager",
        low=size, high=2 * size + _DEEPEP_WORKSPACE + _HEAP_GRANULE,
        note="VLLM_DEEPEP_BUFFER_SIZE_MB sizes it; more than 8 ranks count as several nodes; no recorded run",
        workspace=_DEEPEP_WORKSPACE, internode=int(internode), buffer=size,
    )  # fmt: skip


def _deepep_low_latency(ctx: RankContext) -> MemoryTerm:
    """Two send, two receive and two signalling buffers for every expert's tokens from every rank.

    `LowLatencyLayout`, DeepEP csrc/config.hpp; tokens are `max_num_batched_tokens` of one rank, which vLLM lowers
    for these kernels (config/parallel.py: use_batched_dp_moe).
    """
    moe = _mixture(ctx.architecture)
    size = _buffer_mib(ctx) * MIB
    values = {
        "tokens": ctx.engine.max_num_batched_tokens,
        "experts": moe.num_experts + redundant_experts(ctx),
        "hidden": moe.hidden_size,
        "scales": moe.hidden_size // 128,
    }
    tokens, experts, hidden, scales = values.values()
    dispatch = 16 + max(2 * hidden, hidden + 4 * scales)
    combine = 4 * scales + 2 * hidden
    exact = 2 * max(tokens * dispatch, experts * tokens * combine) + 2 * experts * tokens * max(
        dispatch, combine
    )
    return term(
        "all2all_buffers", Component.WORKSPACE,
        "workspace + buffer + round_up("
        "2 * max(tokens * (16 + max(2 * hidden, hidden + 4 * scales)), experts * tokens * (4 * scales + 2 * hidden))"
        " + 2 * experts * tokens * max(16 + max(2 * hidden, hidden + 4 * scales), 4 * scales + 2 * hidden)"
        " + 2 * round_up(4 * experts, 128), granule)",
        allocator=Allocator.CUDA, lifetime=Lifetime.LOAD,
        source=f"{ALL2ALL}: DeepEPLLAll2AllManager; DeepEP csrc/config.hpp",
        low=exact, high=exact + size + _DEEPEP_WORKSPACE + 3 * _HEAP_GRANULE,
        note="grows with --max-num-batched-tokens; NVSHMEM's heap in steps of 512 MiB; no recorded run",
        workspace=_DEEPEP_WORKSPACE, buffer=size, granule=_HEAP_GRANULE, **values,
    )  # fmt: skip


def _mixture(architecture: Architecture) -> MixtureOfExperts:
    found = [g.feed_forward for g in architecture.layers if isinstance(g.feed_forward, MixtureOfExperts)]
    return max(found, key=lambda moe: moe.num_experts)


def redundant_experts(ctx: RankContext) -> int:
    """`eplb_config.num_redundant_experts`, with EPLB."""
    return _eplb_setting(ctx, "num_redundant_experts", 0) if ctx.engine.args.other("enable_eplb") else 0


def _eplb_setting(ctx: RankContext, key: str, default: int) -> int:
    given = ctx.engine.args.other("eplb_config", {})
    value = given.get(key, default) if isinstance(given, Mapping) else default
    if type(value) is not int or not 0 <= value <= 1 << 20:
        raise InputError(f"--eplb-config: {key} must be an integer of at least 0, not {value!r:.40}")
    return value


def _eplb(ctx: RankContext) -> Iterator[MemoryTerm]:
    """Maps and load statistics per MoE layer, and a copy of one layer's experts to exchange through."""
    from vllm_capacity.weights.rank import rank_weights

    layers = sum(count for group, count in ctx.layers if isinstance(group.feed_forward, MixtureOfExperts))
    if not layers:
        return
    logical = _mixture(ctx.architecture).num_experts
    yield term(
        "eplb_maps", Component.WEIGHTS,
        "layers * (8 * physical + 8 * slots * logical + 8 * logical + 4 * physical + 4 * window * physical)",
        lifetime=Lifetime.LOAD, source=EPLB, note="which copy of which expert is where, and how often each was asked",
        layers=layers, physical=logical + redundant_experts(ctx), logical=logical, slots=_SLOTS,
        window=_eplb_setting(ctx, "window_size", _WINDOW),
    )  # fmt: skip
    first = next(
        section for section in rank_weights(ctx).layers if any(_is_expert(g.name) for g in section.groups)
    )
    yield term(
        "eplb_expert_buffer", Component.WEIGHTS, "experts_of_one_layer", lifetime=Lifetime.LOAD, source=EPLB,
        note="a copy of the first MoE layer's experts: weights pass through it when experts move",
        experts_of_one_layer=sum(
            g.tensor_bytes for g in first.groups if _is_expert(g.name) and not g.buffer and g.shape
        ),
    )  # fmt: skip


def _is_expert(name: str) -> bool:
    parts = name.split(".")
    return "experts" in parts and not name.endswith(("_expert_map", "w13_input_scale", "w2_input_scale"))
