"""MXFP4 experts: gpt-oss (`quant_method: mxfp4`), DeepSeek-V4 and compressed-tensors checkpoints.

gpt-oss runs on Triton kernels on Hopper, which keep swizzled copies outside the module's parameters, on TRT-LLM on
sm10x and on Marlin elsewhere; each pads differently. Sources (0.26.0): `GptOssMxfp4MoEMethod` and `Mxfp4MoEMethod`,
layers/quantization/mxfp4.py; `select_mxfp4_moe_backend`, `mxfp4_round_up_hidden_size_and_intermediate_size` and the
conversions, layers/fused_moe/oracle/mxfp4.py; `_swizzle_mxfp4`, utils/mxfp4_utils.py:36-107;
`prepare_moe_mxfp4_layer_for_marlin`, utils/marlin_utils_fp4.py; `CompressedTensorsW4A4Mxfp4MoEMethod`;
third_party/triton_kernels/tensor_details/layout_details/hopper_value.py and hopper_scale.py.
"""

from __future__ import annotations

from enum import StrEnum

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.units import round_up
from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantContext,
    QuantisationMethod,
    Stored,
    plain_linear,
)
from vllm_capacity.weights.quantisation.humming import PADDED_INPUTS, PADDED_ROWS, locks, prefers_humming
from vllm_capacity.weights.quantisation.marlin import MOE_BLOCKS_PER_SM, TILE, workspace
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear

BLOCK = 32
"""Elements per e8m0 scale."""
SWIZZLE_SCALE_ROWS = 2 * 8 * 2 * 8
"""HopperMXScaleLayout with 8 warps pads the rows of the scales."""
SWIZZLE_VALUE_ROWS, SWIZZLE_VALUE_BYTES = 16, 32
"""HopperMXValueLayout (mma version 3) pads rows and packed bytes of the values."""
SWIZZLE_VALUE_PADDED = 64
"""Both, in the triton_kernels that came with vLLM up to 0.21.0."""


class Backend(StrEnum):
    TRITON = "triton"
    TRTLLM = "flashinfer_trtllm"
    MARLIN = "marlin"
    HUMMING = "humming"
    DEEP_GEMM = "deep_gemm"


