"""Buffers of attention metadata builders other than FlashInfer's: created with the KV cache, after it was
sized.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.activations.layers import mla_workspace_tokens
from vllm_capacity.architecture.modules import MultiHeadLatentAttention
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.compressed_buffers import compressed_buffer_terms
from vllm_capacity.units import DTYPE_BYTES, round_up


def attention_buffer_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """MLA's chunked-prefill workspace or the index lists of compressed latents, Triton MLA's split buffers,
    FlashAttention's scheduler metadata.
    """
    mla = [m for group, _ in ctx.layers for m in group.mixers if isinstance(m, MultiHeadLatentAttention)]
    if mla and mla[0].compression is not None:
        yield from compressed_buffer_terms(ctx, mla[0].compression)
    elif mla:
        yield from _mla(ctx, mla[0])
        if imports_cutlass(ctx):
            yield term(
                "cutlass_mla_workspace",
                Component.WORKSPACE,
                "128 * 1048576",
                lifetime=Lifetime.LOAD,
                source="v1/attention/backends/mla/cutlass_mla.py: g_sm100_workspace; platforms/cuda.py: get_valid_backends",
                note="made when vLLM imports the backend to ask whether it can be used, whichever it then chooses",
            )
    if any(name.startswith("FLASH_ATTN") for name in ctx.engine.attention_backends):
        largest = max(ctx.engine.cudagraph_capture_sizes, default=0)
        yield term(
            "flash_attention_metadata",
            Component.WORKSPACE,
            "(1 + 4 * round_up(max(sequences, largest), 4)) * 4",
            lifetime=Lifetime.AFTER_PROFILE,
            source="v1/attention/backends/flash_attn.py: scheduler_metadata",
            sequences=ctx.engine.max_num_seqs,
            largest=largest,
        )


def imports_cutlass(ctx: RankContext) -> bool:
    """Whether a rank with latent attention imports CUTLASS MLA: all of sm10x's list is, unless one is asked for (0.22.0 to
    0.33.0).
    """
    asked = ctx.engine.args.attention_backend
    return ctx.device.compute_capability[0] == 10 and (asked is None or str(asked).upper() == "CUTLASS_MLA")


def _mla(ctx: RankContext, mixer: MultiHeadLatentAttention) -> Iterator[MemoryTerm]:
    dcp = ctx.engine.parallel.dcp
    element = DTYPE_BYTES[ctx.engine.dtype]
    yield term(
        "mla_chunked_prefill_workspace",
        Component.WORKSPACE,
        "(tokens + (tokens // dcp if dcp > 1 else 0)) * (lora + rope) * el",
        lifetime=Lifetime.AFTER_PROFILE,
        source="layers/attention/mla_attention.py: MLACommonMetadataBuilder.__init__",
        tokens=mla_workspace_tokens(ctx),
        dcp=dcp,
        lora=mixer.kv_lora_rank,
        rope=mixer.qk_rope_head_dim,
        el=element,
    )
    if "TRITON_MLA" in ctx.engine.attention_backends:
        splits = 1
        while splits < max(1, ctx.engine.max_model_len // 512):
            splits *= 2
        yield term(
            "triton_mla_splits",
            Component.WORKSPACE,
            "sequences * heads * dcp * min(splits, 2 * sms) * (lora + 1) * 4",
            lifetime=Lifetime.AFTER_PROFILE,
            source="v1/attention/backends/mla/triton_mla.py: _reserve_attn_logits_workspace",
            low=0,
            note="shares the workspace manager's buffer with MoE layers: the larger of the two counts",
            sequences=ctx.engine.max_num_seqs,
            heads=max(1, mixer.num_heads // ctx.engine.parallel.tp),
            dcp=dcp,
            splits=splits,
            sms=ctx.device.num_sms,
            lora=mixer.kv_lora_rank,
        )


def aligned_blocks(max_model_len: int, block_size: int) -> int:
    """Blocks of the longest request in a block table row, rounded as TRT-LLM asks
    (gpu/model_runner.py:425-446, 0.26.0).
    """
    blocks = -(-max_model_len // block_size)
    return round_up(blocks, 128 // block_size) if block_size <= 128 else blocks
