"""Speculative decoding: the draft's weights and the buffers of the proposer. Its KV cache is planned with the
model's.

Source: v1/worker/gpu/spec_decode (runner V2), v1/spec_decode (runner V1), models/llama_eagle3.py,
models/deepseek_mtp.py (0.26.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vllm_capacity.architecture.modules import LayerGroup, MultiHeadLatentAttention
from vllm_capacity.context import RankContext, once
from vllm_capacity.engine_defaults.draft_models import Draft, draft_of
from vllm_capacity.engine_defaults.speculation import Speculation, resolve_speculation
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.draft_buffers import draft_inputs
from vllm_capacity.overheads.terms import nothing
from vllm_capacity.units import DTYPE_BYTES, round_up
from vllm_capacity.weights.allocator import LOAD_MAX_SPLIT

SOURCE = "v1/worker/gpu/spec_decode/speculator.py; v1/spec_decode/llm_base_proposer.py"
_NEXTN_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_predict")
_WITHOUT_MODEL = frozenset({"ngram", "ngram_gpu", "suffix"})


def speculative_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """Draft weights (part of what loading takes) and proposer buffers; drafts run on the last stage."""
    speculation = resolve_speculation(ctx.engine.args, ctx.config)
    if speculation.method is None:
        yield nothing(
            "draft_weights",
            Component.SPECULATIVE,
            "--speculative-config is not given",
            source=SOURCE,
            lifetime=Lifetime.LOAD,
        )
        return
    if not ctx.is_last_stage:
        yield nothing(
            "draft_weights",
            Component.SPECULATIVE,
            "drafts run on the last pipeline stage",
            source=SOURCE,
            lifetime=Lifetime.LOAD,
        )
        return
    yield _weights(ctx, speculation)
    yield from _rounding(ctx)
    yield from _buffers(ctx, speculation)


def _weights(ctx: RankContext, speculation: Speculation) -> MemoryTerm:
    method = speculation.method
    if method in _WITHOUT_MODEL:
        return nothing(
            "draft_weights",
            Component.SPECULATIVE,
            f"method {method} has no weights",
            source=SOURCE,
            lifetime=Lifetime.LOAD,
        )
    if method == "mtp":
        return _mtp(ctx)
    draft = _draft(ctx, speculation)
    if draft is None:
        return term(
            "draft_weights",
            Component.SPECULATIVE,
            "0",
            lifetime=Lifetime.LOAD,
            source=SOURCE,
            high=_share_of_target(ctx),
            note=f"the {method} draft's config.json is not known, or its class not modelled: its weights are not counted",
        )
    return _own(ctx, speculation, draft)


@once
def draft_rank(ctx: RankContext) -> RankContext | None:
    """The rank as its draft model sees it; None without one, or without one whose config is known."""
    speculation = resolve_speculation(ctx.engine.args, ctx.config)
    if speculation.method is None or speculation.method in _WITHOUT_MODEL or not ctx.is_last_stage:
        return None
    if speculation.method == "mtp":
        return _next_token_rank(ctx)
    draft = _draft(ctx, speculation)
    return None if draft is None else _rank_of(ctx, draft)


def _next_token_rank(ctx: RankContext) -> RankContext:
    """One more last layer, alone."""
    last = max(ctx.architecture.layers, key=lambda group: max(group.indices))
    return replace(
        ctx,
        layers=((replace(last, indices=(0,)), 1),),
        architecture=replace(ctx.architecture, outside=()),
        pp_rank=0,
        engine=replace(ctx.engine, parallel=replace(ctx.engine.parallel, pp=1, layer_partition=None)),
    )


def _draft(ctx: RankContext, speculation: Speculation) -> Draft | None:
    return draft_of(
        speculation, ctx.engine.args, ctx.config, ctx.architecture, ctx.release,
        max_model_len=ctx.engine.max_model_len,
    )  # fmt: skip


def _rank_of(ctx: RankContext, draft: Draft) -> RankContext:
    """With the target's tensor parallelism and no pipeline; its quantisation is its own (`get_draft_quant_config`,
    models/utils.py: 895, 0.26.0).
    """
    return replace(
        ctx,
        config=draft.config,
        architecture=draft.architecture,
        layers=tuple((group, len(group.indices)) for group in draft.architecture.layers),
        pp_rank=0,
        kv_groups=(),
        engine=replace(
            ctx.engine,
            parallel=replace(ctx.engine.parallel, pp=1, layer_partition=None),
            quantization=(draft.config.quantization or {}).get("quant_method"),
        ),
    )


def _share_of_target(ctx: RankContext) -> int:
    """A draft is smaller than a tenth of its target: the upper end where nothing is known."""
    from vllm_capacity.weights.rank import rank_weights

    return rank_weights(ctx).n_bytes // 10


DIVIDED_PROJECTION = frozenset({"exaone", "nemotron_h", "qwen3_5", "qwen3_next"})
"""Families whose draft projects embedding and hidden state with a ColumnParallelLinear (qwen3_next_mtp.py:75,
qwen3_5_mtp.py:96, nemotron_h_mtp.py:70; nn.Linear in deepseek_mtp.py:93 and glm4_moe_mtp.py:90; 0.26.0).
"""


def _mtp(ctx: RankContext) -> MemoryTerm:
    """Each next-token layer is one more last layer with a projection [H, 2H] (not quantised) and three norms.

    Embedding and head are the target's own (models/deepseek_mtp.py; v1/worker/gpu/spec_decode/eagle: shared), the
    embedding not on a later pipeline stage, which has none to share.
    """
    from vllm_capacity.weights.rank import rank_weights

    last = max(ctx.architecture.layers, key=lambda group: max(group.indices))
    count = next((ctx.config.size(key) for key in _NEXTN_KEYS if ctx.config.get(key)), 1)
    parallel, hidden = ctx.engine.parallel, ctx.architecture.hidden_size
    own_rows = round_up(ctx.architecture.vocab_size, 64) // parallel.tp if parallel.pp > 1 else 0
    return term(
        "draft_weights",
        Component.SPECULATIVE,
        "layers * (layer_bytes + (2 * hidden * rows + 3 * hidden) * el + 4 * indices * tokens) + embedding * hidden * el",
        lifetime=Lifetime.LOAD,
        source="model_executor/models/deepseek_mtp.py: DeepSeekMultiTokenPredictorLayer",
        note="one more last layer each, a projection and norms; embedding and head are shared with the model"
        if parallel.pp == 1
        else "one more last layer each, a projection and norms, an embedding; the head is shared with the model",
        layers=count,
        layer_bytes=rank_weights(_next_token_rank(ctx)).n_bytes,
        hidden=hidden,
        rows=hidden // (parallel.tp if ctx.architecture.family in DIVIDED_PROJECTION else 1),
        indices=_own_indices(last) if ctx.release.has("dsa_mtp_own_indices") else 0,
        tokens=ctx.engine.max_num_batched_tokens,
        embedding=own_rows,
        el=DTYPE_BYTES[ctx.engine.dtype],
    )


def _own_indices(last: LayerGroup) -> int:
    """Top-k indices a token that a sparse-attention draft keeps beside the target's, which its index groups refer to
    (models/deepseek_v32/nvidia/mtp.py:81-90, 0.33.0).
    """
    latent = (m for m in last.mixers if isinstance(m, MultiHeadLatentAttention) and m.indexer is not None)
    return next((mixer.indexer.top_k for mixer in latent if mixer.indexer), 0)


def _own(ctx: RankContext, speculation: Speculation, draft: Draft) -> MemoryTerm:
    """A draft with a config of its own."""
    from vllm_capacity.weights.rank import rank_weights

    head = speculation.method in ("eagle", "eagle3")
    return term(
        "draft_weights",
        Component.SPECULATIVE,
        "weights",
        lifetime=Lifetime.LOAD,
        source="model_executor/models/llama_eagle3.py, llama_eagle.py"
        if head
        else "v1/spec_decode/draft_model.py",
        note="the embedding is the model's own" if head and ctx.engine.parallel.pp == 1 else "",
        weights=rank_weights(_rank_of(ctx, draft)).n_bytes,
    )


def _rounding(ctx: RankContext) -> Iterator[MemoryTerm]:
    """What PyTorch counts beyond the tensors of a draft that is built from a config of its own."""
    from vllm_capacity.weights.rank import rank_weights
    from vllm_capacity.weights.terms import allocated_bytes

    draft = draft_rank(ctx)
    if draft is None:
        return
    weights = rank_weights(draft)
    yield term(
        "draft_rounding",
        Component.SPECULATIVE,
        "blocks_bytes - tensor_bytes",
        lifetime=Lifetime.LOAD,
        source="c10/cuda/CUDACachingAllocator.cpp",
        note="PyTorch counts whole blocks",
        blocks_bytes=allocated_bytes(
            weights, max_split=LOAD_MAX_SPLIT if ctx.release.has("load_max_split_size") else None
        ),
        tensor_bytes=weights.n_bytes,
    )


def _buffers(ctx: RankContext, speculation: Speculation) -> Iterator[MemoryTerm]:
    if speculation.method in _WITHOUT_MODEL:
        return
    engine, v2 = ctx.engine, ctx.engine.model_runner == "V2"
    yield term(
        "draft_hidden_states",
        Component.SPECULATIVE,
        "copies * tokens * hidden * el",
        lifetime=Lifetime.RUNNER_INIT,
        source="v1/worker/gpu/spec_decode/autoregressive/speculator.py"
        if v2
        else "v1/spec_decode/llm_base_proposer.py",
        copies=1 + int(ctx.architecture.is_multimodal or not v2),
        tokens=engine.max_num_batched_tokens,
        hidden=ctx.architecture.hidden_size,
        el=DTYPE_BYTES[engine.dtype],
    )
    if v2:
        yield term(
            "draft_inputs",
            Component.SPECULATIVE,
            "blocks",
            lifetime=Lifetime.RUNNER_INIT,
            source=SOURCE,
            blocks=sum(round_up(size, 512) for size in draft_inputs(ctx)),
        )
    else:
        yield term(
            "draft_inputs",
            Component.SPECULATIVE,
            "tokens * 21 + sequences * (24 + 8 * drafts)",
            lifetime=Lifetime.RUNNER_INIT,
            source=SOURCE,
            tokens=engine.max_num_batched_tokens,
            sequences=engine.max_num_seqs,
            drafts=speculation.num_tokens,
        )
    if speculation.values.get("draft_sample_method") == "probabilistic":
        yield term(
            "draft_logits",
            Component.SPECULATIVE,
            "sequences * drafts * vocab * 4",
            lifetime=Lifetime.RUNNER_INIT,
            source="v1/worker/gpu/spec_decode/speculator.py: draft_logits",
            sequences=engine.max_num_seqs,
            drafts=speculation.num_tokens,
            vocab=ctx.architecture.vocab_size,
        )
