"""What lives in host memory instead: offloaded weights, sleeping weights, offloaded KV blocks.

Bytes that leave the GPU are a term of their own, with a negative sign, so that the weights above stay what
the checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_capacity.context import RankContext
from vllm_capacity.engine import EngineConfig
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.terms import nothing
from vllm_capacity.releases.release import Release
from vllm_capacity.units import GIB

UVA = "model_executor/offloader/uva.py: UVAOffloader"
PREFETCH = "model_executor/offloader/prefetch.py: PrefetchOffloader"


def offload_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """--cpu-offload-gb, --offload-group-size, --enable-sleep-mode and --kv-offloading-size."""
    args = ctx.engine.args
    backend = str(args.other("offload_backend", "auto"))
    group_size = int(args.other("offload_group_size", 0))
    limit = float(args.other("cpu_offload_gb", 0.0))
    found = False
    why = "no offloading flag is given"
    if ignores_offloading(ctx.engine, ctx.release):
        group_size, limit, why = 0, 0.0, f"model runner V2 of vLLM {ctx.release.version} moves no weights"
    if group_size > 0 and backend in ("auto", "prefetch"):
        yield from _prefetch(ctx, group_size)
        found = True
    elif limit > 0 and backend in ("auto", "uva"):
        yield from _uva(ctx, limit)
        found = True
    if args.other("enable_sleep_mode"):
        yield _sleep(ctx)
        found = True
    if args.other("kv_offloading_size") is not None:
        yield _kv(ctx)
        found = True
    if not found:
        yield nothing(
            "offload",
            Component.OFFLOAD,
            why,
            source="config/offload.py",
            lifetime=Lifetime.LOAD,
            allocator=Allocator.HOST,
        )


def ignores_offloading(engine: EngineConfig, release: Release) -> bool:
    """Whether this engine keeps all weights on the GPU whatever it is asked: model runner V2 sets no offloader up to
    0.27 (v1/worker/gpu/model_runner.py; V1's __init__ calls `set_offloader`). Recorded: a start of Qwen2.5-14B on 0.26.0
    with --cpu-offload-gb 10 loaded 27.57 GiB.
    """
    return engine.model_runner == "V2" and not release.has("v2_offloads_weights")


def offload_warnings(engine: EngineConfig, release: Release) -> tuple[str, ...]:
    """One line where vLLM ignores an offloading flag without saying so."""
    asked = [
        flag
        for flag, name in (
            ("--cpu-offload-gb", "cpu_offload_gb"),
            ("--offload-group-size", "offload_group_size"),
        )
        if float(engine.args.other(name, 0) or 0) > 0
    ]
    if not asked or not ignores_offloading(engine, release):
        return ()
    return (
        f"{asked[0]} has no effect here: model runner V2 of vLLM {release.version} keeps all weights on the GPU and says "
        "nothing about it (from 0.28.0 on it offloads); VLLM_USE_V2_MODEL_RUNNER=0 brings the runner that does",
    )


def _layer_tensors(ctx: RankContext, only: Sequence[str]) -> list[tuple[str, int, int]]:
    """(name, bytes of one tensor, count) of the layers' parameters in vLLM's order, per kind of layer.

    `only` (`--cpu-offload-params`, `--offload-params`) may name which: whole segments of their names
    (model_executor/offloader/uva.py:86-95, prefetch.py:181-186; 0.26.0).
    """
    from vllm_capacity.weights.rank import rank_weights

    return [
        (group.name, group.tensor_bytes, group.count)
        for section in rank_weights(ctx).layers
        for group in section.groups
        if not group.buffer and (not only or any(f".{name}." in f".{group.name}." for name in only))
    ]


def _uva(ctx: RankContext, limit_gib: float) -> Iterator[MemoryTerm]:
    """Parameters move one by one until the counter reaches the limit: it may be overshot by one parameter,
    never by more.

    Source: `_maybe_offload_to_cpu`, model_executor/offloader/uva.py:68-104 (0.26.0); decoder layers only.
    """
    limit = int(limit_gib * GIB)
    tensors = _layer_tensors(ctx, ctx.engine.args.other("cpu_offload_params", ()))
    total = sum(n_bytes * count for _, n_bytes, count in tensors)
    largest = max((n_bytes for _, n_bytes, _ in tensors), default=0)
    moved = min(total, limit)
    yield from _moved(
        moved,
        min(total, limit + largest),
        UVA,
        f"--cpu-offload-gb {limit_gib:g}; read over PCIe at every step",
    )


def _moved(moved: int, at_most: int, source: str, note: str) -> Iterator[MemoryTerm]:
    yield term(
        "offloaded_weights",
        Component.OFFLOAD,
        "moved",
        allocator=Allocator.HOST,
        lifetime=Lifetime.LOAD,
        source=source,
        high=at_most,
        note=note,
        moved=moved,
    )
    yield term(
        "weights_moved_to_host",
        Component.OFFLOAD,
        "0 - moved",
        lifetime=Lifetime.LOAD,
        source=source,
        low=-at_most,
        note="taken off the weights above",
        moved=moved,
    )


def _prefetch(ctx: RankContext, group_size: int) -> Iterator[MemoryTerm]:
    """The last k of every N layers live in host memory; the GPU keeps `step` slots for one layer's
    parameters.

    Source: model_executor/offloader/prefetch.py:61-104, 338-358 (0.26.0).
    """
    per_group = int(ctx.engine.args.other("offload_num_in_group", 1))
    step = int(ctx.engine.args.other("offload_prefetch_step", 1))
    layers = sum(count for _, count in ctx.layers)
    tensors = _layer_tensors(ctx, ctx.engine.args.other("offload_params", ()))
    total = sum(n_bytes * count for _, n_bytes, count in tensors)
    layer = total // max(1, layers)
    offloaded = layers // group_size * per_group + max(0, layers % group_size - (group_size - per_group))
    yield from _moved(offloaded * layer, offloaded * layer, PREFETCH, f"{offloaded} of {layers} layers")
    yield term(
        "prefetch_slots",
        Component.OFFLOAD,
        "slots * layer_bytes",
        lifetime=Lifetime.LOAD,
        source=PREFETCH,
        slots=step,
        layer_bytes=layer,
    )


def _sleep(ctx: RankContext) -> MemoryTerm:
    """Level 1 copies the weights to pinned host memory, level 2 drops them; both drop the KV cache."""
    from vllm_capacity.weights.rank import rank_weights

    return term(
        "sleeping_weights",
        Component.OFFLOAD,
        "weights",
        allocator=Allocator.HOST,
        lifetime=Lifetime.RUNTIME,
        source="v1/worker/gpu_worker.py: sleep; device_allocator/cumem.py",
        low=0,
        note="pinned while asleep at level 1; level 2 needs none",
        weights=rank_weights(ctx).n_bytes,
    )


def _kv(ctx: RankContext) -> MemoryTerm:
    """--kv-offloading-size is GiB for the whole engine; each rank pins its share."""
    size = float(ctx.engine.args.other("kv_offloading_size"))
    return term(
        "offloaded_kv_cache",
        Component.OFFLOAD,
        "size // ranks",
        allocator=Allocator.HOST,
        lifetime=Lifetime.AFTER_PROFILE,
        source="config/cache.py: kv_offloading_size; v1/kv_offload/cpu",
        note="pinned host memory; the GPU holds no extra pool",
        size=int(size * GIB),
        ranks=ctx.engine.parallel.world_size,
    )
