"""fp8 experts after loading: which MoE backend vLLM takes and what it makes of the weights.

Sources (0.26.0): `select_fp8_moe_backend` and `convert_to_fp8_moe_kernel_format`, fused_moe/oracle/fp8.py;
`prepare_fp8_moe_layer_for_fi`, quantization/utils/flashinfer_utils.py:430; `prepare_fp8_moe_layer_for_marlin`,
utils/marlin_utils_fp8.py; `process_fp8_weight_tensor_strategy_moe`, utils/fp8_utils.py:1408; `create_weights` of
`Fp8MoEMethod`, `CompressedTensorsW8A8Fp8MoEMethod` and `ModelOptFp8MoEMethod`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.units import cdiv, round_up
from vllm_capacity.weights.quantisation.base import LayerTensors, QuantContext, Stored
from vllm_capacity.weights.quantisation.fp8_linear import FP8, Activations, runs_on_marlin
from vllm_capacity.weights.quantisation.marlin import MOE_BLOCKS_PER_SM, TILE, moe_width, workspace
from vllm_capacity.weights.sharding import LocalExperts


class Backend(StrEnum):
    """What of an MoE backend matters to storage."""

    AS_LOADED = "as_loaded"
    """Triton and vLLM's Cutlass."""
    FLASHINFER_CUTLASS = "flashinfer_cutlass"
    FLASHINFER_TRTLLM = "flashinfer_trtllm"
    DEEP_GEMM = "deep_gemm"
    MARLIN = "marlin"


_REQUESTED = {
    "triton": Backend.AS_LOADED,
    "cutlass": Backend.AS_LOADED,
    "deep_gemm": Backend.DEEP_GEMM,
    "flashinfer_trtllm": Backend.FLASHINFER_TRTLLM,
    "flashinfer_cutlass": Backend.FLASHINFER_CUTLASS,
    "marlin": Backend.MARLIN,
}


@dataclass(frozen=True, slots=True)
class Fp8Experts:
    """`granularity` is 'tensor', 'channel' or 'block'. `always_two`: w13 has two halves though experts have no gate
    (Fp8MoEMethod). `online`: quantised while loading.
    """

    granularity: str
    activations: Activations
    block: tuple[int, int] | None = None
    always_two: bool = False
    online: bool = False
    cutlass: bool = False
    """vLLM's Cutlass experts are allowed (compressed-tensors); they keep four vectors of strides."""

    @property
    def suffix(self) -> str:
        return "weight_scale_inv" if self.granularity == "block" else "weight_scale"


def requested_backend(context: QuantContext) -> Backend | None:
    """`--moe-backend`, or None for auto. Raises InputError for backends that are not modelled."""
    if context.moe_backend == "auto":
        return None
    found = _REQUESTED.get(context.moe_backend)
    if found is None:
        raise InputError(
            f"{context.model}: fp8 experts with --moe-backend {context.moe_backend} are not modelled"
        )
    return found


def fp8_moe_backend(layer: LocalExperts, scheme: Fp8Experts, context: QuantContext) -> Backend:
    """`select_fp8_moe_backend` for the standard activation format."""
    asked = requested_backend(context)
    if asked is not None:
        return asked
    if runs_on_marlin(context):
        return Backend.MARLIN
    sm, block = context.device.sm, scheme.granularity == "block"
    blackwell = sm // 10 == 10
    if block:
        if sm == 90:
            return Backend.FLASHINFER_CUTLASS if layer.expert_parallel else Backend.AS_LOADED
        if blackwell:
            return Backend.FLASHINFER_TRTLLM
        if sm // 10 == 12 and context.release.has("deep_gemm_sm120") and layer.gated:
            return Backend.DEEP_GEMM
        return Backend.AS_LOADED
    if scheme.granularity == "tensor" and scheme.activations is Activations.STATIC and sm >= 90:
        return Backend.FLASHINFER_TRTLLM if blackwell else Backend.FLASHINFER_CUTLASS
    return Backend.AS_LOADED


