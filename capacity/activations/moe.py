"""Mixture-of-experts layers: the workspace that stays, and what is alive while experts run."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from vllm_capacity.activations.layers import attention_width
from vllm_capacity.activations.live import Phase, Sizes, persistent, phase, share, transient
from vllm_capacity.activations.quant_kind import QuantKind, quant_kind, static_inputs
from vllm_capacity.architecture.modules import Experts, LayerGroup, MixtureOfExperts
from vllm_capacity.context import RankContext, once
from vllm_capacity.frozen import dataclass
from vllm_capacity.ledger import Component, MemoryTerm
from vllm_capacity.units import cdiv, round_up
from vllm_capacity.weights.model import rank_weights


class ExpertsKernel(StrEnum):
    """vLLM's experts classes by what they ask of the workspace (model_executor/layers/fused_moe/experts/)."""

    TRITON = "TritonExperts"
    MARLIN = "MarlinExperts"
    HUMMING = "HummingExperts"
    CUTLASS_FP8 = "CutlassExpertsFp8"
    FLASHINFER_CUTLASS = "FlashInferExperts"
    FLASHINFER_TRTLLM = "TrtLlmExperts"
    OAI_TRITON = "OAITritonMxfp4ExpertsMonolithic"


def experts_kernel(ctx: RankContext, *, quantised: bool = True) -> ExpertsKernel:
    """The experts class that vLLM's oracle puts first for this device and these weights.

    Source: `_get_priority_backends` in fused_moe/oracle/{unquantized,fp8,mxfp4,nvfp4,int_wna16}.py (0.26.0):
    Hopper prefers Triton over FlashInfer for bf16 and for block fp8 without expert parallelism. FlashInfer takes fp8 inputs
    with a static scale alone, vLLM's Cutlass is asked where the method allows it (`allow_vllm_cutlass`).
    """
    forced = ctx.engine.args.other("moe_backend")
    if forced in _FORCED:
        return _FORCED[forced]
    if quantised and _on_humming(ctx):
        return ExpertsKernel.HUMMING
    kind, sm = (quant_kind(ctx) if quantised else QuantKind.NONE), ctx.device.sm
    blackwell = 100 <= sm < 110
    parallel = ctx.engine.parallel
    if quantised and _fp4_experts_of_deepseek_v4(ctx) and not sm >= 120:
        return ExpertsKernel.FLASHINFER_TRTLLM if blackwell else ExpertsKernel.MARLIN
    if kind is QuantKind.WNA16:
        return ExpertsKernel.MARLIN
    if kind is QuantKind.MXFP4:
        if blackwell:
            return ExpertsKernel.FLASHINFER_TRTLLM
        triton = 90 <= sm < 100 and ctx.engine.quantization != "compressed-tensors"
        return ExpertsKernel.OAI_TRITON if triton else ExpertsKernel.MARLIN
    if kind is QuantKind.NVFP4:
        if blackwell:
            return ExpertsKernel.FLASHINFER_TRTLLM
        return ExpertsKernel.FLASHINFER_CUTLASS if sm >= 120 else ExpertsKernel.MARLIN
    if blackwell:
        return ExpertsKernel.FLASHINFER_TRTLLM
    if kind is QuantKind.MXFP8:
        return ExpertsKernel.MARLIN
    if kind is QuantKind.FP8_BLOCK:
        ep = parallel.expert_parallel and parallel.moe_parallel_size > 1
        return ExpertsKernel.FLASHINFER_CUTLASS if ep and sm == 90 else ExpertsKernel.TRITON
    if kind is QuantKind.FP8:
        if sm == 90 and static_inputs(ctx):
            return ExpertsKernel.FLASHINFER_CUTLASS
        if sm == 90 and ctx.engine.quantization in ("compressed-tensors", "fp8_per_channel"):
            return ExpertsKernel.CUTLASS_FP8
        return ExpertsKernel.TRITON if sm >= 89 else ExpertsKernel.MARLIN
    return ExpertsKernel.TRITON


def _on_humming(ctx: RankContext) -> bool:
    """The experts' weights say so: those kernels alone have locks."""
    return any(group.name.endswith("experts.locks") for group in rank_weights(ctx).groups)


def _fp4_experts_of_deepseek_v4(ctx: RankContext) -> bool:
    """Its block-fp8 checkpoints hold mxfp4 experts unless the config says fp8 (models/deepseek_v4/quant_config.py)."""
    config, block = ctx.config, ctx.config.quantization or {}
    if (config.text_model_type or config.model_type) != "deepseek_v4" or block.get("moe_quant_algo"):
        return False
    return quant_kind(ctx) is QuantKind.FP8_BLOCK and (config.text or {}).get("expert_dtype", "fp4") == "fp4"


