"""Weight-only int4 and int8 experts (compressed-tensors, GPTQ, AWQ, AutoRound, moe_wna16) after loading.

Since 0.32.0 Hopper takes Humming before Marlin (`select_wna16_moe_backend`, fused_moe/oracle/int_wna16.py).

Sources (0.26.0): `CompressedTensorsWNA16MarlinMoEMethod`, `AutoGPTQMoEMethod`, `AutoAWQMoEMethod`,
`MoeWNA16Method` (create_weights); `_process_weights_marlin` and `_process_awq_weights_marlin`,
fused_moe/oracle/int_wna16.py; `check_moe_marlin_supports_layer`, quantization/utils/marlin_utils.py.
"""

from __future__ import annotations

from dataclasses import replace

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.weights.quantisation.base import LayerTensors, QuantContext, Stored
from vllm_capacity.weights.quantisation.humming import humming_matrix, locks, prefers_humming
from vllm_capacity.weights.quantisation.marlin import (
    GROUP_SIZES,
    MOE_BLOCKS_PER_SM,
    TILE,
    moe_width,
    workspace,
)
from vllm_capacity.weights.quantisation.wna16_linear import WNA16, Layout
from vllm_capacity.weights.sharding import LocalExperts


def marlin_takes(layer: LocalExperts, scheme: WNA16, context: QuantContext) -> bool:
    """`check_moe_marlin_supports_layer`; act-order keeps the strict shape."""
    hidden, width, group = layer.hidden_size, layer.intermediate_size, scheme.group
    if group not in GROUP_SIZES or hidden % 128:
        return False
    if scheme.g_idx or not context.release.has("marlin_moe_padding"):
        return width % max(64, group) == 0
    return group <= 0 or width % group == 0


def wna16_experts(layer: LocalExperts, scheme: WNA16, context: QuantContext) -> LayerTensors:
    """The routed experts of one layer; falls back to `MoeWNA16Method` where vLLM does."""
    humming = _humming_takes(scheme, context)
    if context.moe_backend not in ("auto", "marlin", *(("humming",) if humming else ())):
        raise InputError(
            f"{context.model}: int{scheme.bits} experts with --moe-backend {context.moe_backend} are not modelled"
        )
    if scheme.bits not in (4, 8):
        raise InputError(f"{context.model}: {scheme.bits}-bit experts are not modelled")
    ct = scheme.layout is Layout.COMPRESSED_TENSORS
    if humming and (ct or marlin_takes(layer, scheme, context)):
        return _humming(layer, scheme, context)
    if not marlin_takes(layer, scheme, context):
        if ct:
            if scheme.g_idx:
                raise RefusedError(
                    Reason.INVALID_LAYOUT, "WNA16MoE is not supported with actorder=group/dynamic."
                )
            if scheme.group > 0 and layer.intermediate_size % scheme.group:
                raise RefusedError(
                    Reason.INVALID_LAYOUT,
                    "CompressedTensors WNA16 MoE with static group scales requires the MoE intermediate size per"
                    f" tensor-parallel partition ({layer.intermediate_size}) to be divisible by group_size"
                    f" ({scheme.group}). Scale groups would otherwise cross TP shard boundaries; use a compatible TP"
                    " size or enable expert parallelism.",
                )
            raise InputError(
                f"{context.model}: experts of width {layer.intermediate_size} in groups of {scheme.group} are"
                " not modelled: Marlin does not take them"
            )
        return moe_wna16_experts(layer, scheme, context)
    if ct and scheme.group < 0 and context.release.has("marlin_moe_padding"):
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            "channel-wise int4 and int8 experts stop vLLM after loading: TypeError: '>' not supported between instances of"
            " 'NoneType' and 'int' (marlin_moe_padded_intermediate)",
        )
    if ct and _flashinfer_mxint4(scheme, context):
        return _flashinfer(layer, scheme, context)
    return _marlin(layer, scheme, context)


def _humming_takes(scheme: WNA16, context: QuantContext) -> bool:
    """`HummingExpertsBase._supports_quant_scheme`: with zero points compressed-tensors has a key of its own, which is on
    the list in groups of 32 alone. Experts that adapters are added to are not Humming's.
    """
    listed = not scheme.zero_points or scheme.layout is not Layout.COMPRESSED_TENSORS or scheme.group == 32
    asked = context.moe_backend in ("auto", "humming") and not context.lora
    return prefers_humming(context) and asked and listed and (scheme.bits == 4 or not scheme.zero_points)


