"""CUDA graphs: what vLLM estimates and subtracts, and what they take.

A captured graph keeps its temporaries in a memory pool that all graphs share (the largest batch decides, once per
capture stream, each with a cuBLAS workspace) and its nodes in driver memory. The driver's share grows with the
number of captured sizes times layers; the bytes per size and layer are measured. What the driver took for the
graphs of vLLM's estimate stays with the process: non-torch memory that the real graphs use again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vllm_capacity.activations.compressed import compressed_elements, compressed_streams, indexer_logits
from vllm_capacity.activations.layers import attention_width
from vllm_capacity.activations.live import share
from vllm_capacity.activations.matmul import cublas_bytes
from vllm_capacity.activations.moe import ExpertsKernel, experts_kernel
from vllm_capacity.architecture.modules import (
    Attention,
    DenseMLP,
    MixtureOfExperts,
    MultiHeadLatentAttention,
    StateSpace,
    StateSpaceKind,
)
from vllm_capacity.calibration import Measurement, constants
from vllm_capacity.context import RankContext, once
from vllm_capacity.engine_defaults.speculation import resolve_speculation
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.shared_pool_graphs import (
    Shapes,
    SharedPool,
    decode_sizes,
    estimate_term,
    head_of_draft,
    shared_pool,
    shared_pool_terms,
)
from vllm_capacity.overheads.speculative import draft_rank
from vllm_capacity.overheads.terms import measured, nothing
from vllm_capacity.units import DTYPE_BYTES, MIB, round_up

SOURCE = (
    "v1/worker/gpu_model_runner.py: profile_cudagraph_memory, capture_model; v1/worker/gpu/cudagraph_utils.py"
)


def captures(ctx: RankContext) -> bool:
    """Whether this engine captures any graph."""
    return ctx.engine.cudagraph_mode != "NONE" and bool(ctx.engine.cudagraph_capture_sizes)


def graph_count(ctx: RankContext) -> int:
    """Captures of all modes."""
    everything, decode = _modes(ctx)
    return everything + decode


def _modes(ctx: RankContext) -> tuple[int, int]:
    """Captures for mixed batches (every size) and for decodes (the sizes that a batch of decodes can have).

    Source: v1/cudagraph_dispatcher.py:205-231, v1/worker/gpu/cudagraph_utils.py:222-252 (0.26.0).
    """
    everything, decode = len(ctx.engine.cudagraph_capture_sizes), len(_decode_sizes(ctx))
    return {
        "PIECEWISE": (everything, 0),
        "FULL": (everything, 0),
        "FULL_DECODE_ONLY": (0, decode),
        "FULL_AND_PIECEWISE": (everything, decode),
    }.get(ctx.engine.cudagraph_mode, (0, 0))


@once
def _decode_sizes(ctx: RankContext) -> list[int]:
    engine = ctx.engine
    query = 1 + engine.num_speculative_tokens
    if engine.model_runner == "V2":
        return decode_sizes(engine.cudagraph_capture_sizes, query, engine.max_num_seqs)
    return [s for s in engine.cudagraph_capture_sizes if query <= s <= query * engine.max_num_seqs]


def estimates(ctx: RankContext) -> bool:
    """Whether the runner estimates graphs before the KV cache is sized: V1 always, V2 from 0.29.0 on."""
    return ctx.engine.model_runner == "V1" or ctx.release.has("v2_graph_estimate")


def graph_estimate(ctx: RankContext) -> MemoryTerm | None:
    """vLLM's own estimate of the graphs on this rank; None where it makes none."""
    if not captures(ctx) or not estimates(ctx):
        return None
    if _shares_pool(ctx):
        return estimate_term(*_shared(ctx))
    found = _nodes(ctx, "graph_nodes_estimate")
    pool, count = _pool_values(ctx, first=True), graph_count(ctx)
    halves = half_layers(ctx)
    if ctx.engine.model_runner == "V1":
        fixed, formula, values = _first_capture(ctx, pool)
    else:
        fixed, formula, values = _pool_bytes(pool), POOL, pool
    return term(
        "graph_estimate",
        Component.CUDA_GRAPHS,
        f"{formula} + captures * halves * node // 2",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.AFTER_PROFILE,
        source="v1/worker/gpu_model_runner.py: profile_cudagraph_memory (two captures per mode, scaled)",
        low=fixed + count * halves * found.low // 2,
        high=fixed + count * halves * found.high // 2,
        note=f"driver memory per capture and layer ({found.name}: {found.origin})",
        captures=count,
        halves=halves,
        node=found.n_bytes,
        **values,
    )


