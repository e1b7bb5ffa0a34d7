"""NVFP4 layers (ModelOpt, compressed-tensors) after loading: 4-bit floats with one fp8 scale per 16 inputs.

Blackwell swizzles the scales and pads; older GPUs and weight-only checkpoints repack for Marlin, Hopper since 0.32.0 for
Humming. Sources
(0.26.0): `_POSSIBLE_NVFP4_KERNELS`, kernels/linear/__init__.py; `swizzle_blockscale` and
`pad_nvfp4_weight_for_cutlass`, quantization/utils/nvfp4_utils.py; `prepare_fp4_layer_for_marlin` and
`prepare_nvfp4_moe_layer_for_marlin`, utils/marlin_utils_fp4.py; `prepare_nvfp4_moe_layer_for_fi_or_cutlass`,
utils/flashinfer_fp4_moe.py; `select_nvfp4_moe_backend`, fused_moe/oracle/nvfp4.py.
"""

from __future__ import annotations

from enum import StrEnum

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.units import round_up
from vllm_capacity.weights.quantisation.base import LayerTensors, QuantContext, Stored, bias_of
from vllm_capacity.weights.quantisation.humming import humming_bias, humming_matrix, locks, prefers_humming
from vllm_capacity.weights.quantisation.marlin import (
    MOE_BLOCKS_PER_SM,
    TILE,
    linear_nk,
    marlin_bias,
    packed,
    workspace,
)
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear

GROUP = 16
FP8 = "float8_e4m3fn"


class Origin(StrEnum):
    """Whose checkpoint it is: the names and scalars differ."""

    MODELOPT = "modelopt"
    COMPRESSED_TENSORS = "compressed-tensors"


def _scalar(name: str) -> Stored:
    return Stored(name, (), "float32", scale=True)


def _vector(name: str, *shape: int) -> Stored:
    return Stored(name, shape, "float32", scale=True)


