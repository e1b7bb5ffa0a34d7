"""MXFP8 layers and MXFP4 linear layers after loading: one e8m0 scale per 32 inputs.

Sources (0.26.0): `_POSSIBLE_MXFP8_KERNELS` and `_POSSIBLE_MXFP4_KERNELS`, kernels/linear/__init__.py;
`swizzle_mxfp8_scale`, quantization/utils/mxfp8_utils.py; `prepare_mxfp8_layer_for_marlin` and
`prepare_mxfp8_moe_layer_for_marlin`, utils/marlin_utils_fp8.py; `prepare_fp4_layer_for_marlin`,
utils/marlin_utils_fp4.py; `select_mxfp8_moe_backend`, fused_moe/oracle/mxfp8.py.
"""

from __future__ import annotations

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.units import round_up
from vllm_capacity.weights.quantisation.base import LayerTensors, QuantContext, Stored, bias_of
from vllm_capacity.weights.quantisation.humming import humming_bias, humming_matrix, locks, prefers_humming
from vllm_capacity.weights.quantisation.marlin import (
    MOE_BLOCKS_PER_SM,
    TILE,
    linear_nk,
    marlin_bias,
    moe_width,
    packed,
    workspace,
)
from vllm_capacity.weights.quantisation.mxfp4 import check_swizzle
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear

GROUP = 32
FP8 = "float8_e4m3fn"


def mx_linear(layer: LocalLinear, context: QuantContext, bits: int, *, online: bool = False) -> LayerTensors:
    """MXFP8 (`bits` 8) or MXFP4 (4). Raises RefusedError where the inputs are not a multiple of 32."""
    rows, inputs = layer.rows, layer.inputs
    if inputs % GROUP:
        raise RefusedError(
            Reason.INVALID_LAYOUT, f"MXFP8 requires input dimension to be divisible by 32, got {inputs}"
        )
    kind, logical = layer.dtype or context.dtype, rows * inputs
    weight = (
        Stored("weight", (rows, inputs), FP8, logical)
        if bits == 8
        else Stored("weight", (rows, inputs // 2), "uint8", logical)
    )
    bias = bias_of(layer, kind)
    built = (weight, Stored("weight_scale", (rows, inputs // GROUP), "uint8", scale=True), *bias)
    original = 2 * rows * inputs if online else 0
    if context.device.sm >= 100:
        scales = Stored(
            "weight_scale", (round_up(rows, 128), round_up(inputs // GROUP, 4)), "uint8", scale=True
        )
        stored = (weight, scales, *bias)
        return LayerTensors(
            stored, bias if online else built, original + weight.n_bytes * online + 2 * scales.n_bytes
        )
    if prefers_humming(context) and context.linear_backend in ("auto", "humming"):
        tensors = humming_matrix("", rows, inputs, bits, GROUP, "uint8", logical)
        # MXFP4 beside 8-bit inputs: one factor apart from the scales (`process_fused_e8m0_scale`)
        factor = (Stored("weight_scale_2", (1,), "float32", scale=True),) if bits == 4 else ()
        kept = (*tensors, *factor, *humming_bias(layer, kind), locks(context))
        repacking = 2 * tensors[0].n_bytes + 3 * tensors[1].n_bytes
        return LayerTensors(kept, bias if online else built, original + weight.n_bytes * online + repacking)
    padded = linear_nk(context.release, rows, inputs, GROUP)
    if padded is None:
        raise InputError(
            f"{context.model}: {layer.name} [{rows}, {inputs}] does not fit Marlin's tiles, and vLLM"
            f" {context.release.version} does not pad it"
        )
    n, k = padded
    stored = (
        Stored("weight", packed(k, n, bits), "int32", logical),
        Stored("weight_scale", (k // GROUP, n), "uint8", scale=True),
        *marlin_bias(layer.bias, rows, n, kind),
        *workspace(context),
    )
    return LayerTensors(
        stored, bias if online else built, original + weight.n_bytes * online + 2 * n * k * bits // 8
    )


def mxfp8_experts(layer: LocalExperts, context: QuantContext, *, online: bool = False) -> LayerTensors:
    """Blackwell (sm10x) shuffles for TRT-LLM and keeps the size; the others repack for Marlin."""
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    for name, size in (("hidden_size", hidden), ("intermediate_size_per_partition", width)):
        if size % GROUP:
            raise RefusedError(
                Reason.INVALID_LAYOUT, f"MXFP8 MoE requires {name} divisible by 32, got {size}."
            )
    if context.moe_backend not in ("auto", "marlin", "flashinfer_trtllm"):
        raise InputError(
            f"{context.model}: MXFP8 experts with --moe-backend {context.moe_backend} are not modelled"
        )
    slices = 2 if online else layer.slices
    rows = slices * width
    logical13, logical2 = count * layer.slices * width * hidden, count * hidden * width
    built = (
        Stored("w13_weight", (count, rows, hidden), FP8, logical13),
        Stored("w2_weight", (count, hidden, width), FP8, logical2),
        Stored("w13_weight_scale", (count, rows, hidden // GROUP), "uint8", scale=True),
        Stored("w2_weight_scale", (count, hidden, width // GROUP), "uint8", scale=True),
    )
    if context.device.sm // 10 == 10 and context.moe_backend != "marlin":
        check_swizzle(rows, hidden)
        check_swizzle(hidden, width)
        # exchanged halves, reordered rows, shuffled experts as a list and stacked (`_shuffle_mxfp8_moe_weights`)
        shuffle = 5 * built[0].n_bytes + 3 * built[2].n_bytes + built[0].n_bytes // max(count, 1)
        if online:
            return LayerTensors(built, (), 3 * (built[0].n_bytes + built[1].n_bytes) + shuffle)
        return LayerTensors(built, transient_bytes=shuffle)
    if prefers_humming(context) and context.moe_backend == "auto" and not context.lora:
        matrices = (
            *humming_matrix("w13_", rows, hidden, 8, GROUP, "uint8", logical13, experts=(count,)),
            *humming_matrix("w2_", hidden, width, 8, GROUP, "uint8", logical2, experts=(count,)),
        )
        repacked = 2 * matrices[0].n_bytes + 3 * matrices[1].n_bytes
        original = 3 * (built[0].n_bytes + built[1].n_bytes) if online else 0
        return LayerTensors((*matrices, locks(context)), () if online else built, original + repacked)
    wide = moe_width(width, GROUP) if context.release.has("marlin_moe_padding") else width
    stored = (
        Stored("w13_weight", (count, hidden // TILE, slices * wide * 4), "int32", logical13),
        Stored("w2_weight", (count, wide // TILE, hidden * 4), "int32", logical2),
        Stored("w13_weight_scale", (count, hidden // GROUP, slices * wide), "uint8", scale=True),
        Stored("w2_weight_scale", (count, wide // GROUP, hidden), "uint8", scale=True),
        *workspace(context, MOE_BLOCKS_PER_SM),
    )
    weights = stored[0].n_bytes + stored[1].n_bytes
    if online:
        return LayerTensors(stored, (), 3 * (built[0].n_bytes + built[1].n_bytes) + weights)
    return LayerTensors(stored, built, 2 * stored[0].n_bytes + stored[1].n_bytes)
