"""Tensors of model runner V2's speculator, which drafts with a model, in the order in which it makes them."""

from __future__ import annotations

from vllm_capacity.context import RankContext
from vllm_capacity.engine_defaults.speculation import resolve_speculation
from vllm_capacity.units import DTYPE_BYTES

WITHOUT_MODEL = frozenset({None, "ngram", "ngram_gpu", "suffix"})


def draft_tensors(ctx: RankContext) -> tuple[int, ...]:
    """Bytes of each, between the states of the requests and the batch's inputs (v1/worker/gpu/model_runner.py: __init__)."""
    if resolve_speculation(ctx.engine.args, ctx.config).method in WITHOUT_MODEL or not ctx.is_last_stage:
        return ()
    hidden = ctx.engine.max_num_batched_tokens * ctx.architecture.hidden_size * DTYPE_BYTES[ctx.engine.dtype]
    inputs, later = _inputs(ctx), _later(ctx)
    return (*inputs, hidden, *later)


def draft_inputs(ctx: RankContext) -> tuple[int, ...]:
    """All but the hidden states and the logits."""
    return (*_inputs(ctx), *_later(ctx))


def _inputs(ctx: RankContext) -> tuple[int, ...]:
    """Source: v1/worker/gpu/spec_decode/speculator.py: DraftModelSpeculator.__init__ (0.26.0 to 0.33.0)."""
    tokens, sequences, drafts = (
        ctx.engine.max_num_batched_tokens, ctx.engine.max_num_seqs, ctx.engine.num_speculative_tokens
    )  # fmt: skip
    row = 4 * sequences
    batch = (4 * tokens, 8 * tokens, tokens, row + 4, row, row)
    index = 2 * row if ctx.release.has("draft_indices_int64") else row
    probabilities = (row * drafts,) if ctx.release.has("draft_confidence") else ()
    return (*batch, index, row, 2 * row, 2 * row * drafts, *probabilities)


def _later(ctx: RankContext) -> tuple[int, ...]:
    """The step, and one index or two a sequence (target_dependent_ar/speculator.py; autoregressive/speculator.py before 0.32)."""
    row = 8 * ctx.engine.max_num_seqs
    return (8, row, row) if ctx.release.has("draft_source_positions") else (8, row)
