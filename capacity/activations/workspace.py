"""The workspace manager's buffer: one for the process, as large as the largest request made of it.

Source: v1/worker/workspace.py: WorkspaceManager.get_simultaneous (0.26.0): each part rounded up to 256 bytes.
"""

from __future__ import annotations

from dataclasses import replace

from vllm_capacity.activations.live import Sizes, persistent
from vllm_capacity.activations.moe import moe_workspace
from vllm_capacity.architecture.modules import MultiHeadLatentAttention
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import MemoryTerm
from vllm_capacity.units import round_up


def shared_workspace(ctx: RankContext, sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """The largest user on this stage: MoE layers, the sparse-attention indexer or its attention; empty without any."""
    users = [
        t
        for t in (moe_workspace(ctx, sizes), _indexer(ctx), _gathered_keys(ctx), _sparse_latents(ctx))
        if t is not None and t.n_bytes
    ]
    if not users:
        return ()
    largest = max(users, key=lambda t: t.n_bytes)
    return (_per_micro_batch(largest) if splits_batches(ctx) else largest,)


def splits_batches(ctx: RankContext) -> bool:
    """True where the profile run works on two halves of the batch: `--enable-dbo` over data-parallel ranks.

    Source: v1/worker/dp_utils.py: coordinate_batch_across_dp; config/parallel.py: use_ubatching (0.26.0).
    """
    args = ctx.engine.args
    asked = args.other("enable_dbo") or int(args.other("ubatch_size", 0)) > 1
    threshold = int(args.other("dbo_prefill_token_threshold", 512))
    return bool(asked) and ctx.engine.parallel.dp > 1 and ctx.engine.max_num_batched_tokens >= threshold


def _per_micro_batch(workspace: MemoryTerm) -> MemoryTerm:
    """One buffer per half batch, each for half the tokens: together as large as one for all.

    A batch that one rank does not split needs a whole buffer in the first place: the upper bound. Source:
    v1/worker/gpu_worker.py: init_workspace_manager(device, num_ubatches) (0.19.0 to 0.33.0).
    """
    note = "2 workspaces, each for half the batch (--enable-dbo)"
    return replace(
        workspace,
        high=workspace.high + workspace.n_bytes // 2,
        note="; ".join(filter(None, (workspace.note, note))),
    )


def _gathered_keys(ctx: RankContext) -> MemoryTerm | None:
    """DeepSeek V4: bf16 keys of four prompts, each the compressed context, the window and the batch.

    Source: models/deepseek_v4/nvidia/flashmla.py: forward_mqa (profile branch), PREFILL_CHUNK_SIZE (0.22.0, 0.26.0).
    """
    mixers = [m for group, _ in ctx.layers for m in group.mixers]
    found = [m for m in mixers if isinstance(m, MultiHeadLatentAttention) and m.compression is not None]
    if not found:
        return None
    kept = {m.compression.ratio: m for m in found if m.compression is not None}
    ratio = min((r for r in kept if r > 1), default=0)
    mixer = kept[ratio] if ratio else found[0]
    return persistent(
        "gathered_keys_workspace",
        "round_up(4 * (cdiv(max_model_len, ratio) * compressed + window + tokens) * head * 2, 256)",
        "models/deepseek_v4/nvidia/flashmla.py: forward_mqa (profile branch)",
        max_model_len=ctx.engine.max_model_len,
        ratio=max(ratio, 1),
        compressed=int(ratio > 1),
        window=mixer.compression.sliding_window if mixer.compression else 0,
        tokens=ctx.engine.max_num_batched_tokens,
        head=mixer.v_head_dim,
    )


def _indexer(ctx: RankContext) -> MemoryTerm | None:
    """Keys gathered for 40 times max_model_len, or for the latents of as many tokens: 128 fp8 bytes and 4 bytes of scale
    each, and 1 MiB for top-k.

    Source: model_executor/layers/sparse_attn_indexer.py:225-341, v1/attention/backends/mla/indexer.py:
    get_max_prefill_buffer_size (0.26.0; the same size by default up to 0.33.0).
    """
    mixers = [m for group, _ in ctx.layers for m in group.mixers]
    found = [m for m in mixers if isinstance(m, MultiHeadLatentAttention) and m.indexer]
    if not found:
        return None
    mixer = found[0]
    assert mixer.indexer is not None
    return persistent(
        "indexer_workspace",
        "round_up(40 * max_model_len // ratio * head, 256) + round_up(40 * max_model_len // ratio * 4, 256) + 1048576",
        "model_executor/layers/sparse_attn_indexer.py: sparse_attn_indexer (profile branch)",
        note="grows with --max-model-len",
        max_model_len=ctx.engine.max_model_len,
        ratio=mixer.compression.ratio if mixer.compression else 1,
        head=mixer.indexer.head_size,
    )


def _sparse_latents(ctx: RankContext) -> MemoryTerm | None:
    """Sparse FlashMLA: queries of a batch and, with an fp8 cache, five times max_model_len of bf16 latents; since 0.31
    queries and outputs as the prefill kernel pads them, too.

    Source: FlashMLASparseImpl.__init__, get_prefill_workspace_size, v1/attention/backends/mla/flashmla_sparse.py (0.22.0
    to 0.33.0): reserved while the model is loaded.
    """
    if "FLASHMLA_SPARSE" not in ctx.engine.attention_backends:
        return None
    mixers = [m for group, _ in ctx.layers for m in group.mixers if isinstance(m, MultiHeadLatentAttention)]
    if not mixers:
        return None
    heads = max(1, mixers[0].num_heads // ctx.engine.parallel.tp)
    padded = round_up(heads, 128 if ctx.device.compute_capability[0] == 10 else 64)
    fp8 = ctx.engine.kv_cache_dtype.startswith("fp8")
    wide = padded if not fp8 and ctx.release.has("dcp_sparse_flashmla") else heads
    parts = fp8 and ctx.release.has("sparse_flashmla_prefill_parts")
    return persistent(
        "sparse_latents_workspace",
        "2 * (tokens * (queries * (lora + rope) + padded * (2 * lora + rope) + outputs * lora) + latents * (lora + rope))",
        "v1/attention/backends/mla/flashmla_sparse.py: FlashMLASparseImpl.__init__",
        note="grows with --max-model-len" if fp8 else "",
        tokens=ctx.engine.max_num_batched_tokens,
        queries=wide,
        padded=padded if parts else 0,
        outputs=heads if parts else 0,
        latents=5 * ctx.engine.max_model_len if fp8 else 0,
        lora=mixers[0].kv_lora_rank,
        rope=mixers[0].qk_rope_head_dim,
    )
