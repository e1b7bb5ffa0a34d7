"""The multimodal encoder in the profile run: its own phase, and what it leaves alive while the language model
runs.
"""

from __future__ import annotations

from vllm_capacity.activations.live import Phase, phase, share, transient
from vllm_capacity.activations.vision import UNLIMITED, Item, Tower, largest_item, limits, tower
from vllm_capacity.context import RankContext
from vllm_capacity.frozen import dataclass
from vllm_capacity.ledger import Component, MemoryTerm
from vllm_capacity.units import DTYPE_BYTES

SOURCE = (
    "v1/worker/gpu_model_runner.py: profile_run; v1/worker/gpu/mm/encoder_runner.py: profile_encoder_cache"
)


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """What the profile run encodes: `count` items of the largest kind."""

    item: Item
    count: int


def profiles_encoder(ctx: RankContext) -> bool:
    """Whether this runner encodes dummy items while profiling: V1 always, V2 since 0.27.0, never with
    --skip-mm-profiling.
    """
    if not ctx.architecture.is_multimodal or ctx.engine.args.other("skip_mm_profiling"):
        return False
    if ctx.engine.model_runner == "V2":
        return ctx.is_first_stage and ctx.release.has("v2_profiles_encoder")
    return True


def encoder_budget(ctx: RankContext) -> int:
    """Tokens that the encoder cache holds: one batch's, or one item's if that is larger.

    Source: `compute_mm_encoder_budget`, v1/core/encoder_cache_manager.py:269-316 (0.26.0).
    """
    item = largest_item(ctx)
    return max(ctx.engine.max_num_batched_tokens, item.tokens) if item else 0


def encoder_batch(ctx: RankContext) -> EncoderBatch | None:
    """Items of one profile run: as many as the encoder and the decoder can take
    (multimodal/encoder_budget.py:140-189).
    """
    item = largest_item(ctx)
    if item is None:
        return None
    limit = limits(ctx).get(item.modality, UNLIMITED)
    per_prompt = max(1, min(limit, ctx.engine.max_model_len // item.tokens))
    by_encoder = encoder_budget(ctx) // item.tokens
    return EncoderBatch(item, max(1, min(by_encoder, ctx.engine.max_num_seqs * per_prompt)))


def encoder_phases(
    ctx: RankContext, kept: tuple[MemoryTerm, ...]
) -> tuple[list[Phase], tuple[MemoryTerm, ...]]:
    """The encoder's phase (with what `kept` holds), and what stays alive until the profile run ends."""
    batch, shape = encoder_batch(ctx), tower(ctx)
    if not profiles_encoder(ctx) or batch is None or shape is None:
        return [], ()
    stays = _stays(ctx, batch, shape)
    working = (_resampling if shape.resampled else _working)(ctx, batch, shape)
    return [phase("encoder", (*kept, *stays, working))], stays


def _stays(ctx: RankContext, batch: EncoderBatch, shape: Tower) -> tuple[MemoryTerm, ...]:
    """Outputs in the encoder cache, and the dummy pixels that profile_run's locals hold (runner V1)."""
    el = DTYPE_BYTES[ctx.engine.dtype]
    item = batch.item
    outputs = transient(
        "encoder_outputs",
        "items * embeddings * outputs * el",
        SOURCE,
        component=Component.ENCODER,
        low=None if item.known else 0,
        items=batch.count,
        embeddings=item.embeddings,
        outputs=shape.outputs,
        el=el,
    )
    if ctx.engine.model_runner != "V1":
        return (outputs,)
    pixels = transient(
        "encoder_pixels",
        "items * elements * el",
        SOURCE,
        component=Component.ENCODER,
        low=None if item.known else 0,
        note="dummy inputs are locals of profile_run and live until it ends",
        items=batch.count,
        elements=item.pixel_elements,
        el=el,
    )
    return (outputs, pixels)


def _working(ctx: RankContext, batch: EncoderBatch, shape: Tower) -> MemoryTerm:
    """Hidden states and the widest of attention (qkv, rotated q and k, output) and MLP, for all patches at
    once; eager.

    With `--mm-encoder-tp-mode data` every rank holds whole heads and whole items; the default divides heads
    and MLP by tp.
    """
    tp = 1 if ctx.engine.args.other("mm_encoder_tp_mode") == "data" else ctx.engine.parallel.tp
    width, wide = share(shape.hidden, tp), share(shape.intermediate, tp)
    el = DTYPE_BYTES[ctx.engine.dtype]
    pixels = 0 if ctx.engine.model_runner == "V1" else batch.item.pixel_elements
    item = batch.item
    t = transient(
        "encoder_activations",
        "items * (patches * (2 * hidden + max(6 * width, mlp)) + pixels) * el",
        "model_executor/models: the vision tower's layers",
        component=Component.ENCODER,
        items=batch.count,
        patches=item.patches,
        hidden=shape.hidden,
        width=width,
        mlp=(3 if shape.gated else 2) * wide,
        pixels=pixels,
        el=el,
        low=0 if not item.known else batch.count * item.patches * 3 * shape.hidden * el,
        high=batch.count * (item.patches * (4 * shape.hidden + 8 * width + 3 * wide) + pixels) * el,
    )
    return t


def _resampling(ctx: RankContext, batch: EncoderBatch, shape: Tower) -> MemoryTerm:
    """The resampler behind the tower, whole on every rank: while its scores are computed, every patch is alive in its width
    as normed input, position, their sum, key and value; beside them the tower's output, the padded pixels and three
    tensors of queries. Scores are [slices * heads, queries, patches], heads of 128 (torch's attention returns its weights).

    `low`: the positions gone; `high`: a second copy of the scores and of the input.
    Source: models/minicpmv.py (Resampler2_5.forward), torch.nn.functional.multi_head_attention_forward.
    """
    el, item = DTYPE_BYTES[ctx.engine.dtype], batch.item
    scores = shape.resampled // 128 * shape.queries
    copies = 1 if ctx.engine.model_runner == "V1" else 2
    tower_term = _working(ctx, batch, shape)
    rest = (
        item.patches * (shape.hidden + scores)
        + copies * item.pixel_elements
        + 3 * item.embeddings * shape.resampled
    )
    wide = item.patches * shape.resampled
    found = transient(
        "encoder_activations",
        "items * (patches * (5 * resampled + hidden + scores) + copies * pixels + 3 * embeddings * resampled) * el",
        "model_executor/models/minicpmv.py: Resampler2_5.forward",
        component=Component.ENCODER,
        items=batch.count,
        patches=item.patches,
        resampled=shape.resampled,
        hidden=shape.hidden,
        scores=scores,
        copies=copies,
        pixels=item.pixel_elements,
        embeddings=item.embeddings,
        el=el,
        low=batch.count * (4 * wide + rest) * el,
        high=batch.count * (6 * wide + rest + item.patches * scores) * el,
    )
    return found if found.n_bytes >= tower_term.n_bytes else tower_term