def fp8_experts(layer: LocalExperts, scheme: Fp8Experts, context: QuantContext) -> LayerTensors:
    """The routed experts of one layer. Raises RefusedError where blocks do not divide the rank's width."""
    if scheme.granularity == "block":
        _check_blocks(layer, scheme, context)
    backend = fp8_moe_backend(layer, scheme, context)
    slices = 2 if scheme.always_two else layer.slices
    built = _built(layer, scheme, slices)
    bias = _bias(layer, context.dtype)
    stored = _stored(layer, scheme, context, backend, slices)
    weights = stored[0].n_bytes + stored[1].n_bytes
    if scheme.online:
        originals = 2 * (built[0].n_bytes + built[1].n_bytes)
        return LayerTensors((*stored, *bias), bias, originals + built[0].n_bytes + built[1].n_bytes)
    return LayerTensors(
        (*stored, *bias), (*built, *bias), _transient(layer, scheme, backend, stored, weights, context)
    )


def _transient(
    layer: LocalExperts, scheme: Fp8Experts, backend: Backend, stored: tuple[Stored, ...], weights: int,
    context: QuantContext,
) -> int:  # fmt: skip
    requantised = (
        4 * layer.intermediate_size * layer.hidden_size
        if scheme.granularity == "tensor" and layer.gated
        else 0
    )
    if backend is Backend.MARLIN:
        # every expert's words in a list, then concatenated, beside the original of the larger matrix
        return stored[0].n_bytes * 2 + stored[1].n_bytes
    if backend is Backend.FLASHINFER_TRTLLM:
        # exchanged halves, then every expert shuffled, as a list and stacked; per tensor by way of wider copies
        one = stored[0].n_bytes // max(layer.num_experts, 1)
        return (
            5 * stored[0].n_bytes + one
            if scheme.granularity == "tensor"
            else weights + stored[0].n_bytes + 3 * one
        )
    if backend is Backend.FLASHINFER_CUTLASS:
        # the halves of w13 change places: a second copy for a moment
        return max(requantised, stored[0].n_bytes)
    if backend is Backend.DEEP_GEMM and context.device.sm >= 100:
        return 17 * layer.slices * layer.intermediate_size * layer.hidden_size
    return requantised


def _built(layer: LocalExperts, scheme: Fp8Experts, slices: int) -> tuple[Stored, ...]:
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    tensors = [
        Stored("w13_weight", (count, slices * width, hidden), FP8, count * layer.slices * width * hidden),
        Stored("w2_weight", (count, hidden, width), FP8, count * hidden * width),
        *_scales(layer, scheme, slices, merged=False),
    ]
    if scheme.activations is Activations.STATIC:
        tensors += [Stored(f"{w}_input_scale", (count,), "float32", scale=True) for w in ("w13", "w2")]
    return tuple(tensors)


def _scales(layer: LocalExperts, scheme: Fp8Experts, slices: int, *, merged: bool) -> tuple[Stored, Stored]:
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    first: tuple[int, ...]
    second: tuple[int, ...]
    if scheme.granularity == "tensor":
        first, second = ((count,) if merged else (count, slices)), (count,)
    elif scheme.granularity == "channel":
        first, second = (count, slices * width, 1), (count, hidden, 1)
    else:
        n, k = scheme.block or (128, 128)
        first, second = (
            (count, slices * cdiv(width, n), cdiv(hidden, k)),
            (count, cdiv(hidden, n), cdiv(width, k)),
        )
    name = scheme.suffix
    return (
        Stored(f"w13_{name}", first, "float32", scale=True),
        Stored(f"w2_{name}", second, "float32", scale=True),
    )


