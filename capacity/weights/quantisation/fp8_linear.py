"""fp8 linear layers after loading: one scale per tensor, per output channel or per block, by GPU generation.

Sources (0.26.0): kernel order `_POSSIBLE_FP8_KERNELS`, kernels/linear/__init__.py; padding in
`CutlassFP8ScaledMMLinearKernel.process_weights_after_loading`, kernels/linear/scaled_mm/cutlass.py:204-240;
`prepare_fp8_layer_for_marlin`, quantization/utils/marlin_utils_fp8.py:104-226;
`process_fp8_weight_tensor_strategy` and `requantize_with_max_scale`, utils/fp8_utils.py and w8a8_utils.py;
`deepgemm_post_process_fp8_weight_block`, utils/fp8_utils.py:1090.
"""

from __future__ import annotations

from enum import StrEnum

from vllm_capacity.errors import InputError
from vllm_capacity.units import cdiv, round_up
from vllm_capacity.weights.quantisation.base import LayerTensors, QuantContext, Stored, bias_of
from vllm_capacity.weights.quantisation.marlin import linear_nk, marlin_bias, packed, workspace
from vllm_capacity.weights.sharding import LocalLinear

FP8 = "float8_e4m3fn"
HALF = 2
"""Bytes of the fp16 copies that requantising makes."""


class Activations(StrEnum):
    """How the inputs of an fp8 linear layer are quantised."""

    STATIC = "static"
    TENSOR = "tensor"
    TOKEN = "token"


def runs_on_marlin(context: QuantContext) -> bool:
    """MarlinFP8ScaledMMLinearKernel.is_supported: GPUs without fp8, or VLLM_TEST_FORCE_FP8_MARLIN."""
    forced = (context.environment or {}).get("VLLM_TEST_FORCE_FP8_MARLIN", "0") not in ("0", "")
    return context.device.sm < 89 or forced


def blocks_run_on_marlin(context: QuantContext) -> bool:
    """Block scales on SM89: neither DeepGEMM nor CUTLASS takes them there, and since 0.29.0 Marlin, which comes before Triton,
    runs on every GPU (`_POSSIBLE_FP8_BLOCK_KERNELS`, kernels/linear/__init__.py; MarlinFP8ScaledMMLinearKernel.is_supported).
    """
    return runs_on_marlin(context) or (
        context.device.sm < 90 and context.release.has("marlin_fp8_on_every_gpu")
    )


def per_tensor_linear(
    layer: LocalLinear, context: QuantContext, activations: Activations, *, online: bool = False
) -> LayerTensors:
    """One fp32 scale per fused slice on disk, one for the layer afterwards (requantised to the largest).

    `online`: the weight comes in the model's dtype and is quantised while loading; nothing is built before.
    """
    shards, rows, inputs = len(layer.outputs), layer.rows, layer.inputs
    static = activations is Activations.STATIC
    weight = Stored("weight", (rows, inputs), FP8, rows * inputs)
    built = (
        weight,
        Stored("weight_scale", (shards,), "float32", scale=True),
        *((Stored("input_scale", (shards,), "float32", scale=True),) if static else ()),
        *bias_of(layer, layer.dtype or context.dtype),
    )
    if runs_on_marlin(context):
        return _marlin(layer, context, built, online=online)
    one_scale_kernel = context.device.sm >= 100 and activations is not Activations.TOKEN
    scales = (
        Stored("weight_scale", (1,) if online else (), "float32", scale=True),
        *((Stored("input_scale", (), "float32", scale=True),) if static else ()),
    )
    stored = (
        _padded(weight, to=1 if one_scale_kernel else 16),
        *scales,
        *bias_of(layer, layer.dtype or context.dtype),
    )
    if online:
        return _online(layer, context, stored)
    # two fp16 copies of one slice (`per_tensor_dequantize`), then the padded copy
    transient = max(2 * HALF * max(layer.outputs) * inputs, _pad_transient(stored[0], weight))
    return LayerTensors(stored, built, transient)