def _humming(layer: LocalExperts, scheme: WNA16, context: QuantContext) -> LayerTensors:
    """Nothing of the checkpoint's own tensors stays. Raises RefusedError for compressed-tensors without groups."""
    if scheme.layout is Layout.COMPRESSED_TENSORS and scheme.group < 0:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            "channel-wise int4 and int8 experts stop vLLM on Hopper: AssertionError (CompressedTensorsWNA16MoEMethod:"
            ' assert weight_quant.strategy == "group")',
        )
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    built = (
        *_pair(layer, scheme, context, width, _groups2(layer, scheme, context)),
        *_shapes(layer, scheme, context),
    )
    rows = _slices(layer, scheme) * width
    zeros = scheme.zero_points and scheme.layout is not Layout.GPTQ
    stored = [
        tensor
        for prefix, n, k, logical in (
            ("w13_", rows, hidden, count * layer.slices * width * hidden),
            ("w2_", hidden, width, count * hidden * width),
        )
        for tensor in humming_matrix(
            prefix,
            n,
            k,
            scheme.bits,
            scheme.group,
            context.dtype,
            logical,
            experts=(count,),
            zero_points=zeros,
        )
    ]
    # every value of the larger matrix in an int32 of its own: compared with zero (`convert_symmetric_integer_weight`), or
    # transposed (AWQWeightSchema)
    transient = (8 if scheme.layout is Layout.AWQ else 5) * count * rows * hidden
    return LayerTensors((*stored, locks(context)), built, transient)


def _flashinfer_mxint4(scheme: WNA16, context: QuantContext) -> bool:
    """TrtLlmMxint4ExpertsMonolithic: sm10x, int4 in groups of 32, symmetric, VLLM_USE_FLASHINFER_MOE_INT4=1."""
    if (context.environment or {}).get("VLLM_USE_FLASHINFER_MOE_INT4", "0") in ("0", ""):
        return False
    symmetric = scheme.bits == 4 and scheme.group == 32 and not scheme.zero_points and not scheme.g_idx
    return context.device.sm // 10 == 10 and symmetric and context.moe_backend == "auto"


def _names(layout: Layout) -> tuple[str, str, str, str]:
    """(weight, scale, zero, g_idx) without the w13_/w2_ before them."""
    if layout is Layout.COMPRESSED_TENSORS:
        return "weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"
    return "qweight", "scales", "qzeros", "g_idx"


def _slices(layer: LocalExperts, scheme: WNA16) -> int:
    """AWQ and GPTQ always make two halves of w13."""
    return layer.slices if scheme.layout is Layout.COMPRESSED_TENSORS else 2


