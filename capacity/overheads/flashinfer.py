"""FlashInfer's attention workspaces. Created with the attention metadata builders, after the KV cache was
sized.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.architecture.modules import Attention, MultiHeadLatentAttention
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.terms import nothing, switched_on
from vllm_capacity.units import MIB

BACKEND = "v1/attention/backends/flashinfer.py: _get_workspace_buffer"
DEFAULT_WORKSPACE = 394 * MIB
"""VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE (envs.py)."""
BATCH_INVARIANT_WORKSPACE = 2048 * MIB


def flashinfer_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """One workspace for FlashInfer's GQA backend (per builder on runner V1), MLA decode, sparse MLA."""
    chosen = ctx.engine.attention_backends
    ours = [name.removeprefix("TRITON_") for name in chosen]
    ours = [name for name in ours if name.startswith("FLASHINFER")]
    if _made_at_import(ctx):
        yield term(
            "flashinfer_mla_workspace",
            Component.FLASHINFER,
            "128 * 1048576",
            lifetime=Lifetime.LOAD,
            source="v1/attention/backends/mla/flashinfer_mla.py: g_fi_workspace; platforms/cuda.py: get_valid_backends",
            note="made when vLLM imports the backend to ask whether it can be used, whichever it then chooses",
        )
    elif not ours:
        yield nothing(
            "flashinfer_workspace",
            Component.FLASHINFER,
            source=BACKEND,
            reason=f"{', '.join(chosen) or 'no attention backend'} is chosen on sm{ctx.device.sm}",
        )
    if "FLASHINFER" in ours:
        yield _attention(ctx)
        if ctx.release.has("flashinfer_counters_at_load"):
            yield _counters(ctx)
        if 100 <= ctx.device.sm < 110:
            yield term(
                "flashinfer_trtllm_workspace",
                Component.FLASHINFER,
                "workspace",
                lifetime=Lifetime.AFTER_PROFILE,
                source="v1/attention/backends/flashinfer.py: _get_trtllm_workspace_buffer",
                workspace=_configured(ctx),
                note="one for the process, at the first TRT-LLM kernel",
            )
    if "FLASHINFER_MLA" in ours and not _made_at_import(ctx):
        lse = 2 if ctx.engine.parallel.dcp > 1 else 1
        yield term(
            "flashinfer_mla_workspace",
            Component.FLASHINFER,
            "128 * 1048576 * lse",
            lifetime=Lifetime.AFTER_PROFILE,
            source="v1/attention/backends/mla/flashinfer_mla.py: _get_workspace_buffer",
            lse=lse,
        )
    if "FLASHINFER_MLA_SPARSE" in ours:
        yield term(
            "flashinfer_sparse_workspace",
            Component.FLASHINFER,
            "workspace",
            lifetime=Lifetime.AFTER_PROFILE,
            source="v1/attention/backends/mla/flashinfer_mla_sparse.py",
            workspace=_configured(ctx),
        )


def _made_at_import(ctx: RankContext) -> bool:
    """Whether this rank's dense MLA layers made vLLM go through its list of backends (platforms/cuda.py), FlashInfer's
    among them. DeepSeek V4's layers name their own backend.
    """
    if (
        not ctx.release.has("flashinfer_mla_workspace_at_import")
        or ctx.engine.args.attention_backend is not None
    ):
        return False
    mixers = [m for group, _ in ctx.layers for m in group.mixers]
    return any(isinstance(m, MultiHeadLatentAttention) and m.compression is None for m in mixers)


def _configured(ctx: RankContext) -> int:
    value = ctx.engine.environment.get("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE")
    return int(value) if value and value.isdecimal() else DEFAULT_WORKSPACE


def _counters(ctx: RankContext) -> MemoryTerm:
    """One for the process, as large as the layer with the most heads asks for."""
    mixers = [m for group, _ in ctx.layers for m in group.mixers if isinstance(m, Attention)]
    parallel = ctx.engine.parallel
    return term(
        "flashinfer_counters",
        Component.FLASHINFER,
        "4 * -(-max(tokens * heads, processors) // 8) * 8",
        lifetime=Lifetime.LOAD,
        source="v1/attention/backends/flashinfer.py: FlashInferImpl.__init__; flashinfer/utils.py:"
        " get_trtllm_gen_multi_ctas_kv_counter_bytes",
        tokens=ctx.engine.max_num_batched_tokens,
        heads=max((max(1, m.num_heads // parallel.tp) for m in mixers), default=0) * parallel.dcp,
        processors=ctx.device.num_sms,
    )


def _attention(ctx: RankContext) -> MemoryTerm:
    """`max(configured, tokens x query heads x head size x 16)` since 0.26.0; before, what is configured."""
    mixers = [m for group, _ in ctx.layers for m in group.mixers if isinstance(m, Attention)]
    footprint = max((max(1, m.num_heads // ctx.engine.parallel.tp) * m.head_size for m in mixers), default=0)
    floor = _configured(ctx)
    per_element = 16 if ctx.release.has("flashinfer_head_footprint") else 0
    if switched_on(ctx, "VLLM_BATCH_INVARIANT", False):
        floor, per_element = BATCH_INVARIANT_WORKSPACE, 0
    builders = 1
    if ctx.engine.model_runner == "V1":
        builders = max(1, len(ctx.kv_groups)) * (2 if ctx.engine.args.other("enable_dbo") else 1)
    return term(
        "flashinfer_workspace",
        Component.FLASHINFER,
        "builders * max(configured, tokens * footprint * per_element)",
        lifetime=Lifetime.AFTER_PROFILE,
        source=BACKEND,
        note="allocated with the metadata builders, after the KV cache was sized",
        builders=builders,
        configured=floor,
        tokens=ctx.engine.max_num_batched_tokens,
        footprint=footprint,
        per_element=per_element,
    )
