"""CUDA graphs of runner V2 where full graphs are captured on the stream of the piecewise ones (from 0.29.0 on): one cuBLAS
workspace, one pool of blocks, and an estimate of its own.

Source: v1/worker/gpu/cudagraph_utils.py: CudaGraphManager.capture, profile_cudagraph_memory,
_extrapolate_full_graph_memory; torch/cuda/graphs.py: graph.__enter__ empties the cache (0.33.0, PyTorch 2.14).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vllm_capacity.activations.layers import attention_width
from vllm_capacity.activations.live import kv_share, share
from vllm_capacity.activations.matmul import cublas_bytes
from vllm_capacity.architecture.modules import (
    Attention,
    DenseMLP,
    LayerGroup,
    MixtureOfExperts,
    VocabEmbedding,
)
from vllm_capacity.calibration import Measurement
from vllm_capacity.context import RankContext
from vllm_capacity.frozen import dataclass
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.speculative import draft_rank
from vllm_capacity.units import DTYPE_BYTES, MIB, cdiv, round_up

SEGMENT, LARGE = 20 * MIB, 10 * MIB
LEAST_PER_GRAPH = MIB
"""What vLLM counts a further full graph as, at least (_MIN_PER_GRAPH_BYTES)."""
SAMPLES = 2
"""Full graphs that the estimate captures (_FULL_GRAPH_PROFILING_SAMPLES)."""


PAGE = 2 * MIB
"""The driver hands out memory in pages; part of one is left from before."""
SOURCE = "v1/worker/gpu/cudagraph_utils.py: profile_cudagraph_memory, CudaGraphManager.capture"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What is captured: `piecewise` graphs up to `largest` tokens and `full` ones of these sizes, largest first. A node takes
    so many bytes per graph and layer; layers are counted in halves.
    """

    largest: int
    piecewise: int
    full: tuple[int, ...]
    splits: int
    workspaces: int
    """Streams that a capture runs on: shared experts have one of their own."""
    halves: int
    piecewise_node: Measurement
    full_node: Measurement
    more: tuple[int, ...] = ()
    """Tensors of the largest full graph beside those of its layers: a draft's logits."""
    drafts: tuple[Shapes, ...] = ()
    """What a speculator captures."""

    def driver_bytes(self, full: int, which: str) -> int:
        """Driver memory of all piecewise graphs and `full` full ones, and of all of a speculator; `which` figure of the
        measurements.
        """
        nodes = self.piecewise * getattr(self.piecewise_node, which) + full * getattr(self.full_node, which)
        return int(nodes) * self.halves // 2 + sum(d.driver_bytes(len(d.full), which) for d in self.drafts)


def estimate_term(shapes: Shapes, pool: SharedPool) -> MemoryTerm:
    """vLLM's estimate: what all piecewise graphs and two full ones took, and the other full ones like the second of them,
    whose capture first gave back what its warm-up had cached.
    """
    low, n_bytes, high = (_estimated(shapes, pool, which) for which in ("low", "n_bytes", "high"))
    full = len(shapes.full)
    return term(
        "graph_estimate",
        Component.CUDA_GRAPHS,
        "pool + probe - second + (full - 1) * max(second, least)" if full > 1 else "pool + probe",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.AFTER_PROFILE,
        source=SOURCE + ", _extrapolate_full_graph_memory",
        low=max(0, min(low, n_bytes) - pool.doubtful(shapes)),
        high=max(high, n_bytes) + pool.doubtful(shapes),
        note=f"driver memory per graph and layer ({shapes.piecewise_node.name}, {shapes.full_node.name})",
        pool=pool.n_bytes,
        probe=_probed(shapes, "n_bytes"),
        **(
            {"second": _second(shapes, pool, "n_bytes"), "full": full, "least": LEAST_PER_GRAPH}
            if full > 1
            else {}
        ),
    )