_FORCED = {
    "triton": ExpertsKernel.TRITON,
    "marlin": ExpertsKernel.MARLIN,
    "cutlass": ExpertsKernel.CUTLASS_FP8,
    "flashinfer_cutlass": ExpertsKernel.FLASHINFER_CUTLASS,
    "flashinfer_trtllm": ExpertsKernel.FLASHINFER_TRTLLM,
}


@dataclass(frozen=True, slots=True)
class _Layer:
    moe: MixtureOfExperts
    kernel: ExpertsKernel
    intermediate: int
    """Width of one expert on this rank: divided by tp, whole with expert parallelism."""
    local_experts: int
    tokens: int
    """Tokens that the experts see: all data-parallel ranks' tokens are gathered first."""
    grouped: bool
    """With expert parallelism."""


@once
def _layers(ctx: RankContext) -> tuple[tuple[LayerGroup, _Layer], ...]:
    """The MoE layers of this stage, one of each kind."""
    return tuple(
        [
            (group, _layer(ctx, group, group.feed_forward))
            for group, _ in ctx.layers
            if isinstance(group.feed_forward, MixtureOfExperts)
        ]
    )


def _layer(ctx: RankContext, group: LayerGroup, moe: MixtureOfExperts) -> _Layer:
    parallel = ctx.engine.parallel
    ranks = parallel.moe_parallel_size
    ep = parallel.expert_parallel and ranks > 1
    quantised = next((m.quantised for m in group.modules if isinstance(m, Experts)), True)
    return _Layer(
        moe,
        experts_kernel(ctx, quantised=quantised),
        intermediate=moe.intermediate_size if ep else share(moe.intermediate_size, ranks),
        local_experts=cdiv(moe.num_experts, ranks) if ep else moe.num_experts,
        tokens=ctx.engine.max_num_batched_tokens * parallel.dp,
        grouped=ep,
    )


def _workspace(ctx: RankContext, sizes: Sizes, layer: _Layer) -> MemoryTerm:
    """`FusedMoEModularKernel._allocate_buffers`: two buffers from the WorkspaceManager, each rounded up to
    256 bytes.

    Source: fused_moe/modular_kernel.py:1051-1112 and `workspace_shapes` of the experts class (0.26.0); the
    whole batch is one chunk.
    """
    if layer.kernel is ExpertsKernel.HUMMING:
        return _humming_workspace(ctx, sizes, layer)
    k, n, width = (
        layer.moe.hidden_size,
        layer.intermediate,
        (2 if layer.moe.gated else 1) * layer.intermediate,
    )
    first, second = {
        ExpertsKernel.TRITON: (max(n, k), max(width, k)),
        ExpertsKernel.MARLIN: (max(n, k), max(width, k)),
        ExpertsKernel.CUTLASS_FP8: (max(width, k), max(n, k)),
    }.get(layer.kernel, (0, 0))
    values: dict[str, Any] = {
        "tokens": layer.tokens,
        "top_k": layer.moe.top_k,
        "first": first,
        "second": second,
        "hidden": k,
        "el": sizes.el,
    }
    formula = (
        "round_up(max(tokens * top_k * first, tokens * hidden) * el, 256)"
        " + round_up(tokens * top_k * second * el, 256)"
    )
    note = f"{layer.kernel}; one buffer for all layers, kept"
    if layer.kernel is ExpertsKernel.FLASHINFER_CUTLASS:
        formula, note = (
            "round_up(tokens * hidden * el, 256)",
            f"{layer.kernel}; FlashInfer's own workspace comes on top",
        )
    elif layer.kernel in (ExpertsKernel.FLASHINFER_TRTLLM, ExpertsKernel.OAI_TRITON):
        formula, note = "0", f"{layer.kernel} asks nothing of the workspace manager"
    return persistent(
        "moe_workspace",
        formula,
        "fused_moe/modular_kernel.py: _allocate_buffers",
        note=note,
        component=Component.WORKSPACE,
        **values,
    )


def _humming_workspace(ctx: RankContext, sizes: Sizes, layer: _Layer) -> MemoryTerm:
    """Inputs of both GEMMs and the output share one buffer, outputs of both GEMMs the other. With expert parallelism
    ("grouped_contiguous") the first GEMM reads a row per token and expert, otherwise ("indexed") one per token.

    Source (0.33.0): `HummingExpertsBase.get_buffer_metas` and `get_humming_moe_gemm_type`,
    fused_moe/experts/fused_humming_moe.py; `MoEPermuteScratch`, fused_moe/moe_permute_unpermute.py (without CUB's
    workspace); 8-bit inputs: `_humming_input_schema`, fused_moe/oracle/mxfp4.py.
    """
    eight_bit = _fp4_experts_of_deepseek_v4(ctx) and ctx.release.has("deepseek_v4_fp8_expert_inputs")
    return persistent(
        "moe_workspace",
        "round_up(max(tokens * top_k * width * input_el, inputs * hidden * input_el, tokens * hidden * el), 256)"
        " + round_up(tokens * top_k * max(rows, hidden) * el, 256) + grouped * tokens * top_k * 28",
        "fused_moe/experts/fused_humming_moe.py: get_buffer_metas",
        note=f"{layer.kernel}; one buffer for all layers, kept"
        + ("; seven numbers per row to sort by" if layer.grouped else ""),
        component=Component.WORKSPACE,
        tokens=layer.tokens,
        top_k=layer.moe.top_k,
        width=layer.intermediate,
        rows=(2 if layer.moe.gated else 1) * layer.intermediate,
        inputs=layer.tokens * (layer.moe.top_k if layer.grouped else 1),
        grouped=int(layer.grouped),
        hidden=layer.moe.hidden_size,
        input_el=1 if eight_bit else sizes.el,
        el=sizes.el,
    )