def _first_capture(ctx: RankContext, pool: dict[str, int]) -> tuple[int, str, dict[str, int]]:
    """Runner V1 counts the larger of the modes' first captures once, and further captures by the second of their mode.

    Mixed batches come first, with the cuBLAS workspaces of the capture's streams; the decodes' first capture finds their
    tensors' blocks free in the pool and adds its split-KV accumulators. Returns (bytes, formula, values).

    Source: v1/worker/gpu_model_runner.py: profile_cudagraph_memory, `max(shared_memory_estimate.values())` (0.19.0 to
    0.33.0).
    """
    everything, decode = _modes(ctx)
    splits = _segment(pool["decode"] * pool["splits"] * pool["heads"] * 4) if pool["splits"] else 0
    mixed = _segment(pool["largest"] * pool["live"] * pool["el"])
    workspaces = pool["workspaces"] * pool["cublas"]
    values = {"mixed": mixed, "workspaces": pool["workspaces"], "cublas": pool["cublas"], "splits": splits}
    formula, n_bytes = "mixed + workspaces * cublas", mixed + workspaces
    if everything and (dummy := _dummy_logits(ctx)):
        formula, n_bytes, values = (
            formula + " + dummy_logits",
            n_bytes + dummy,
            {**values, "dummy_logits": dummy},
        )
    if everything and decode:
        return max(n_bytes, splits), f"max({formula}, splits)", values
    return n_bytes + splits, formula + " + splits", values


