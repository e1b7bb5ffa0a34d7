"""Weight-only int4 and int8 linear layers (AWQ, GPTQ, compressed-tensors, AutoRound) after loading.

Hopper takes Machete where it can and Humming else (Marlin before 0.32.0), Ampere AllSpark for channel-wise int8, everything
else Marlin. Sources
(0.26.0): `_POSSIBLE_KERNELS` and `choose_mp_linear_kernel`, kernels/linear/__init__.py; kernels/linear/
mixed_precision/machete.py, allspark.py, marlin.py; `create_weights` of `AutoGPTQLinearMethod`,
`AutoAWQMarlinLinearMethod`, `CompressedTensorsWNA16` and `_convert_awq_to_standard_format`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.units import cdiv, round_up
from vllm_capacity.weights.quantisation.base import LayerTensors, QuantContext, Stored, bias_of
from vllm_capacity.weights.quantisation.humming import humming_bias, humming_matrix, locks, prefers_humming
from vllm_capacity.weights.quantisation.marlin import (
    GROUP_SIZES,
    linear_nk,
    marlin_bias,
    packed,
    workspace,
)
from vllm_capacity.weights.sharding import LocalLinear


class Layout(StrEnum):
    """The checkpoint's packing, which decides names and what stays beside the weight."""

    COMPRESSED_TENSORS = "compressed-tensors"
    GPTQ = "gptq"
    AWQ = "awq"


@dataclass(frozen=True, slots=True)
class WNA16:
    """Integer weights of `bits` with one scale per `group` inputs (-1: per output). `g_idx`: act-order."""

    bits: int
    group: int
    layout: Layout
    zero_points: bool = False
    g_idx: bool = False


class Kernel(StrEnum):
    MACHETE = "MacheteLinearKernel"
    ALLSPARK = "AllSparkLinearKernel"
    HUMMING = "HummingLinearKernel"
    MARLIN = "MarlinLinearKernel"


def choose_kernel(layer: LocalLinear, scheme: WNA16, context: QuantContext) -> Kernel:
    """`choose_mp_linear_kernel`. Raises InputError where vLLM would fall back to kernels beyond these."""
    disabled = (context.environment or {}).get("VLLM_DISABLED_KERNELS", "").split(",")
    rows, inputs, sm = layer.rows, layer.inputs, context.device.sm
    divided = layer.input_divided
    for kernel in Kernel:
        if kernel.value in disabled or context.linear_backend not in ("auto", _BACKEND[kernel]):
            continue
        if kernel is Kernel.MACHETE:
            fits = (
                sm == 90
                and not (scheme.g_idx and divided)
                and scheme.bits in (4, 8)
                and scheme.group in (-1, 64, 128)
                and inputs % 64 == 0
                and rows % 128 == 0
            )
        elif kernel is Kernel.ALLSPARK:
            fits = (
                80 <= sm < 90
                and context.release.has("allspark")
                and not scheme.g_idx
                and not scheme.zero_points
                and scheme.bits == 8
                and scheme.group == -1
                and inputs % 16 == 0
                and rows % 16 == 0
            )
        elif kernel is Kernel.HUMMING:
            fits = prefers_humming(context)
        else:
            fits = sm >= 75 and _marlin_fits(layer, scheme, context)
        if fits:
            return kernel
    raise InputError(
        f"{context.model}: {layer.name} [{rows}, {inputs}] with {scheme.bits}-bit weights in groups of {scheme.group}"
        f" is not modelled on sm{sm}: neither Machete, AllSpark nor Marlin takes it"
    )


_BACKEND = {
    Kernel.MACHETE: "machete", Kernel.ALLSPARK: "allspark", Kernel.HUMMING: "humming", Kernel.MARLIN: "marlin",
}  # fmt: skip