def shared_pool_terms(shapes: Shapes, pool: SharedPool) -> Iterator[MemoryTerm]:
    """What the estimate's graphs leave with the driver, and the graphs themselves, which use it again."""
    full = len(shapes.full)
    yield term(
        "graph_probe",
        Component.CUDA_CONTEXT,
        "((piecewise * piecewise_node + probed * full_node) * halves // 2 + drafts) // page * page",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.AFTER_PROFILE,
        source="v1/worker/gpu_worker.py: determine_available_memory; v1/worker/gpu/cudagraph_utils.py",
        low=_probed(shapes, "low"),
        high=_probed(shapes, "high"),
        note="destroying a graph leaves its memory with the driver",
        piecewise=shapes.piecewise,
        piecewise_node=shapes.piecewise_node.n_bytes,
        probed=min(SAMPLES, full),
        full_node=shapes.full_node.n_bytes,
        halves=shapes.halves,
        drafts=sum(d.driver_bytes(len(d.full), "n_bytes") for d in shapes.drafts),
        page=PAGE,
    )
    rest = max(0, full - SAMPLES)
    low, high = (rest * node * shapes.halves // 2 for node in (shapes.full_node.low, shapes.full_node.high))
    yield term(
        "cuda_graphs",
        Component.CUDA_GRAPHS,
        "workspace + outputs + tensors + splits + drafts + further * node * halves // 2 // page * page",
        allocator=Allocator.CUDA,
        lifetime=Lifetime.AFTER_PROFILE,
        source=SOURCE,
        low=pool.n_bytes + low // PAGE * PAGE - pool.doubtful(shapes),
        high=pool.n_bytes + high + pool.doubtful(shapes),
        note=f"driver memory per full graph and layer ({shapes.full_node.name}: {shapes.full_node.origin})",
        workspace=pool.workspace,
        outputs=pool.outputs,
        tensors=pool.tensors,
        splits=pool.splits,
        drafts=pool.drafts,
        further=rest,
        node=shapes.full_node.n_bytes,
        halves=shapes.halves,
        page=PAGE,
    )


def _probed(shapes: Shapes, which: str) -> int:
    return shapes.driver_bytes(min(SAMPLES, len(shapes.full)), which) // PAGE * PAGE


def _second(shapes: Shapes, pool: SharedPool, which: str) -> int:
    """The sample of the second full graph: its driver memory less what was given back to make room."""
    return int(getattr(shapes.full_node, which)) * shapes.halves // 2 - pool.second_warm_up


def _estimated(shapes: Shapes, pool: SharedPool, which: str) -> int:
    full = len(shapes.full)
    measured = pool.n_bytes + _probed(shapes, which)
    if full < SAMPLES:
        return measured
    second = _second(shapes, pool, which)
    return max(0, measured - second + (full - 1) * max(second, LEAST_PER_GRAPH))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPool:
    """Bytes that PyTorch reserves for all graphs of this rank, by what holds them."""

    workspace: int
    """cuBLAS's, of each stream; that of shared experts is not recorded for these releases, but for 0.26.0."""
    outputs: int
    """The full graphs' hidden states."""
    tensors: int
    """The graphs' own pool: tensors of the largest batch."""
    splits: int
    """FlashAttention 3's split-KV accumulators of the largest decode batch."""
    second_warm_up: int
    """What the second full graph's warm-up left in the cache, which its capture gives back: the estimate's sample of it
    is less by that much."""
    drafts: int = 0
    """All of the speculator's: blocks belong to the stream that they were made for."""

    @property
    def n_bytes(self) -> int:
        return self.workspace + self.outputs + self.tensors + self.splits + self.drafts

    def doubtful(self, shapes: Shapes) -> int:
        """Half of the tensors where there are more than small ones, and the workspaces beyond the capture's own."""
        extra = self.workspace - self.workspace // shapes.workspaces
        return extra + (self.tensors // 2 if self.tensors > SEGMENT else 0)


def decode_sizes(sizes: Iterable[int], query: int, max_num_seqs: int) -> list[int]:
    """Capture sizes as whole requests of `query` tokens: v1/worker/gpu/cudagraph_utils.py, _init_candidates (0.26.0 to
    0.33.0).
    """
    given = sorted(sizes)
    rounded = (round_up(size, query) for size in given)
    return [s for s in dict.fromkeys(rounded) if s <= min(query * max_num_seqs, given[-1])]


def head_of_draft(draft: RankContext, target: RankContext) -> tuple[int, ...]:
    """Elements per row of a draft's logits: its head's, or the target's, and beside them those of the target's vocabulary where
    ids are mapped (models/llama_eagle3.py: compute_logits).
    """
    modules = [placed.module for placed in draft.architecture.outside]
    heads = [m.rows for m in modules if isinstance(m, VocabEmbedding) and m.name.endswith("lm_head")]
    mapped = any(module.name == "draft_id_to_target_id" for module in modules)
    own = heads[0] if heads else target.architecture.vocab_size
    return (own, draft.architecture.vocab_size) if mapped else (own,)


def shared_pool(ctx: RankContext, shapes: Shapes, drafts: tuple[Shapes, ...] = ()) -> SharedPool:
    """The pool for the largest batch and the full graphs of these sizes.

    A later graph finds the blocks of earlier ones free. Tensors of 1 to 10 MiB share segments of 20 MiB, larger ones have
    their own, smaller ones lie in segments of 2 MiB (c10/cuda/CUDACachingAllocator.cpp: get_allocation_size).
    """
    full, splits = shapes.full, shapes.splits
    width, heads = _split_width(ctx)
    el = DTYPE_BYTES[ctx.engine.dtype]
    first = full[0] if full else 0
    accumulators = 4 * first * splits * width
    own = round_up(accumulators, 2 * MIB) if accumulators >= LARGE else 0
    rest = (0 if own else accumulators, 4 * first * splits * heads)
    outputs = first * ctx.architecture.hidden_size * el
    room = SEGMENT - outputs if MIB < outputs < LARGE else 0
    return SharedPool(
        workspace=shapes.workspaces * cublas_bytes(ctx.device, ctx.engine.environment),
        outputs=_segments([outputs]) if outputs else 0,
        tensors=max(_segments([*tensors, *rest, *shapes.more]) for tensors in _live(ctx, shapes.largest)),
        splits=own,
        second_warm_up=_warm_up(ctx, full[1], splits, room) if len(full) > 1 else 0,
        drafts=_drafts(ctx, drafts),
    )


def _drafts(ctx: RankContext, drafts: tuple[Shapes, ...]) -> int:
    draft = draft_rank(ctx) if drafts else None
    if draft is None:
        return 0
    total = 0
    for shapes in drafts:
        alone = shared_pool(draft, shapes)
        total += alone.workspace + alone.tensors + alone.splits
    return total


def _warm_up(ctx: RankContext, tokens: int, splits: int, room: int) -> int:
    """Large segments that an uncaptured forward of `tokens` leaves in the cache: the accumulators' serves the MLP, too.
    `room` is what is left in the segment of the outputs.
    """
    width, heads = _split_width(ctx)
    accumulators, sums = 4 * tokens * splits * width, 4 * tokens * splits * heads
    own = round_up(accumulators, 2 * MIB) if accumulators >= LARGE else 0
    kept = 0
    for tensors in _live(ctx, tokens):
        alive = [*tensors, sums] if own else [*tensors, accumulators, sums]
        middle = sum(n for n in alive if MIB < n < LARGE)
        big = sum(round_up(n, 2 * MIB) for n in alive if n >= LARGE)
        kept = max(kept, SEGMENT * cdiv(max(0, middle - room), SEGMENT) + max(0, big - own))
    return kept + own


def _segments(tensors: Iterable[int]) -> int:
    alive = list(tensors)
    small = sum(round_up(n, 512) for n in alive if n <= MIB)
    middle = sum(n for n in alive if MIB < n < LARGE)
    big = sum(round_up(n, 2 * MIB) for n in alive if n >= LARGE)
    return 2 * MIB * cdiv(small, 2 * MIB) + SEGMENT * cdiv(middle, SEGMENT) + big


def _live(ctx: RankContext, tokens: int) -> list[list[int]]:
    """Per kind of layer the tensors of one graph at `tokens`: those of the attention piece that are not larger than an
    MLP's serve both."""
    el = DTYPE_BYTES[ctx.engine.dtype]
    found = [[tokens * n * el for n in _elements(ctx, group)] for group, _ in ctx.layers]
    return found or [[tokens * ctx.architecture.hidden_size * el]]


def _elements(ctx: RankContext, group: LayerGroup) -> list[int]:
    """Elements per token of what a layer holds at once: attention's tensors, and the MLP's wide ones beside them."""
    tp, hidden = ctx.engine.parallel.tp, ctx.architecture.hidden_size
    out = max((attention_width(mixer, tp) for mixer in group.mixers), default=0)
    sizes = [out, hidden, hidden, out]
    for mixer in group.mixers:
        if isinstance(mixer, Attention):
            q = share(mixer.num_heads, tp) * mixer.head_size
            k = kv_share(mixer.num_kv_heads, tp) * mixer.head_size
            sizes += [q + k + kv_share(mixer.num_kv_heads, tp) * mixer.head_size_v, q, k]
            break
    feed_forward = group.feed_forward
    if isinstance(feed_forward, DenseMLP):
        width = share(feed_forward.intermediate_size, tp)
        sizes += [2 * width if feed_forward.gated else width, width]
    elif isinstance(feed_forward, MixtureOfExperts):
        width = share(feed_forward.shared_intermediate_size, tp)
        sizes += [hidden, hidden, 2 * width, width]
    return [n for n in sizes if n]


def _split_width(ctx: RankContext) -> tuple[int, int]:
    """(elements of the widest attention output on this rank, its heads): what accumulators repeat per split."""
    tp = ctx.engine.parallel.tp
    found = [
        (attention_width(mixer, tp), share(mixer.num_heads, tp))
        for group, _ in ctx.layers
        for mixer in group.mixers
        if isinstance(mixer, Attention)
    ]
    return max(found, default=(0, 0))