def gpt_oss_backend(context: QuantContext) -> Backend:
    """`select_mxfp4_moe_backend`: the first of TRT-LLM (sm10x), Triton (sm90) and Marlin that the GPU runs; with LoRA
    the first that takes adapters.
    """
    sm, asked = context.device.sm, context.moe_backend
    if asked == "auto" and context.lora:
        return Backend.MARLIN
    if asked == "auto":
        return Backend.TRTLLM if sm // 10 == 10 else Backend.TRITON if sm == 90 else Backend.MARLIN
    fits = {"marlin": True, "triton": sm == 90, "flashinfer_trtllm": sm // 10 == 10}
    if not fits.get(asked, False):
        raise InputError(
            f"{context.model}: mxfp4 with --moe-backend {asked} on sm{sm} ({context.device.name}) is not modelled; auto is"
        )
    return Backend(asked)


def deepseek_v4_backend(context: QuantContext) -> Backend:
    """`select_deepseek_v4_mxfp4_moe_backend`: TRT-LLM on sm10x, DeepGEMM on sm12x, Humming or Marlin before."""
    if context.moe_backend not in ("auto", "marlin"):
        raise InputError(
            f"{context.model}: mxfp4 with --moe-backend {context.moe_backend} is not modelled; auto is"
        )
    family = context.device.sm // 10
    if context.moe_backend == "auto" and prefers_humming(context):
        return Backend.HUMMING
    if context.moe_backend == "marlin" or family not in (10, 12):
        return Backend.MARLIN
    return Backend.TRTLLM if family == 10 else Backend.DEEP_GEMM


def padded_for(backend: Backend, layer: LocalExperts, context: QuantContext) -> tuple[int, int]:
    """`mxfp4_round_up_hidden_size_and_intermediate_size`."""
    hidden, width = layer.hidden_size, layer.intermediate_size
    if backend in (Backend.TRITON, Backend.HUMMING):
        return hidden, round_up(width, 64)
    if backend is Backend.DEEP_GEMM:
        return round_up(hidden, 128), round_up(width, 128)
    narrow = backend is Backend.MARLIN or context.release.has("mxfp4_trtllm_width_128")
    return round_up(hidden, 256), round_up(width, 128 if narrow else 256)


def padded_sizes(layer: LocalExperts, context: QuantContext) -> tuple[int, int]:
    """compressed-tensors' MXFP4 experts are not padded."""
    del context
    return layer.hidden_size, layer.intermediate_size


class Mxfp4(QuantisationMethod):
    """GptOssMxfp4MoEMethod: experts only."""

    name = "mxfp4"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        if context.model_type and context.model_type != "gpt_oss":
            raise InputError(
                f"{context.model}: mxfp4 experts of {context.model_type!r} are not modelled: vLLM's method is gpt-oss's"
            )
        self.backend = gpt_oss_backend(context)

    def linear(self, layer: LocalLinear) -> LayerTensors:
        """All linear layers stay unquantised (mxfp4.py:73-100)."""
        return plain_linear(layer, self.context.dtype)

    def padded_experts(self, layer: LocalExperts) -> tuple[int, int]:
        return padded_for(self.backend, layer, self.context)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        return padded_mxfp4_experts(layer, self.context, self.backend)


def padded_mxfp4_experts(layer: LocalExperts, context: QuantContext, backend: Backend) -> LayerTensors:
    """Experts created at the padded sizes and then re-laid for the backend."""
    count = layer.num_experts
    hidden, width = padded_for(backend, layer, context)
    w13 = _Matrix(
        "w13", count, 2 * width, hidden, count * layer.slices * layer.intermediate_size * layer.hidden_size
    )
    w2 = _Matrix("w2", count, hidden, width, count * layer.hidden_size * layer.intermediate_size)
    built = [*w13.built(), *w2.built()]
    biases: list[Stored] = []
    if layer.bias:
        rows = layer.slices * layer.intermediate_size
        kept = context.dtype if backend is Backend.MARLIN else "float32"
        for name, padded, logical in (("w13_bias", 2 * width, rows), ("w2_bias", hidden, layer.hidden_size)):
            built.append(Stored(name, (count, padded), "bfloat16", count * logical))
            biases.append(Stored(name, (count, padded), kept, count * logical))
    if backend is Backend.TRITON:
        return _triton(w13, w2, built, biases, context)
    if backend is Backend.MARLIN:
        tensors = [*w13.marlin(), *w2.marlin()]
        # the words of one matrix, and the larger scales in 16 bits several times
        transient = tensors[0].n_bytes + tensors[2].n_bytes + 8 * tensors[1].n_bytes
    elif backend is Backend.HUMMING:
        tensors = _humming(w13, w2, context)
        # padded copies, beside them the repacked words and the scales, which are transposed and permuted
        transient = 2 * tensors[0].n_bytes + 3 * tensors[1].n_bytes
    else:
        tensors = [*w13.built(), *w2.built()]
        # w13 with its rows exchanged; then all shuffled experts in lists, and those of w13 stacked
        transient = (
            3 * tensors[0].n_bytes + 2 * tensors[1].n_bytes + tensors[2].n_bytes + tensors[3].n_bytes
            + 3 * sum(tensor.n_bytes for tensor in biases)
        )  # fmt: skip
        if backend is Backend.TRTLLM and layer.bias:
            tensors += _trtllm_extras(count, (*tensors, *biases))
    return LayerTensors((*tensors, *biases), tuple(built), transient)


def _humming(w13: _Matrix, w2: _Matrix, context: QuantContext) -> list[Stored]:
    """Humming's words have the bytes of the checkpoint's, padded. Beside 8-bit activations each expert's scales are told
    apart from one factor; every layer's kernel has locks of its own.

    Source (0.33.0): `convert_to_humming_moe_kernel_format`, quantization/utils/humming/moe.py; `create_humming_locks`,
    utils/humming.py; humming-kernels 0.1.19, `transform_humming_tensors` and `process_fused_e8m0_scale`, transform.py.
    """
    tensors: list[Stored] = []
    for matrix in (w13, w2):
        tensors += matrix.humming()
    if context.release.has("deepseek_v4_fp8_expert_inputs"):
        tensors += [
            Stored(f"{matrix.name}_weight_scale_2", (matrix.count,), "float32", scale=True)
            for matrix in (w13, w2)
        ]
    return [*tensors, locks(context)]


def _trtllm_extras(count: int, shuffled: tuple[Stored, ...]) -> list[Stored]:
    """What the kernel of gpt-oss and its method keep in every layer: three vectors of the activation, and the order of
    the rows for each shape that was shuffled (`_cache_permute_indices`, one entry per method object).
    """
    vectors = [
        Stored(name, (count,), "float32", buffer=True)
        for name in ("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit")
    ]
    shapes = dict.fromkeys((*tensor.shape[1:], 1)[:2] for tensor in shuffled)
    return vectors + [
        Stored(f"_cache_permute_indices.{rows}x{columns}", (rows,), "int64", buffer=True)
        for rows, columns in shapes
    ]


def _triton(
    w13: _Matrix, w2: _Matrix, built: list[Stored], biases: list[Stored], context: QuantContext
) -> LayerTensors:
    pad = 4 if context.release.has("mxfp4_scale_groups_padded") else 2
    wide = context.release.has("mxfp4_values_padded_64")
    swizzled = [*w13.swizzled(pad, padded_values=wide), *w2.swizzled(pad, padded_values=wide)]
    stored = swizzled + biases
    if not context.release.has("mxfp4_dead_scales_freed"):
        stored += [tensor for tensor in built if tensor.scale]
    # HopperMXValueLayout.swizzle_data and `_pack_bits` (hopper_value.py): the permuted words and eight int32 tensors of
    # their size; beside them the padded scales and the biases in fp32
    padded = w13.count * w13.rows * round_up(w13.columns // BLOCK, pad) if pad == 4 else 0
    transient = 9 * swizzled[0].n_bytes + padded + sum(tensor.n_bytes for tensor in biases)
    steps = [(f"{bias.name} fp32", bias.n_bytes) for bias in biases]
    for matrix, (values, scales) in ((w13, swizzled[:2]), (w2, swizzled[2:])):
        steps += matrix.swizzling(pad, values.n_bytes, scales.n_bytes)
    steps += [(tensor.name, 0) for tensor in built if tensor.logical or tensor not in stored]
    return LayerTensors(tuple(stored), tuple(built), transient, tuple(steps))


def check_swizzle(rows: int, inputs: int) -> None:
    """Scales are swizzled in tiles of 128 x 4 and viewed at their own shape again, which other sizes do not fit."""
    groups = inputs // BLOCK
    if rows % 128 or groups % 4:
        size = round_up(rows, 128) * round_up(groups, 4)
        raise RefusedError(
            Reason.INVALID_LAYOUT, f"shape '[{rows}, {groups}]' is invalid for input of size {size}"
        )


def mxfp4_experts(layer: LocalExperts, context: QuantContext) -> LayerTensors:
    """compressed-tensors: Cutlass keeps the weights and swizzles the scales on sm10x, Marlin repacks elsewhere."""
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    w13 = _Matrix("w13", count, 2 * width, hidden, count * layer.slices * width * hidden)
    w2 = _Matrix("w2", count, hidden, width, count * hidden * width)
    built = (*w13.built(), *w2.built())
    if context.device.sm // 10 == 10:
        check_swizzle(2 * width, hidden)
        check_swizzle(hidden, width)
        return LayerTensors(built, transient_bytes=2 * (built[1].n_bytes + built[3].n_bytes))
    if hidden % 64 or width % 64 or (hidden % 128 and width % 128):
        raise RefusedError(
            Reason.INVALID_LAYOUT,
            f"Marlin's MXFP4 experts need sizes that fit its thread tiles; hidden size {hidden} and intermediate size"
            f" {width} per rank do not",
        )
    stored = (*w13.marlin(), *w2.marlin(), *workspace(context, MOE_BLOCKS_PER_SM))
    return LayerTensors(stored, built, stored[0].n_bytes + stored[2].n_bytes + 8 * stored[1].n_bytes)


class _Matrix:
    """One expert matrix [E, rows, columns] in 4 bits with a scale per 32 columns."""

    def __init__(self, name: str, count: int, rows: int, columns: int, logical: int) -> None:
        self.name, self.count, self.rows, self.columns, self.logical = name, count, rows, columns, logical

    def built(self) -> tuple[Stored, Stored]:
        return (
            Stored(f"{self.name}_weight", (self.count, self.rows, self.columns // 2), "uint8", self.logical),
            Stored(
                f"{self.name}_weight_scale",
                (self.count, self.rows, self.columns // BLOCK),
                "uint8",
                scale=True,
            ),
        )

    def swizzling(self, group_multiple: int, values: int, scales: int) -> list[tuple[str, int]]:
        """What `_swizzle_mxfp4` allocates and frees: the scales are padded in their groups, copied, transposed, padded in
        their rows and permuted. The permuted words of the values have blocks of their own, which are all given back.

        Source: HopperMXScaleLayout.swizzle_data, layout_details/hopper_scale.py (0.33.0).
        """
        name, padded = self.name, self.count * self.rows * round_up(self.columns // BLOCK, group_multiple)
        return [
            (f"{name} padded", padded), (f"{name} values", values), (f"{name} copy", padded),
            (f"{name} transposed", padded), (f"{name} copy", 0), (f"{name} rows", scales), (f"{name} transposed", 0),
            (f"{name} scales", scales), (f"{name} rows", 0), (f"{name} padded", 0),
        ]  # fmt: skip

    def swizzled(self, group_multiple: int, *, padded_values: bool) -> tuple[Stored, Stored]:
        values = (
            self.count,
            round_up(self.rows, SWIZZLE_VALUE_PADDED if padded_values else SWIZZLE_VALUE_ROWS),
            round_up(self.columns // 2, SWIZZLE_VALUE_PADDED if padded_values else SWIZZLE_VALUE_BYTES),
        )
        scales = (
            self.count,
            round_up(self.rows, SWIZZLE_SCALE_ROWS),
            round_up(self.columns // BLOCK, group_multiple),
        )
        return (
            Stored(f"{self.name}_weight", values, "uint8", self.logical),
            Stored(f"{self.name}_weight_scale", scales, "uint8", scale=True),
        )

    def humming(self) -> tuple[Stored, Stored]:
        """`prepare_and_transform_humming_tensors`: rows padded to 256, inputs to 128."""
        rows, columns = round_up(self.rows, PADDED_ROWS), round_up(self.columns, PADDED_INPUTS)
        return (
            Stored(f"{self.name}_weight", (self.count, rows, columns // 8), "int32", self.logical),
            Stored(f"{self.name}_weight_scale", (self.count, columns // BLOCK, rows), "uint8", scale=True),
        )

    def marlin(self) -> tuple[Stored, Stored]:
        """`_repack_marlin_experts` and permuted e8m0 scales."""
        return (
            Stored(
                f"{self.name}_weight",
                (self.count, self.columns // TILE, self.rows * 2),
                "int32",
                self.logical,
            ),
            Stored(
                f"{self.name}_weight_scale",
                (self.count, self.columns // BLOCK, self.rows),
                "uint8",
                scale=True,
            ),
        )