def _marlin_fits(layer: LocalLinear, scheme: WNA16, context: QuantContext) -> bool:
    supported = scheme.bits == 4 or (scheme.bits == 8 and not scheme.zero_points)
    if not supported or scheme.group not in GROUP_SIZES:
        return False
    grouped = scheme.group != -1 and scheme.group < layer.full_inputs
    if scheme.g_idx or not context.release.has("marlin_tile_padding"):
        tiles = layer.rows % 64 == 0 and layer.inputs % 128 == 0
        return tiles and not (grouped and layer.inputs % scheme.group)
    return not (grouped and layer.inputs % scheme.group)


def wna16_linear(layer: LocalLinear, scheme: WNA16, context: QuantContext) -> LayerTensors:
    """A linear layer as loaded and as the kernel wants it. Raises RefusedError where groups do not divide."""
    built = _built(layer, scheme, context)
    kernel = choose_kernel(layer, scheme, context)
    if kernel is Kernel.MACHETE:
        return _machete(layer, scheme, context, built)
    if kernel is Kernel.ALLSPARK:
        return _allspark(layer, scheme, context, built)
    if kernel is Kernel.HUMMING:
        return _humming(layer, scheme, context, built)
    return _marlin(layer, scheme, context, built)


@dataclass(frozen=True, slots=True)
class _Built:
    weight: Stored
    scale: Stored
    zeros: Stored | None
    g_idx: Stored | None
    shape: Stored | None
    bias: tuple[Stored, ...]
    groups: int

    @property
    def all(self) -> tuple[Stored, ...]:
        parts = (self.weight, self.scale, self.zeros, self.g_idx, self.shape)
        return (*(part for part in parts if part is not None), *self.bias)


def _groups(layer: LocalLinear, scheme: WNA16) -> int:
    """Groups of scales on this rank: all of them with act-order or per channel on a divided input
    (`marlin_repeat_scales_on_all_ranks`).
    """
    group = scheme.group if scheme.group != -1 else layer.full_inputs
    repeated = scheme.g_idx or (scheme.group == -1 and layer.input_divided)
    if scheme.layout is Layout.AWQ:
        repeated = False
    inputs = layer.full_inputs if repeated else layer.inputs
    if not repeated and layer.inputs % group:
        raise RefusedError(
            Reason.INVALID_LAYOUT,
            f"The input size {layer.inputs} of {layer.name} per partition is not divisible by"
            f" group_size = {group}.",
        )
    return inputs // group