def per_channel_linear(
    layer: LocalLinear, context: QuantContext, *, online: bool = False, extra: tuple[Stored, ...] = ()
) -> LayerTensors:
    """One fp32 scale per output. `extra`: further scalars that stay (fbgemm's `input_scale_ub`)."""
    rows, inputs = layer.rows, layer.inputs
    weight = Stored("weight", (rows, inputs), FP8, rows * inputs)
    bias = bias_of(layer, layer.dtype or context.dtype)
    built = (weight, Stored("weight_scale", (rows, 1), "float32", scale=True), *extra, *bias)
    if runs_on_marlin(context):
        return _marlin(layer, context, built, online=online)
    padded = _padded(weight, to=16)
    stored = (padded, Stored("weight_scale", (padded.shape[0], 1), "float32", scale=True), *extra, *bias)
    if online:
        return _online(layer, context, stored)
    return LayerTensors(stored, built, _pad_transient(padded, weight))


def weight_only_channel_linear(
    layer: LocalLinear, context: QuantContext, built_scales: tuple[int, ...]
) -> LayerTensors:
    """W8A16: Marlin on every generation; `built_scales` is the shape of the scale as loaded."""
    rows, inputs = layer.rows, layer.inputs
    built = (
        Stored("weight", (rows, inputs), FP8, rows * inputs),
        Stored("weight_scale", built_scales, "float32", scale=True),
        *bias_of(layer, layer.dtype or context.dtype),
    )
    return _marlin(layer, context, built, online=False)


def block_linear(
    layer: LocalLinear, context: QuantContext, block: tuple[int, int], *, name: str = "weight_scale_inv",
    online: bool = False, scale_dtype: str = "float32",
) -> LayerTensors:  # fmt: skip
    """One scale per block. DeepGEMM on Blackwell packs the scales; Marlin spreads them over the outputs."""
    block_n, block_k = block
    rows, inputs = layer.rows, layer.inputs
    weight = Stored("weight", (rows, inputs), FP8, rows * inputs)
    scale = Stored(name, (_scale_rows(layer, block_n), cdiv(inputs, block_k)), scale_dtype, scale=True)
    bias = bias_of(layer, layer.dtype or context.dtype)
    built = (weight, scale, *bias)
    if blocks_run_on_marlin(context):
        return _marlin(layer, context, built, online=online, group=block_k, scale_name=name)
    if uses_deep_gemm(context, rows, inputs, block):
        if context.device.sm >= 100:
            scale = Stored(name, (rows, cdiv(cdiv(inputs, block_k), 4)), "int32", scale=True)
        elif scale_dtype != "float32":
            scale = Stored(name, scale.shape, "float32", scale=True)
        requantised = scale_dtype == "float32"
    else:
        requantised = False
    stored = (weight, scale, *bias)
    if online:
        # `per_block_cast_to_fp8` pads to whole blocks and returns a slice, which keeps the padded rows' storage
        padded = round_up(rows, block_n) if inputs % block_k == 0 else rows
        weight = Stored("weight", (padded, inputs), FP8, rows * inputs)
        return _online(layer, context, (weight, scale, *bias))
    if not requantised:
        return LayerTensors(stored, built if stored != built else None)
    steps = _requantising(rows, inputs, block)
    if stored != built:
        steps += [(f"{name} again", scale.n_bytes), (name, 0)]
    return LayerTensors(
        stored, built if stored != built else None, _requantised(rows, inputs, block), tuple(steps)
    )