def moe_workspace(ctx: RankContext, sizes: Sizes) -> MemoryTerm | None:
    """The largest workspace that a MoE layer of this stage asks for; None without MoE layers."""
    workspaces = [_workspace(ctx, sizes, layer) for _, layer in _layers(ctx)]
    return max(workspaces, key=lambda t: t.n_bytes, default=None)


def moe_phases(ctx: RankContext, sizes: Sizes, kept: tuple[MemoryTerm, ...]) -> Iterator[Phase]:
    """While the experts run: the held tensors, router outputs, the shared expert and what the kernel
    allocates itself.
    """
    for group, layer in _layers(ctx):
        yield phase("MoE", (*kept, *_live(ctx, sizes, group, layer)))
        if not ctx.engine.compiled:
            yield phase("MoE output", (*kept, _outputs(sizes, layer)))


def _outputs(sizes: Sizes, layer: _Layer) -> MemoryTerm:
    """Eager: three hidden states of the callers, the experts' output, the shared expert's and the sum of both, and the sum
    over the ranks.
    """
    return transient(
        "moe_outputs",
        "tokens * (4 + 2 * shared + reduced) * hidden * el",
        "layers/fused_moe/runner/moe_runner.py: forward",
        tokens=sizes.tokens,
        shared=int(layer.moe.shared_intermediate_size > 0),
        reduced=int(sizes.tp > 1),
        hidden=sizes.hidden,
        el=sizes.el,
    )


def _live(ctx: RankContext, sizes: Sizes, group: LayerGroup, layer: _Layer) -> Iterator[MemoryTerm]:
    held = max((attention_width(mixer, sizes.tp) for mixer in group.mixers), default=0)
    shared = sizes.hidden if layer.moe.shared_intermediate_size else 0
    wide = 3 * share(layer.moe.shared_intermediate_size, sizes.tp)
    yield transient(
        "moe_hidden_states",
        "tokens * (attention_out + 4 * hidden + shared_out + shared_wide) * el",
        "layers/fused_moe/runner: forward; the model's MoE block",
        note="attention output, residuals, normed input, experts' output, shared expert",
        low=sizes.tokens * (held + 3 * sizes.hidden + shared) * sizes.el,
        high=sizes.tokens * (held + 5 * sizes.hidden + shared + wide) * sizes.el,
        tokens=sizes.tokens,
        attention_out=held,
        hidden=sizes.hidden,
        shared_out=shared,
        shared_wide=wide,
        el=sizes.el,
    )
    yield transient(
        "moe_routing",
        "gathered * (experts * el + 12 * top_k) + 4 * (gathered * top_k + local_experts * 127)",
        "layers/fused_moe: router logits, top-k weights and ids, sorted token ids",
        gathered=layer.tokens,
        experts=layer.moe.num_experts,
        el=sizes.el,
        top_k=layer.moe.top_k,
        local_experts=layer.local_experts,
    )
    kind = quant_kind(ctx)
    if kind in (QuantKind.FP8, QuantKind.FP8_BLOCK) and layer.kernel in (
        ExpertsKernel.TRITON,
        ExpertsKernel.CUTLASS_FP8,
    ):
        yield transient(
            "moe_quantised_activations",
            "gathered * hidden + gathered * top_k * width",
            "fused_moe/utils.py: moe_kernel_quantize_input (inputs of both GEMMs)",
            low=0,
            gathered=layer.tokens,
            hidden=layer.moe.hidden_size,
            top_k=layer.moe.top_k,
            width=layer.intermediate,
        )
    if layer.kernel is ExpertsKernel.OAI_TRITON:
        width = round_up(layer.intermediate, 32)
        yield transient(
            "moe_triton_kernels",
            "gathered * top_k * (3 * width + hidden) * el",
            "third_party/triton_kernels/matmul_ogs.py: outputs of both GEMMs and the scatter buffer",
            low=0,
            gathered=layer.tokens,
            top_k=layer.moe.top_k,
            width=width,
            hidden=layer.moe.hidden_size,
            el=sizes.el,
        )