def _built(layer: LocalLinear, scheme: WNA16, context: QuantContext) -> _Built:
    rows, inputs, bits = layer.rows, layer.inputs, scheme.bits
    groups, kind = _groups(layer, scheme), layer.dtype or context.dtype
    logical, pack = rows * inputs, 32 // bits
    bias = bias_of(layer, kind)
    if scheme.layout is Layout.COMPRESSED_TENSORS:
        return _Built(
            Stored("weight_packed", (rows, cdiv(inputs * bits, 32)), "int32", logical),
            Stored("weight_scale", (rows, groups), kind, scale=True),
            Stored("weight_zero_point", (cdiv(rows * bits, 32), groups), "int32", scale=True)
            if scheme.zero_points else None,
            Stored("weight_g_idx", (inputs,), "int32", scale=True) if scheme.g_idx else None,
            Stored("weight_shape", (2,), "int64", scale=True),
            bias, groups,
        )  # fmt: skip
    gptq = scheme.layout is Layout.GPTQ
    return _Built(
        Stored("qweight", (inputs // pack, rows) if gptq else (inputs, rows // pack), "int32", logical),
        Stored("scales", (groups, rows), kind, scale=True),
        Stored("qzeros", (groups, rows // pack), "int32", scale=True),
        Stored("g_idx", (inputs,), "int32", scale=True)
        if gptq and not context.release.has("act_order_refused") else None,
        None, bias, groups,
    )  # fmt: skip


def _awq_conversion(layer: LocalLinear, scheme: WNA16) -> int:
    """AWQ words are unpacked to int32 on the GPU, shifted and summed: two int32 and half a byte per weight at once."""
    return 17 * layer.rows * layer.inputs // 2 if scheme.layout is Layout.AWQ else 0


def _machete(layer: LocalLinear, scheme: WNA16, context: QuantContext, built: _Built) -> LayerTensors:
    """The weight keeps its size; zero points become `-scale * zero` in the scales' dtype (machete.py:110-119)."""
    rows, kind = layer.rows, layer.dtype or context.dtype
    zeros = built.zeros
    if zeros is not None and scheme.zero_points:
        zeros = Stored(zeros.name, (built.groups, rows), kind, scale=True)
    stored = [built.weight, built.scale, zeros, built.g_idx, built.shape]
    if scheme.g_idx:
        stored.append(Stored("perm", (layer.inputs,), "int32", scale=True, buffer=True))
    kept = (*(tensor for tensor in stored if tensor is not None), *built.bias)
    transient = max(2 * built.weight.n_bytes, _awq_conversion(layer, scheme))
    if scheme.g_idx:
        # unpacked to int32, permuted and packed again (quant_utils.py: unpack_ and pack_quantized_values_into_int32)
        transient = max(transient, 19 * rows * layer.inputs // 2)
    return LayerTensors(kept, built.all, transient, _prepacking(scheme, context, built))


def _prepacking(scheme: WNA16, context: QuantContext, built: _Built) -> tuple[tuple[str, int], ...]:
    """What is allocated and freed for Machete, in order; nothing is known with act-order.

    Sources: `_convert_awq_to_standard_format`, quantization/auto_awq.py; `process_weights_after_loading`,
    kernels/linear/mixed_precision/machete.py (0.26.0 to 0.33.0); `machete_prepack_B` makes one tensor of its input's size.
    """
    if scheme.g_idx:
        return ()
    weight, words = built.weight.name, built.weight.n_bytes
    zeros = built.zeros if scheme.zero_points else None
    steps: list[tuple[str, int]] = []
    if scheme.layout is Layout.AWQ:
        steps += [("order", 64), ("shifts", 32), *_reordered("weight", words, 32 // scheme.bits)]
        if built.zeros is not None:
            steps += _reordered("zeros", built.zeros.n_bytes, 32 // scheme.bits)
        gone = (
            weight,
            "weight in order",
            *((built.zeros.name, "zeros in order") if built.zeros is not None else ()),
        )
        steps += [(name, 0) for name in ("order", "shifts", *gone)]
        weight = "weight again"
    if scheme.layout is Layout.COMPRESSED_TENSORS:
        # outputs come first in the checkpoint: words are as Machete reads them, scales are turned
        steps += [("prepacked", words), (weight, 0)]
        if built.groups > 1:
            steps += [("scales turned", built.scale.n_bytes), (built.scale.name, 0)]
    else:
        steps += [("transposed", words), ("prepacked", words), ("transposed", 0)]
        steps.append(("prepacked" if context.release.has("parameters_keep_their_storage") else weight, 0))
    if zeros is not None:
        spread = zeros.n_bytes * 32 // scheme.bits
        half = built.scale.n_bytes
        steps.append(("values", spread))
        for _ in range(32 // scheme.bits):
            steps += [("shifted", zeros.n_bytes), ("masked", zeros.n_bytes), ("shifted", 0), ("masked", 0)]
        steps += [
            ("negative", half), ("as scales", half), ("product", half), ("negative", 0), ("as scales", 0),
            ("values", 0), ("zeros again" if scheme.layout is Layout.AWQ else zeros.name, 0),
        ]  # fmt: skip
    return tuple(steps)


def _reordered(name: str, words: int, values_per_word: int) -> list[tuple[str, int]]:
    """Every value of `words` in an int32 of its own: shifted, masked, put in order, shifted again and summed up."""
    spread = words * values_per_word
    return [
        (f"{name} shifted", spread), (f"{name} masked", spread), (f"{name} shifted", 0), (f"{name} in order", spread),
        (f"{name} masked", 0), (f"{name} apart", spread), (f"{name} again", words), (f"{name} apart", 0),
    ]  # fmt: skip


def _humming(layer: LocalLinear, scheme: WNA16, context: QuantContext, built: _Built) -> LayerTensors:
    """`HummingLinearKernel`: its own tensors and the bias, padded, with as many zeros beside it."""
    rows, inputs, kind = layer.rows, layer.inputs, layer.dtype or context.dtype
    tensors = humming_matrix(
        "",
        rows,
        inputs,
        scheme.bits,
        scheme.group,
        kind,
        built.weight.logical,
        zero_points=scheme.zero_points,
    )
    transient = max(5 * rows * inputs, _awq_conversion(layer, scheme))
    return LayerTensors((*tensors, *humming_bias(layer, kind), locks(context)), built.all, transient)


def _allspark(layer: LocalLinear, scheme: WNA16, context: QuantContext, built: _Built) -> LayerTensors:
    """`allspark_repack_weight`: bytes [outputs padded to 32, inputs]; zero points and g_idx stay."""
    rows = round_up(layer.rows, 32)
    stored = (
        Stored(built.weight.name, (rows, layer.inputs), "uint8", built.weight.logical),
        Stored(built.scale.name, (1, rows), layer.dtype or context.dtype, scale=True),
        *(part for part in (built.zeros, built.g_idx, built.shape) if part is not None),
        *built.bias,
    )
    return LayerTensors(stored, built.all, built.weight.n_bytes + rows * layer.inputs)


def _marlin(layer: LocalLinear, scheme: WNA16, context: QuantContext, built: _Built) -> LayerTensors:
    """Repacked and padded; g_idx and zero points that the kernel does not use are emptied."""
    rows, inputs, kind = layer.rows, layer.inputs, layer.dtype or context.dtype
    padded = None if scheme.g_idx else linear_nk(context.release, rows, inputs, scheme.group)
    n, k = padded or (rows, inputs)
    groups = built.groups + ((k - inputs) // scheme.group if scheme.group > 0 else 0)
    stored = [
        Stored(built.weight.name, packed(k, n, scheme.bits), "int32", built.weight.logical),
        Stored(built.scale.name, (groups, n), kind, scale=True),
    ]
    if scheme.zero_points and built.zeros is not None:
        stored.append(Stored(built.zeros.name, (groups, n * scheme.bits // 32), "int32", scale=True))
    if scheme.g_idx and built.g_idx is not None:
        stored.append(built.g_idx)
        stored.append(Stored("g_idx_sort_indices", (inputs,), "int32", scale=True))
    if built.shape is not None:
        stored.append(built.shape)
    stored += [*marlin_bias(layer.bias, rows, n, kind), *workspace(context)]
    transient = max(2 * stored[0].n_bytes, _awq_conversion(layer, scheme))
    return LayerTensors(tuple(stored), built.all, transient)


def awq_triton_linear(layer: LocalLinear, scheme: WNA16, context: QuantContext) -> LayerTensors:
    """`AutoAWQLinearMethod`: the checkpoint's tensors as they are, where Marlin does not take the layer."""
    group = scheme.group if scheme.group != -1 else layer.full_inputs
    if layer.inputs % group:
        raise RefusedError(
            Reason.INVALID_LAYOUT,
            "The input size is not aligned with the quantized weight shape. This can be caused by too large tensor"
            " parallel size.",
        )
    if layer.rows % (32 // scheme.bits):
        raise RefusedError(
            Reason.INVALID_LAYOUT,
            "The output size is not aligned with the quantized weight shape. This can be caused by too large tensor"
            " parallel size.",
        )
    return LayerTensors(_built(layer, scheme, context).all)