def cuda_graph_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """The graphs themselves (pool and driver memory together), and what the estimate left with the driver."""
    if not captures(ctx):
        why = "--enforce-eager" if ctx.engine.enforce_eager else "no CUDA graph is captured"
        yield nothing("cuda_graphs", Component.CUDA_GRAPHS, why, source=SOURCE)
        return
    if _shares_pool(ctx):
        yield from shared_pool_terms(*_shared(ctx))
        return
    probe = _probe(ctx)
    if probe is not None:
        yield probe
    found = _nodes(ctx, "graph_nodes")
    pool, count, halves = _pool_values(ctx, first=probe is None), graph_count(ctx), half_layers(ctx)
    left = probe.n_bytes if probe else 0
    workspaces = pool["workspaces"] * pool["cublas"]
    dummy = _dummy_logits(ctx) if _modes(ctx)[0] else 0
    fixed = _segment(_pool_bytes(pool) - workspaces) + workspaces + dummy
    yield term(
        "cuda_graphs",
        Component.CUDA_GRAPHS,
        "pool + workspaces * cublas + max(captures * halves * node // 2 - probe, 0)",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.AFTER_PROFILE,
        source=SOURCE,
        low=fixed + max(count * halves * found.low // 2 - left, 0),
        high=fixed + max(count * halves * found.high // 2 - left, 0),
        note=f"driver memory per capture and layer ({found.name}: {found.origin})",
        pool=fixed - workspaces,
        workspaces=pool["workspaces"],
        cublas=pool["cublas"],
        captures=count,
        halves=halves,
        node=found.n_bytes,
        probe=left,
    )


def _shares_pool(ctx: RankContext) -> bool:
    return ctx.engine.model_runner == "V2" and ctx.release.has("v2_captures_on_one_stream")


@once
def _shared(ctx: RankContext) -> tuple[Shapes, SharedPool]:
    shapes = _shapes(ctx)
    drafts = _draft_shapes(ctx)
    return replace(shapes, drafts=drafts), shared_pool(ctx, shapes, drafts)


def _draft_shapes(ctx: RankContext) -> tuple[Shapes, ...]:
    """What a speculator that reads the target's hidden states captures, each on a stream of its own: its first step over the
    target's batch, and the further ones at one token a request.

    Source: v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py: init_cudagraph_manager, capture (0.33.0);
    autoregressive/speculator.py (0.29.0 to 0.31.0).
    """
    draft, speculation = draft_rank(ctx), resolve_speculation(ctx.engine.args, ctx.config)
    if draft is None or speculation.method not in ("eagle", "eagle3", "mtp"):
        return ()
    engine, query = ctx.engine, 1 + speculation.num_tokens
    head = head_of_draft(draft, ctx)
    sizes, mode = engine.cudagraph_capture_sizes, engine.cudagraph_mode
    decode = mode.startswith("FULL")
    first = decode_sizes(sizes, query, engine.max_num_seqs) if decode else []
    further = [s for s in sizes if s <= engine.max_num_seqs] if decode and speculation.num_tokens > 1 else []
    piecewise = len(sizes) if mode.endswith("PIECEWISE") else 0
    halves = half_layers(draft)
    found = []
    for graphs, full, each, steps in (
        (piecewise, first, query, 1),
        (0, further, 1, speculation.num_tokens - 1),
    ):
        if graphs or full:
            rows = max(full, default=0) // each
            found.append(
                Shapes(
                    largest=max(sizes) if graphs else max(full), piecewise=graphs,
                    full=tuple(sorted(full, reverse=True)), splits=_splits(ctx), workspaces=1, halves=halves * steps,
                    piecewise_node=_nodes(draft, "graph_nodes_piecewise"), full_node=_nodes(draft, "graph_nodes_full"),
                    more=tuple(rows * n * DTYPE_BYTES[engine.dtype] for n in head),
                )
            )  # fmt: skip
    return tuple(found)


def _shapes(ctx: RankContext) -> Shapes:
    """What runner V2 captures, and the driver memory that a graph takes."""
    sizes, mode = ctx.engine.cudagraph_capture_sizes, ctx.engine.cudagraph_mode
    full = sizes if mode == "FULL" else _decode_sizes(ctx) if mode.startswith("FULL") else ()
    piecewise = len(sizes) if mode.endswith("PIECEWISE") else 0
    return Shapes(
        largest=max(sizes) if piecewise else max(full, default=0),
        piecewise=piecewise,
        full=tuple(sorted(full, reverse=True)),
        splits=_splits(ctx),
        workspaces=1 + int(_shared_experts_stream(ctx)),
        halves=half_layers(ctx),
        piecewise_node=_nodes(ctx, "graph_nodes_piecewise"),
        full_node=_nodes(ctx, "graph_nodes_full"),
    )


POOL = "streams * (largest * live * el + decode * splits * heads * 4) + workspaces * cublas"


def _pool_values(ctx: RankContext, *, first: bool) -> dict[str, int]:
    """What the pool depends on. Runner V2 captures piecewise and full graphs on two streams, whose blocks are
    not shared; runner V1 on one. Full graphs hold FlashAttention 3's split-KV accumulators. Shared experts run on a
    stream of their own in small batches, which the `first` captures are the first to be; so do DeepSeek V4's products.

    Source: v1/worker/gpu/cudagraph_utils.py: capture (torch.cuda.graph brings its own stream);
    compilation/cuda_graph.py: CUDAGraphWrapper (the current stream) (0.26.0).
    """
    streams = 2 if ctx.engine.model_runner == "V2" else 1
    return {
        "streams": streams,
        "workspaces": streams + first * (int(_shared_experts_stream(ctx)) + compressed_streams(ctx)),
        "largest": max(ctx.engine.cudagraph_capture_sizes),
        "decode": max(_decode_sizes(ctx), default=0),
        "live": _live_elements(ctx),
        "el": DTYPE_BYTES[ctx.engine.dtype],
        "splits": _splits(ctx),
        "heads": _split_heads(ctx),
        "cublas": cublas_bytes(ctx.device, ctx.engine.environment),
    }


def _pool_bytes(v: dict[str, int]) -> int:
    splits = v["decode"] * v["splits"] * v["heads"] * 4
    return v["streams"] * (v["largest"] * v["live"] * v["el"] + splits) + v["workspaces"] * v["cublas"]


def _shared_experts_stream(ctx: RankContext) -> bool:
    """Whether shared experts run inside the fused MoE layer, so that batches of up to 256 tokens put them on a stream.

    Source: layers/fused_moe/runner/shared_experts.py: _determine_shared_experts_order (0.26.0).
    """
    return any(
        isinstance(group.feed_forward, MixtureOfExperts)
        and any("shared_expert" in m.name for m in group.modules)
        for group, _ in ctx.layers
    )


def _dummy_logits(ctx: RankContext) -> int:
    """What an indexer allocates where it finds no attention metadata, as in mixed batches of runner V1: PyTorch keeps it
    cached. 0 without an indexer.

    Source: v1/worker/gpu_model_runner.py: _warmup_and_capture (force_attention for full graphs only); layers/
    sparse_attn_indexer.py: sparse_attn_indexer (0.22.0, 0.26.0).
    """
    mixers = (m for group, _ in ctx.layers for m in group.mixers)
    indexes = any(isinstance(m, MultiHeadLatentAttention) and m.indexer for m in mixers)
    return indexer_logits(ctx) if indexes and ctx.engine.model_runner == "V1" else 0


def _segment(n_bytes: int) -> int:
    """Bytes that PyTorch reserves for tensors of this many: 2 MiB, 20 MiB, or a multiple of 2 MiB.

    Source: c10/cuda/CUDACachingAllocator.cpp: get_allocation_size.
    """
    if n_bytes <= MIB:
        return 2 * MIB
    return 20 * MIB if n_bytes < 10 * MIB else round_up(n_bytes, 2 * MIB)


def _probe(ctx: RankContext) -> MemoryTerm | None:
    """Driver memory of the graphs that the estimate captured: two of each mode (runner V2: all piecewise ones and two
    full ones). It is not given back. Up to 0.26 that happens inside of the memory profiler, so it is non-torch memory.
    """
    if not estimates(ctx):
        return None
    found = _nodes(ctx, "graph_nodes")
    everything, decode = _modes(ctx)
    count = min(2, everything) if ctx.engine.model_runner == "V1" else everything
    count += min(2, decode)
    halves = half_layers(ctx)
    return term(
        "graph_probe",
        Component.CUDA_CONTEXT,
        "captures * halves * node // 2",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.AFTER_PROFILE
        if ctx.release.has("graph_probe_after_profile")
        else Lifetime.PROFILE_PERSISTENT,
        source="v1/worker/gpu_worker.py: determine_available_memory; v1/worker/gpu/cudagraph_utils.py",
        low=count * halves * found.low // 2,
        high=count * halves * found.high // 2,
        note=f"destroying a graph leaves its memory with the driver ({found.name})",
        captures=count,
        halves=halves,
        node=found.n_bytes,
    )


@once
def half_layers(ctx: RankContext) -> int:
    """Layers as the kernels of a graph count them, in halves: a mixer or an MLP alone is half a layer."""
    return sum(
        [count * (len(group.mixers) + int(group.feed_forward is not None)) for group, count in ctx.layers]
    )


def _nodes(ctx: RankContext, component: str) -> Measurement:
    """Bytes per capture and layer for this kind of layers; the graphs' own where the estimate has no entry."""
    kind = _kind(ctx)
    found = constants(ctx).find(component + kind)
    return found or measured(ctx, "graph_nodes" + kind)


@once
def _kind(ctx: RankContext) -> str:
    """Suffix of the measurement: latent and linear attention bring more kernels than experts do, triton_kernels
    the most, plain layers the fewest. Those of DeepSeek V4 are not measured.
    """
    mixers = [m for group, _ in ctx.layers for m in group.mixers]
    experts = any(isinstance(group.feed_forward, MixtureOfExperts) for group, _ in ctx.layers)
    if experts and experts_kernel(ctx) is ExpertsKernel.OAI_TRITON:
        return "_oai_triton"
    latent = [m for m in mixers if isinstance(m, MultiHeadLatentAttention)]
    if latent:
        return "_compressed" if any(m.compression is not None for m in latent) else "_mla"
    if any(isinstance(m, StateSpace) and m.kind in _LINEAR for m in mixers):
        return "_gated_delta"
    return "_moe" if experts else ""


_LINEAR = (StateSpaceKind.GATED_DELTA_NET, StateSpaceKind.KIMI_DELTA)


def _splits(ctx: RankContext) -> int:
    """Split-KV accumulators of a full graph: FlashAttention 3 alone bounds them, to 32 by default.

    Source: v1/attention/backends/flash_attn.py: FlashAttentionMetadataBuilder (max_num_splits), config/attention.py:
    flash_attn_max_num_splits_for_cuda_graph (0.19.0 to 0.33.0).
    """
    full = ctx.engine.cudagraph_mode.startswith("FULL")
    return 32 if full and ctx.device.sm == 90 and "FLASH_ATTN" in ctx.engine.attention_backends else 0


def _live_elements(ctx: RankContext) -> int:
    """Elements per token in the pool: the widest layer's live set, as in the profile run, and the hidden
    states kept.
    """
    hidden, tp = ctx.architecture.hidden_size, ctx.engine.parallel.tp
    widest = 0
    for group, _ in ctx.layers:
        latent = [
            m for m in group.mixers if isinstance(m, MultiHeadLatentAttention) and m.compression is not None
        ]
        widest = max([widest, *(compressed_elements(ctx, m) for m in latent)])
        out = max((attention_width(m, tp) for m in group.mixers), default=0)
        feed_forward = group.feed_forward
        if isinstance(feed_forward, DenseMLP):
            wide = 3 * share(feed_forward.intermediate_size, tp)
        elif isinstance(feed_forward, MixtureOfExperts):
            wide = 2 * hidden + 3 * share(feed_forward.shared_intermediate_size, tp)
        else:
            wide = 0
        widest = max(widest, out + 2 * hidden + wide)
    return widest + hidden


def _split_heads(ctx: RankContext) -> int:
    """Widest attention output on this rank, in elements: what split-KV accumulators repeat per split."""
    tp = ctx.engine.parallel.tp
    mixers = (m for group, _ in ctx.layers for m in group.mixers)
    return max((attention_width(m, tp) for m in mixers if isinstance(m, Attention)), default=0)