def _pair(
    layer: LocalExperts, scheme: WNA16, context: QuantContext, width: int, groups2: int
) -> tuple[Stored, ...]:
    """Packed weights, scales and zero points for a rank's width of `width`."""
    count, hidden = layer.num_experts, layer.hidden_size
    slices, pack = _slices(layer, scheme), 32 // scheme.bits
    weight, scale, zero, _ = _names(scheme.layout)
    logical13 = count * layer.slices * layer.intermediate_size * hidden
    logical2 = count * hidden * layer.intermediate_size
    groups13 = hidden // scheme.group if scheme.group > 0 else 1
    awq = scheme.layout is Layout.AWQ
    shape13 = (count, hidden, slices * width // pack) if awq else (count, hidden // pack, slices * width)
    shape2 = (count, width, hidden // pack) if awq else (count, width // pack, hidden)
    tensors = [
        Stored(f"w13_{weight}", shape13, "int32", logical13),
        Stored(f"w2_{weight}", shape2, "int32", logical2),
        Stored(f"w13_{scale}", (count, groups13, slices * width), context.dtype, scale=True),
        Stored(f"w2_{scale}", (count, groups2, hidden), context.dtype, scale=True),
    ]
    if scheme.zero_points or scheme.layout is not Layout.COMPRESSED_TENSORS:
        # AutoGPTQMoEMethod makes zero points in the model's dtype and never uses them
        kind = context.dtype if scheme.layout is Layout.GPTQ else "int32"
        tensors += [
            Stored(f"w13_{zero}", (count, groups13, slices * width // pack), kind, scale=True),
            Stored(f"w2_{zero}", (count, groups2, hidden // pack), kind, scale=True),
        ]
    return tuple(tensors)


def _groups2(layer: LocalExperts, scheme: WNA16, context: QuantContext) -> int:
    """Groups of w2's scales: of the whole width with act-order, which divides neither."""
    if scheme.group <= 0:
        return 1
    width = layer.intermediate_size
    if scheme.g_idx:
        return width * layer.expert_tp // scheme.group
    if width % scheme.group:
        raise RefusedError(
            Reason.INVALID_LAYOUT,
            "CompressedTensors WNA16 Marlin MoE with static group scales requires the MoE intermediate size per"
            f" tensor-parallel partition ({width}) to be divisible by group_size ({scheme.group}).",
        )
    return width // scheme.group


def _index(layer: LocalExperts, scheme: WNA16, context: QuantContext) -> tuple[Stored, ...]:
    if scheme.layout is Layout.AWQ or context.release.has("act_order_refused"):
        return ()
    count, g_idx = layer.num_experts, _names(scheme.layout)[3]
    shapes = {"w13": (count, layer.hidden_size), "w2": (count, layer.intermediate_size)}
    return tuple(
        Stored(f"{w}_{name}", shape, "int32", scale=True)
        for name in (g_idx, "g_idx_sort_indices")
        for w, shape in shapes.items()
    )


def _shapes(layer: LocalExperts, scheme: WNA16, context: QuantContext) -> tuple[Stored, ...]:
    """compressed-tensors keeps two unused [experts, 2] tensors in the default dtype."""
    if scheme.layout is not Layout.COMPRESSED_TENSORS:
        return ()
    return tuple(
        Stored(f"{w}_weight_shape", (layer.num_experts, 2), context.dtype, scale=True) for w in ("w2", "w13")
    )


def _marlin(layer: LocalExperts, scheme: WNA16, context: QuantContext) -> LayerTensors:
    width, groups2 = layer.intermediate_size, _groups2(layer, scheme, context)
    index = _index(layer, scheme, context)
    space = workspace(context, MOE_BLOCKS_PER_SM)
    loaded = _pair(layer, scheme, context, width, groups2)
    shapes = _shapes(layer, scheme, context)
    early = space if scheme.layout is not Layout.COMPRESSED_TENSORS else ()
    built = (*loaded, *index, *shapes, *early)
    wide = width
    if not scheme.g_idx and context.release.has("marlin_moe_padding"):
        wide = moe_width(width, scheme.group)
    more = (wide - width) // scheme.group if scheme.group > 0 else 0
    kept = _pair(layer, scheme, context, wide, groups2 + more)
    if scheme.layout is Layout.GPTQ:
        kept = (*kept[:4], *loaded[4:])
    kept = (*_repacked(kept[:2], scheme), *kept[2:])
    stored = (*kept, *(index if scheme.g_idx else ()), *shapes, *space)
    new = kept if scheme.layout is not Layout.GPTQ else kept[:4]
    zeros = sum(tensor.n_bytes for tensor in new[4:])
    return LayerTensors(stored, built, sum(tensor.n_bytes for tensor in new) + zeros)


def _repacked(weights: tuple[Stored, ...], scheme: WNA16) -> tuple[Stored, ...]:
    """`gptq_marlin_moe_repack`: [experts, inputs / 16, outputs * 16 * bits / 32]."""
    found = []
    for tensor in weights:
        count, first, last = tensor.shape
        pack = 32 // scheme.bits
        inputs, rows = (first, last * pack) if scheme.layout is Layout.AWQ else (first * pack, last)
        found.append(replace(tensor, shape=(count, inputs // TILE, rows * TILE // pack)))
    return tuple(found)


def _flashinfer(layer: LocalExperts, scheme: WNA16, context: QuantContext) -> LayerTensors:
    """MXINT4 for TRT-LLM: shuffled at the same size; the index tensors are never freed."""
    loaded = _pair(layer, scheme, context, layer.intermediate_size, _groups2(layer, scheme, context))
    tensors = (*loaded, *_index(layer, scheme, context), *_shapes(layer, scheme, context))
    return LayerTensors(tensors, transient_bytes=sum(tensor.n_bytes for tensor in loaded[:4]))


def moe_wna16_experts(layer: LocalExperts, scheme: WNA16, context: QuantContext) -> LayerTensors:
    """`MoeWNA16Method`: bytes as on disk, groups halved until they divide both sizes; on Hopper since 0.32.0 what Humming
    makes of them (`_MoeWNA16HummingWeightSchema`, fused_moe/oracle/int_wna16.py).
    """
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    group, pack = scheme.group, 8 // scheme.bits
    if group <= 0:
        raise InputError(f"{context.model}: moe_wna16 experts without groups are not modelled")
    while width % group or hidden % group:
        group //= 2
        if group < 32:
            raise RefusedError(
                Reason.INVALID_LAYOUT,
                f"moe_wna16 needs groups of at least 32 that divide {hidden} and {width}",
            )
    logical13 = count * layer.slices * width * hidden
    tensors = [
        Stored("w13_qweight", (count, 2 * width, hidden // pack), "uint8", logical13),
        Stored("w2_qweight", (count, hidden, width // pack), "uint8", count * hidden * width),
        Stored("w13_scales", (count, 2 * width, hidden // group), context.dtype, scale=True),
        Stored("w2_scales", (count, hidden, width // group), context.dtype, scale=True),
    ]
    if scheme.zero_points:
        tensors += [
            Stored("w13_qzeros", (count, 2 * width // pack, hidden // group), "uint8", scale=True),
            Stored("w2_qzeros", (count, hidden // pack, width // group), "uint8", scale=True),
        ]
    if not prefers_humming(context) or context.moe_backend not in ("auto", "humming") or context.lora:
        return LayerTensors(tuple(tensors))
    stored = [
        tensor
        for prefix, rows, inputs, logical in (
            ("w13_", 2 * width, hidden, logical13),
            ("w2_", hidden, width, count * hidden * width),
        )
        for tensor in humming_matrix(
            prefix, rows, inputs, scheme.bits, group, context.dtype, logical,
            experts=(count,), zero_points=scheme.zero_points,
        )
    ]  # fmt: skip
    return LayerTensors(
        (*stored, locks(context)), tuple(tensors), 2 * (stored[0].n_bytes + stored[1].n_bytes)
    )