def _requantised(rows: int, inputs: int, block: tuple[int, int]) -> int:
    """`requant_weight_ue8m0_inplace` (fp8_utils.py:990-1048) and `per_block_cast_to_fp8`: scales spread over the
    weight, the dequantised weight, its padded copy and the rescaled one in fp32, and the new fp8 weight.
    """
    n, k = round_up(rows, block[0]), round_up(inputs, block[1])
    return 4 * n * k + 4 * n * (k // block[1]) + 4 * rows * inputs + 4 * n * k + 4 * n * k + n * k


def _requantising(rows: int, inputs: int, block: tuple[int, int]) -> list[tuple[str, int]]:
    """What `requant_weight_ue8m0_inplace` allocates and frees, in order. `per_block_cast_to_fp8` is compiled: its fp32 copies are
    fused away, but the padded fp8 weight and the slice of it that is returned have a buffer each (PyTorch 2.14's Inductor).
    """
    n, k = round_up(rows, block[0]), round_up(inputs, block[1])
    across = k // block[1]
    return [
        ("scales of rows", 4 * n * across), ("scales spread", 4 * n * k), ("as fp32", 4 * rows * inputs),
        ("scaled", 4 * rows * inputs), ("as fp32", 0), ("new scales", 4 * n // block[0] * across), ("padded", n * k),
        ("sliced", rows * k), ("padded", 0), ("scales of rows", 0), ("scales spread", 0), ("scaled", 0), ("sliced", 0),
        ("new scales", 0),
    ]  # fmt: skip


def uses_deep_gemm(context: QuantContext, rows: int, inputs: int, block: tuple[int, int]) -> bool:
    """DeepGEMM (alone or behind FlashInfer) takes the layer: `should_use_deepgemm_for_fp8_linear`."""
    environment = context.environment or {}
    if environment.get("VLLM_USE_DEEP_GEMM", "1") in ("0", "") or block != (128, 128):
        return False
    sm = context.device.sm
    family = sm // 10
    supported = sm == 90 or family == 10 or (family == 12 and context.release.has("deep_gemm_sm120"))
    excluded = family in (10, 12) and context.model_type in ("qwen3_5_text", "qwen3_5_moe_text")
    return supported and not excluded and context.dtype == "bfloat16" and rows % 64 == 0 and inputs % 128 == 0


def _scale_rows(layer: LocalLinear, block_n: int) -> int:
    """`create_fp8_scale_parameter`: blocks over all outputs of the rank together."""
    return cdiv(layer.rows, block_n)


def _padded(weight: Stored, to: int) -> Stored:
    rows, inputs = weight.shape
    return Stored(weight.name, (round_up(rows, to), round_up(inputs, to)), FP8, weight.logical)


def _pad_transient(padded: Stored, weight: Stored) -> int:
    """A contiguous copy, then the padded one, beside the original."""
    return padded.n_bytes if padded.shape != weight.shape else 0


def _online(layer: LocalLinear, context: QuantContext, stored: tuple[Stored, ...]) -> LayerTensors:
    """Built on the meta device: the weight in the model's dtype appears for a moment beside its quantised copy.

    Source: `initialize_online_processing`, model_loader/reload/layerwise.py.
    """
    kept = tuple(tensor for tensor in stored if tensor.name == "bias")
    whole = layer.rows * layer.inputs * 2
    return LayerTensors(stored, kept, whole + stored[0].n_bytes)


def _marlin(
    layer: LocalLinear, context: QuantContext, built: tuple[Stored, ...], *, online: bool, group: int = -1,
    scale_name: str = "weight_scale",
) -> LayerTensors:  # fmt: skip
    rows, inputs, kind = layer.rows, layer.inputs, layer.dtype or context.dtype
    padded = linear_nk(context.release, rows, inputs, group)
    if padded is None:
        raise InputError(
            f"{context.model}: {layer.name} [{rows}, {inputs}] does not fit Marlin's tiles, and vLLM"
            f" {context.release.version} does not pad it"
        )
    n, k = padded
    groups = 1 if group < 0 else k // group
    stored = (
        Stored("weight", packed(k, n, 8), "int32", rows * inputs),
        Stored(scale_name, (groups, n), kind, scale=True),
        *marlin_bias(layer.bias, rows, n, kind),
        *workspace(context),
    )
    if online:
        kept = tuple(tensor for tensor in built if tensor.name == "bias")
        return LayerTensors(stored, kept, 3 * rows * inputs + 2 * n * k)
    # packed words transposed (and padded), then repacked, beside the original
    return LayerTensors(stored, built, 2 * n * k)