def nvfp4_linear(
    layer: LocalLinear, context: QuantContext, origin: Origin, *, weight_only: bool
) -> LayerTensors:
    """A linear layer; `weight_only` checkpoints (W4A16) run on Marlin everywhere."""
    rows, inputs, shards = layer.rows, layer.inputs, len(layer.outputs)
    if inputs % GROUP:
        raise RefusedError(
            Reason.INVALID_LAYOUT, "Unsupported model when in features size is not multiple of 16"
        )
    kind, logical = layer.dtype or context.dtype, rows * inputs
    modelopt = origin is Origin.MODELOPT
    built = [
        Stored("weight" if modelopt else "weight_packed", (rows, inputs // 2), "uint8", logical),
        Stored("weight_scale", (rows, inputs // GROUP), FP8, scale=True),
        _vector("weight_scale_2" if modelopt else "weight_global_scale", shards),
    ]
    if modelopt or not weight_only:
        built.append(_vector("input_scale" if modelopt else "input_global_scale", shards))
    scalars = [_scalar("weight_global_scale")]
    if not weight_only:
        scalars += [_scalar("input_global_scale"), _scalar("input_global_scale_inv"), _scalar("alpha")]
    bias = bias_of(layer, kind)
    if prefers_humming(context) and context.linear_backend in ("auto", "humming"):
        tensors = humming_matrix("", rows, inputs, 4, GROUP, FP8, logical)
        kept = (*tensors, _vector("weight_scale_2", 1), *humming_bias(layer, kind), locks(context))
        return LayerTensors(kept, (*built, *bias), 2 * tensors[0].n_bytes + 3 * tensors[1].n_bytes)
    if weight_only or context.device.sm < 100:
        padded = linear_nk(context.release, rows, inputs, GROUP)
        if padded is None:
            raise InputError(
                f"{context.model}: {layer.name} [{rows}, {inputs}] does not fit Marlin's tiles, and vLLM"
                f" {context.release.version} does not pad it"
            )
        n, k = padded
        stored = (
            Stored("weight", packed(k, n, 4), "int32", logical),
            Stored("weight_scale", (k // GROUP, n), FP8, scale=True),
            *scalars, *marlin_bias(layer.bias, rows, n, kind), *workspace(context),
        )  # fmt: skip
        # transposed words and repacked ones, then scales in 16 bits and several copies of them
        return LayerTensors(stored, (*built, *bias), n * k * 5 // 4)
    n, k = round_up(rows, 32), round_up(inputs, 32)
    stored = (
        Stored("weight", (n, k // 2), "uint8", logical),
        Stored("weight_scale", _swizzled(rows, inputs // GROUP), FP8, scale=True),
        *scalars, *bias,
    )  # fmt: skip
    return LayerTensors(
        stored, (*built, *bias), 2 * stored[1].n_bytes + (stored[0].n_bytes if n * k != logical else 0)
    )


def _swizzled(rows: int, groups: int) -> tuple[int, int]:
    return round_up(rows, 128), round_up(groups, 4)


class Backend(StrEnum):
    HUMMING = "humming"
    MARLIN = "marlin"
    TRTLLM = "flashinfer_trtllm"
    SWIZZLED = "swizzled"


def nvfp4_moe_backend(context: QuantContext, *, weight_only: bool) -> Backend:
    """`select_nvfp4_moe_backend` for the standard activation format."""
    asked = context.moe_backend
    if asked != "auto":
        named = {
            "marlin": Backend.MARLIN, "flashinfer_trtllm": Backend.TRTLLM,
            "flashinfer_cutlass": Backend.SWIZZLED, "cutlass": Backend.SWIZZLED,
        }  # fmt: skip
        if prefers_humming(context):
            named["humming"] = Backend.HUMMING
        if asked not in named:
            raise InputError(f"{context.model}: NVFP4 experts with --moe-backend {asked} are not modelled")
        return named[asked]
    if prefers_humming(context) and not context.lora:
        return Backend.HUMMING
    if weight_only or context.device.sm < 100:
        return Backend.MARLIN
    return Backend.TRTLLM if context.device.sm // 10 == 10 else Backend.SWIZZLED


def nvfp4_experts(
    layer: LocalExperts, context: QuantContext, origin: Origin, *, weight_only: bool
) -> LayerTensors:
    """The routed experts of one layer. Raises RefusedError where the backend cannot pad the rank's width."""
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    rows = layer.slices * width
    backend = nvfp4_moe_backend(context, weight_only=weight_only)
    reads_16_bits = backend in (Backend.MARLIN, Backend.HUMMING)
    global_scales = layer.total_experts if not reads_16_bits and origin is Origin.MODELOPT else count
    built = _built_experts(layer, origin, global_scales)
    logical13, logical2 = count * rows * hidden, count * hidden * width
    kept = _kept_scalars(layer, origin, backend, weight_only=weight_only)
    tensors: tuple[Stored, ...]
    if backend is Backend.HUMMING:
        return _humming_experts(layer, context, built)
    if backend is Backend.MARLIN:
        wide = width
        if context.release.has("marlin_tile_padding"):
            wide = round_up(width, 64 if hidden % 128 == 0 else 128)
        tensors = (
            Stored("w13_weight", (count, hidden // TILE, layer.slices * wide * 2), "int32", logical13),
            Stored("w2_weight", (count, wide // TILE, hidden * 2), "int32", logical2),
            Stored("w13_weight_scale", (count, hidden // GROUP, layer.slices * wide), FP8, scale=True),
            Stored("w2_weight_scale", (count, wide // GROUP, hidden), FP8, scale=True),
            *workspace(context, MOE_BLOCKS_PER_SM),
        )
    elif backend is Backend.TRTLLM:
        wide, deep = round_up(width, 64 if layer.gated else 128), round_up(hidden, 256)
        tensors = (
            Stored("w13_weight", (count, layer.slices * wide, deep // 2), "uint8", logical13),
            Stored("w2_weight", (count, deep, wide // 2), "uint8", logical2),
            Stored("w13_weight_scale", (count, layer.slices * wide, deep // GROUP), FP8, scale=True),
            Stored("w2_weight_scale", (count, deep, wide // GROUP), FP8, scale=True),
        )
    else:
        tensors = _swizzled_experts(layer)
    weights = tensors[0].n_bytes + tensors[1].n_bytes
    if backend is Backend.MARLIN:
        # both new matrices, and w13's scales in 16 bits, in fp32 and as a list (`_nvfp4_compute_scale_factor`)
        transient = weights + 10 * tensors[2].n_bytes
    else:
        # w13 with its halves exchanged, then every new tensor
        transient = weights + tensors[0].n_bytes + tensors[2].n_bytes + tensors[3].n_bytes
    return LayerTensors((*tensors, *kept), built, transient)


def _humming_experts(layer: LocalExperts, context: QuantContext, built: tuple[Stored, ...]) -> LayerTensors:
    """Nothing of the checkpoint's own tensors stays; one scale for all shards of an expert, which they share."""
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    rows = layer.slices * width
    tensors: list[Stored] = []
    for name, n, k in (("w13", rows, hidden), ("w2", hidden, width)):
        tensors += humming_matrix(f"{name}_", n, k, 4, GROUP, FP8, count * n * k, experts=(count,))
        tensors.append(_vector(f"{name}_weight_scale_2", count))
    # padded copies, beside them the repacked words and the scales, which are transposed and permuted
    transient = 2 * tensors[0].n_bytes + 3 * tensors[1].n_bytes
    return LayerTensors((*tensors, locks(context)), built, transient)


def _built_experts(layer: LocalExperts, origin: Origin, global_scales: int) -> tuple[Stored, ...]:
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    rows = layer.slices * width
    modelopt = origin is Origin.MODELOPT
    weight = "weight" if modelopt else "weight_packed"
    scale2 = "weight_scale_2" if modelopt else "weight_global_scale"
    inputs = "input_scale" if modelopt else "input_global_scale"
    return (
        Stored(f"w13_{weight}", (count, rows, hidden // 2), "uint8", count * rows * hidden),
        Stored(f"w2_{weight}", (count, hidden, width // 2), "uint8", count * hidden * width),
        Stored("w13_weight_scale", (count, rows, hidden // GROUP), FP8, scale=True),
        Stored("w2_weight_scale", (count, hidden, width // GROUP), FP8, scale=True),
        _vector(f"w13_{scale2}", count, layer.slices),
        _vector(f"w2_{scale2}", count),
        _vector(f"w13_{inputs}", global_scales, layer.slices),
        _vector(f"w2_{inputs}", global_scales),
    )


def _kept_scalars(
    layer: LocalExperts, origin: Origin, backend: Backend, *, weight_only: bool
) -> tuple[Stored, ...]:
    """Global scales that stay; compressed-tensors keeps the loaded ones beside their reciprocals."""
    count = layer.num_experts
    kept = [_vector("w13_weight_scale_2", count), _vector("w2_weight_scale_2", count)]
    if origin is Origin.COMPRESSED_TENSORS:
        kept += [
            _vector("w13_weight_global_scale", count, layer.slices), _vector("w2_weight_global_scale", count),
            _vector("w13_input_global_scale", count, layer.slices), _vector("w2_input_global_scale", count),
        ]  # fmt: skip
    if backend is not Backend.MARLIN:
        kept += [_scalar("w13_input_scale"), _scalar("w2_input_scale")]
        kept += [_vector("g1_alphas", count), _vector("g2_alphas", count)]
    if backend is Backend.TRTLLM:
        kept.append(_vector("g1_scale_c", count))
    del weight_only
    return tuple(kept)


def _swizzled_experts(layer: LocalExperts) -> tuple[Stored, ...]:
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    rows = layer.slices * width
    wide = round_up(rows, 128)
    if wide != rows and layer.gated:
        raise RefusedError(
            Reason.INVALID_LAYOUT,
            "Intermediate size padding for w1 and w3, for FLASHINFER_CUTLASS NvFp4 backend, but this is not"
            " currently supported",
        )
    padded = width + wide - rows
    return (
        Stored("w13_weight", (count, wide, hidden // 2), "uint8", count * rows * hidden),
        Stored("w2_weight", (count, hidden, padded // 2), "uint8", count * hidden * width),
        Stored("w13_weight_scale", (count, *_swizzled(wide, hidden // GROUP)), FP8, scale=True),
        Stored("w2_weight_scale", (count, *_swizzled(hidden, padded // GROUP)), FP8, scale=True),
    )
