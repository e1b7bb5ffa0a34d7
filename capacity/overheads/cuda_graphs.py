"""CUDA graphs: what vLLM estimates and subtracts, and what they take.

A captured graph keeps its temporaries in a memory pool that all graphs share (the largest batch decides; two
streams bring a cuBLAS workspace each) and its nodes in driver memory. The driver's share grows with the
number of captured sizes times layers; the bytes per size and layer are measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.activations.layers import attention_width
from vllm_capacity.activations.live import share
from vllm_capacity.activations.moe import ExpertsKernel, experts_kernel
from vllm_capacity.activations.peak import cublas_bytes
from vllm_capacity.architecture.modules import Attention, DenseMLP, MixtureOfExperts
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.terms import measured, nothing
from vllm_capacity.units import DTYPE_BYTES

SOURCE = (
    "v1/worker/gpu_model_runner.py: profile_cudagraph_memory, capture_model; v1/worker/gpu/cudagraph_utils.py"
)


def captures(ctx: RankContext) -> bool:
    """Whether this engine captures any graph."""
    return ctx.engine.cudagraph_mode != "NONE" and bool(ctx.engine.cudagraph_capture_sizes)


def graph_count(ctx: RankContext) -> int:
    """Captures: every size piecewise, and as full decode graphs the sizes that a batch of decodes can have.

    Source: v1/cudagraph_dispatcher.py:205-231, v1/worker/gpu/cudagraph_utils.py:222-252 (0.26.0).
    """
    engine = ctx.engine
    query = 1 + engine.num_speculative_tokens
    decode = [s for s in engine.cudagraph_capture_sizes if query <= s <= query * engine.max_num_seqs]
    everything = len(engine.cudagraph_capture_sizes)
    return {
        "PIECEWISE": everything,
        "FULL": everything,
        "FULL_DECODE_ONLY": len(decode),
        "FULL_AND_PIECEWISE": everything + len(decode),
    }.get(engine.cudagraph_mode, 0)


def estimates(ctx: RankContext) -> bool:
    """Whether the runner estimates graphs before the KV cache is sized: V1 always, V2 from 0.29.0 on."""
    return ctx.engine.model_runner == "V1" or ctx.release.has("v2_graph_estimate")


def graph_estimate(ctx: RankContext) -> MemoryTerm | None:
    """vLLM's own estimate of the graphs on this rank; None where it makes none."""
    if not captures(ctx) or not estimates(ctx):
        return None
    return _graphs(ctx, "cuda_graph_estimate", "graph_nodes_estimate")


def cuda_graph_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """The graphs themselves: one term, pool and driver memory together."""
    if not captures(ctx):
        why = "--enforce-eager" if ctx.engine.enforce_eager else "no CUDA graph is captured"
        yield nothing("cuda_graphs", Component.CUDA_GRAPHS, why, source=SOURCE)
        return
    yield _graphs(ctx, "cuda_graphs", "graph_nodes")


def _graphs(ctx: RankContext, name: str, component: str) -> MemoryTerm:
    """pool + captures x layers x bytes per node set."""
    found = measured(ctx, component + _kernels(ctx))
    largest = max(ctx.engine.cudagraph_capture_sizes)
    count = graph_count(ctx)
    layers = sum([count for _, count in ctx.layers])
    live, el = _live_elements(ctx), DTYPE_BYTES[ctx.engine.dtype]
    splits, heads = measured(ctx, "graph_attention_splits").n_bytes, _split_heads(ctx)
    cublas = cublas_bytes(ctx.device)
    pool = largest * (live * el + splits * heads * 4) + 2 * cublas
    return term(
        name,
        Component.CUDA_GRAPHS,
        "largest * (live * el + splits * heads * 4) + 2 * cublas + captures * layers * node",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.AFTER_PROFILE,
        source=SOURCE,
        low=pool + count * layers * found.low,
        high=pool + count * layers * found.high,
        note=f"largest size's pool; driver memory per capture and layer ({found.name}: {found.origin})",
        largest=largest,
        live=live,
        el=el,
        splits=splits,
        heads=heads,
        cublas=cublas,
        captures=count,
        layers=layers,
        node=found.n_bytes,
    )


def _kernels(ctx: RankContext) -> str:
    """Suffix of the measurement: layers with experts have more kernels, those of triton_kernels far more."""
    if not any(isinstance(group.feed_forward, MixtureOfExperts) for group, _ in ctx.layers):
        return ""
    return "_oai_triton" if experts_kernel(ctx) is ExpertsKernel.OAI_TRITON else "_moe"


def _live_elements(ctx: RankContext) -> int:
    """Elements per token in the pool: the widest layer's live set, as in the profile run, and the hidden
    states kept.
    """
    hidden, tp = ctx.architecture.hidden_size, ctx.engine.parallel.tp
    widest = 0
    for group, _ in ctx.layers:
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
