"""DeepSeek V4's attention over compressed latents, between residual streams that every layer mixes.

Nothing is projected up; no attention kernel runs in the profile. Three moments compete: the indexer with its dummy logits,
the queries while they are padded to the kernel's heads, and the output projection; since 0.28 the indexer selects while
the queries are there. Up to 0.22 the model is compiled, with the attention operation as the cut; from 0.23 on it never is:
Python locals keep what they name.

Source: models/deepseek_v4/attention.py: forward, attention_impl, _fused_qnorm_rope_kv_insert (profile branch);
models/deepseek_v4/nvidia/model.py: DeepseekV4DecoderLayer.forward, DeepseekV4Model.forward; nvidia/ops/o_proj.py;
utils/multi_stream_utils.py: execute_in_parallel (0.22.0, 0.26.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from vllm_capacity.activations.live import Phase, Sizes, phase, share, transient
from vllm_capacity.activations.quant_kind import quantises_activations
from vllm_capacity.architecture.modules import Compression, MultiHeadLatentAttention
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import MemoryTerm

ATTENTION = "models/deepseek_v4/attention.py: DeepseekV4Attention.forward"
COMPRESSED_PHASES = ("indexer", "queries", "output projection", "mixing")
"""Names of the phases below."""
SCALE_GROUP = 128
"""Values of an activation that share one fp32 scale."""


def compressed_phases(
    ctx: RankContext,
    sizes: Sizes,
    mixer: MultiHeadLatentAttention,
    compression: Compression,
    kept: tuple[MemoryTerm, ...],
) -> Iterator[Phase]:
    """The moments of one kind of layer. `kept` is alive in each."""
    heads, head = share(mixer.num_heads, sizes.tp), mixer.v_head_dim
    padded = padded_heads(ctx, heads)
    output = transient(
        "padded_attention_output",
        "tokens * padded * head * el",
        ATTENTION,
        note="as many heads as the kernel takes",
        tokens=sizes.tokens,
        padded=padded,
        head=head,
        el=sizes.el,
    )
    streams, projections = _streams(ctx, sizes), _projections(sizes, mixer, compression.ratio)
    within = (*kept, *streams, output, projections)
    queries = _queries(ctx, sizes, mixer, heads, padded)
    if mixer.indexer is not None and ctx.release.has("deepseek_v4_indexer_after_queries"):
        indexer, logits = _indexer(ctx, sizes, mixer)
        yield phase("queries", (*within, indexer, queries))
        yield phase("indexer", (*within, indexer, logits, *_beside_indexer(ctx, sizes, mixer, padded)))
    else:
        if mixer.indexer is not None:
            yield phase("indexer", (*within, *_indexer(ctx, sizes, mixer)))
        yield phase("queries", (*within, queries))
    after = (*kept, *streams, output)
    if not ctx.engine.compiled and ctx.release.has("deepseek_v4_latents_stay"):
        after = within
    yield phase("output projection", (*after, _output_projection(ctx, sizes, mixer, heads)))
    if ctx.engine.compiled:
        yield phase("mixing", (*kept, *streams, output, _next_piece(ctx, sizes, padded * head)))


def padded_heads(ctx: RankContext, heads: int) -> int:
    """Query heads that the kernel takes: 64 or 128; FlashInfer's of Blackwell's sm120 also 16 and 32.

    Source: get_padded_num_q_heads in models/deepseek_v4/nvidia/flashmla.py and flashinfer_sparse.py (0.26.0).
    """
    steps = (16, 32, 64) if "FLASHINFER_MLA_SPARSE_DSV4" in ctx.engine.attention_backends else (64,)
    return next((step for step in steps if heads <= step), 128)


def indexer_logits(ctx: RankContext) -> int:
    """Bytes of the dummy that stands for an indexer's logits (envs.py: VLLM_SPARSE_INDEXER_MAX_LOGITS_MB)."""
    return int(ctx.engine.environment.get("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", 512)) << 20