def _stored(
    layer: LocalExperts, scheme: Fp8Experts, context: QuantContext, backend: Backend, slices: int
) -> tuple[Stored, ...]:
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    logical13, logical2 = count * layer.slices * width * hidden, count * hidden * width
    static = scheme.activations is Activations.STATIC
    inputs = (
        tuple(Stored(f"{w}_input_scale", (), "float32", scale=True) for w in ("w13", "w2")) if static else ()
    )
    if backend is Backend.MARLIN:
        return (*_marlin(layer, scheme, context, slices), *inputs)
    if backend in (Backend.FLASHINFER_CUTLASS, Backend.FLASHINFER_TRTLLM) and scheme.granularity != "block":
        width = round_up(width, 16 if layer.gated else 128)
    scales = _scales(layer, scheme, slices, merged=True)
    if backend is Backend.DEEP_GEMM and context.device.sm >= 100:
        k = (scheme.block or (128, 128))[1]
        scales = (
            Stored(scales[0].name, (count, slices * width, cdiv(cdiv(hidden, k), 4)), "int32", scale=True),
            Stored(scales[1].name, (count, hidden, cdiv(cdiv(width, k), 4)), "int32", scale=True),
        )
    kept: tuple[Stored, ...] = ()
    on_cutlass = scheme.cutlass and scheme.granularity != "block" and backend is Backend.AS_LOADED
    if on_cutlass and (context.device.sm == 90 or context.device.sm // 10 == 10) and layer.gated:
        # CutlassExpertsFp8.__init__, fused_moe/experts/cutlass_moe.py: a plain attribute of the kernel
        kept = tuple(
            Stored(name, (count,), "int64", buffer=True)
            for name in ("ab_strides1", "ab_strides2", "c_strides1")
        )
    if backend is Backend.FLASHINFER_TRTLLM and scheme.granularity == "tensor":
        # TrtLlmFp8ExpertsMonolithic keeps its output scales
        names = ("_g1_alphas", "_g2_alphas", "_g1_scale_c")
        kept = tuple(Stored(name, (count,), "float32", scale=True, buffer=True) for name in names)
    if backend is Backend.FLASHINFER_CUTLASS and scheme.granularity == "tensor":
        # `make_fp8_moe_quant_config`, fused_moe/oracle/fp8.py
        kept = tuple(
            Stored(name, shape, "float32", scale=True, buffer=True)
            for name, shape in (
                ("g1_alphas", (count,)),
                ("g2_alphas", (count,)),
                ("a1_gscale", ()),
                ("a2_gscale", ()),
            )
        )
    return (
        Stored("w13_weight", (count, slices * width, hidden), FP8, logical13),
        Stored("w2_weight", (count, hidden, width), FP8, logical2),
        *scales,
        *inputs,
        *kept,
    )


def _marlin(
    layer: LocalExperts, scheme: Fp8Experts, context: QuantContext, slices: int
) -> tuple[Stored, ...]:
    """Words repacked per expert, scales in the model's dtype spread over the outputs, padded width."""
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    group = (scheme.block or (0, 0))[1] or -1
    padded = moe_width(width, group) if context.release.has("marlin_moe_padding") else width
    logical13, logical2 = count * layer.slices * width * hidden, count * hidden * width
    groups13, groups2 = (1, 1) if group < 0 else (hidden // group, padded // group)
    return (
        Stored("w13_weight", (count, hidden // TILE, slices * padded * 4), "int32", logical13),
        Stored("w2_weight", (count, padded // TILE, hidden * 4), "int32", logical2),
        Stored(f"w13_{scheme.suffix}", (count, groups13, slices * padded), context.dtype, scale=True),
        Stored(f"w2_{scheme.suffix}", (count, groups2, hidden), context.dtype, scale=True),
        *workspace(context, MOE_BLOCKS_PER_SM),
    )


def _check_blocks(layer: LocalExperts, scheme: Fp8Experts, context: QuantContext) -> None:
    n, k = scheme.block or (128, 128)
    width = layer.intermediate_size
    if width % n:
        raise RefusedError(
            Reason.INVALID_LAYOUT,
            f"The output_size of gate's and up's weight = {width} is not divisible by weight quantization"
            f" block_n = {n}.",
        )
    if context.parallel.tp > 1 and width % k:
        raise RefusedError(
            Reason.INVALID_LAYOUT,
            f"The input_size of down's weight = {width} is not divisible by weight quantization block_k = {k}.",
        )


def _bias(layer: LocalExperts, dtype: str) -> tuple[Stored, ...]:
    if not layer.bias:
        return ()
    count, width = layer.num_experts, layer.slices * layer.intermediate_size
    return (
        Stored("w13_bias", (count, width), dtype, count * width),
        Stored("w2_bias", (count, layer.hidden_size), dtype, count * layer.hidden_size),
    )