def compressed_streams(ctx: RankContext) -> int:
    """Streams on which batches of up to 1,024 tokens call cuBLAS beside the main one: for the compressor's product, and for
    the indexer's two.

    Source: models/deepseek_v4/attention.py: attn_gemm_parallel_execute; envs.py: VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD
    (0.22.0, 0.26.0).
    """
    mixers = [m for group, _ in ctx.layers for m in group.mixers if isinstance(m, MultiHeadLatentAttention)]
    kinds = [m for m in mixers if m.compression is not None and m.compression.ratio > 1]
    return 3 if any(m.indexer for m in kinds) else int(bool(kinds))


def compressed_elements(ctx: RankContext, mixer: MultiHeadLatentAttention) -> int:
    """Elements per token alive while a layer's queries are padded, as in the profile run."""
    assert mixer.compression is not None
    sizes = replace(Sizes.of(ctx), tokens=1 << 10)
    alive = compressed_phases(ctx, sizes, mixer, mixer.compression, ())
    return max(p.n_bytes for p in alive if p.name != "indexer") // (sizes.tokens * sizes.el)


def _streams(ctx: RankContext, sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """The layer's residual streams and its input, mixed from them. Uncompiled, the caller holds the last layer's streams
    and output beside them.
    """
    compiled, streams = ctx.engine.compiled, ctx.config.integer("hc_mult", 1)
    held = 1 if compiled or not ctx.release.has("deepseek_v4_fused_mixing") else 2
    return (
        transient(
            "residual_streams",
            "held * (tokens * streams * hidden * el + 4 * tokens * streams + 4 * tokens * streams * streams)",
            "models/deepseek_v4/nvidia/model.py: DeepseekV4DecoderLayer.forward",
            note="with the weights that mix them" + ("" if compiled else "; the caller's beside the layer's"),
            held=held,
            tokens=sizes.tokens,
            streams=streams,
            hidden=sizes.hidden,
            el=sizes.el,
        ),
        transient(
            "mixed_hidden_states",
            "held * tokens * hidden * el",
            "models/deepseek_v4/nvidia/model.py: DeepseekV4DecoderLayer.forward",
            held=held,
            tokens=sizes.tokens,
            hidden=sizes.hidden,
            el=sizes.el,
        ),
    )


def _projections(sizes: Sizes, mixer: MultiHeadLatentAttention, ratio: int) -> MemoryTerm:
    """The fused projection beside its two normed parts, and the compressors' keys and scores in fp32: of two windows
    that overlap with ratio 4, where the indexer has a compressor and head weights of its own.
    """
    indexer = mixer.indexer
    return transient(
        "latent_projections",
        "tokens * (2 * (q_lora + head) + index_heads) * el + 4 * tokens * (scores + index_scores)",
        ATTENTION + ", attn_gemm_parallel_execute",
        note="fused projection, its normed parts, what the compressors read",
        tokens=sizes.tokens,
        q_lora=mixer.q_lora_rank or 0,
        head=mixer.v_head_dim,
        index_heads=indexer.num_heads if indexer else 0,
        scores=0 if ratio <= 1 else (4 if ratio == 4 else 2) * mixer.v_head_dim,
        index_scores=4 * indexer.head_size if indexer else 0,
        el=sizes.el,
    )


def _indexer(
    ctx: RankContext, sizes: Sizes, mixer: MultiHeadLatentAttention
) -> tuple[MemoryTerm, MemoryTerm]:
    """Its quantised queries with their weights, and the larger of what they are made from and the dummy logits after it.
    It is launched before the queries exist.
    """
    assert mixer.indexer is not None
    values: dict[str, Any] = {
        "tokens": sizes.tokens,
        "heads": mixer.indexer.num_heads,
        "head": mixer.indexer.head_size,
    }
    return (
        transient(
            "indexer_queries",
            "tokens * heads * (head + 4)",
            "models/deepseek_v4/common/ops/fused_indexer_q.py: fused_indexer_q_rope_quant",
            **values,
        ),
        transient(
            "indexer_logits_dummy",
            "max(megabytes * 1048576, tokens * heads * head * el)",
            "layers/sparse_attn_indexer.py: sparse_attn_indexer (profile branch); DeepseekV4Indexer.forward",
            note="one indexer layer at a time",
            megabytes=indexer_logits(ctx) >> 20,
            el=sizes.el,
            **values,
        ),
    )


def _beside_indexer(
    ctx: RankContext, sizes: Sizes, mixer: MultiHeadLatentAttention, padded: int
) -> Iterator[MemoryTerm]:
    """The queries, which exist when the indexer selects, and the exchange of what it found where the ranks share rows.

    Source: models/deepseek_v4/attention.py: _sparse_indexer_and_attn (0.28.0); layers/sparse_attn_indexer.py:
    _reserve_row_shard_exchange_transient; v1/attention/backends/mla/indexer.py: tp_prefill_row_sharding_supported (0.32.0).
    """
    yield transient(
        "queries",
        "tokens * padded * head * el",
        "models/deepseek_v4/attention.py: _prepare_and_attn",
        tokens=sizes.tokens,
        padded=padded,
        head=mixer.v_head_dim,
        el=sizes.el,
    )
    assert mixer.indexer is not None
    if sizes.tp > 1 and ctx.release.has("indexer_rows_shared"):
        yield transient(
            "indexer_exchange",
            "2 * tokens * topk * 4",
            "layers/sparse_attn_indexer.py: _reserve_row_shard_exchange_transient",
            tokens=sizes.tokens,
            topk=mixer.indexer.top_k,
        )


def _queries(
    ctx: RankContext, sizes: Sizes, mixer: MultiHeadLatentAttention, heads: int, padded: int
) -> MemoryTerm:
    """The queries, and their padded copy; without one, what they are projected from."""
    quantised = quantises_activations(ctx)
    return transient(
        "queries",
        "tokens * heads * head * el + max(tokens * copied * head * el, tokens * q_lora + 4 * tokens * groups)",
        "models/deepseek_v4/attention.py: _fused_qnorm_rope_kv_insert (profile branch)",
        note="padded for the kernel" if heads < padded else "",
        tokens=sizes.tokens,
        heads=heads,
        copied=padded if heads < padded else 0,
        head=mixer.v_head_dim,
        q_lora=(mixer.q_lora_rank or 0) if quantised else 0,
        groups=(mixer.q_lora_rank or 0) // SCALE_GROUP if quantised else 0,
        el=sizes.el,
    )


def _output_projection(
    ctx: RankContext, sizes: Sizes, mixer: MultiHeadLatentAttention, heads: int
) -> MemoryTerm:
    """Output with its rope undone, in fp8 with scales; the groups' low-rank product; then the projection's output beside
    its quantised input, or beside the sum over the ranks.
    """
    quantised = quantises_activations(ctx)
    rank = share(ctx.config.size("o_groups"), sizes.tp) * ctx.config.size("o_lora_rank")
    return transient(
        "output_projection",
        "tokens * width + 4 * tokens * width // group + tokens * rank * el + tokens * hidden * el"
        " + max(quantised * (tokens * rank + 4 * tokens * rank // group + 512), reduced * tokens * hidden * el)",
        "models/deepseek_v4/nvidia/ops/o_proj.py: deep_gemm_fp8_o_proj",
        note="fp8 output, low-rank product, hidden states",
        tokens=sizes.tokens,
        width=heads * mixer.v_head_dim,
        group=SCALE_GROUP,
        rank=rank,
        hidden=sizes.hidden,
        quantised=int(quantised),
        reduced=int(sizes.tp > 1),
        el=sizes.el,
    )


def _next_piece(ctx: RankContext, sizes: Sizes, padded: int) -> MemoryTerm:
    """Compiled: a piece ends where the next layer's attention begins. Its inputs, an attention's output and the streams
    before it, live beside the new streams and the next output's buffer.

    Source: compilation/codegen.py (inputs of a piece live until it returns) (0.22.0).
    """
    streams = ctx.config.integer("hc_mult", 1)
    return transient(
        "next_piece",
        "tokens * (streams * hidden + max(padded, streams * hidden + hidden)) * el",
        "compilation/codegen.py; models/deepseek_v4/nvidia/model.py: DeepseekV4DecoderLayer.forward",
        note="read off the source; no run that it decides is recorded",
        tokens=sizes.tokens,
        streams=streams,
        hidden=sizes.hidden,
        padded=padded,
        el=sizes.el,
    )
