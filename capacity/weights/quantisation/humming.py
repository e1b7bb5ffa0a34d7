"""Humming kernels: 8-bit weights with 16-bit activations, on Hopper since 0.32.0 all that Marlin ran there, and
`--quantization humming`.

Sources: `_POSSIBLE_WFP8A16_KERNELS`, kernels/linear/__init__.py; `HummingFP8ScaledMMLinearKernel`,
kernels/linear/scaled_mm/humming.py; `prepare_humming_layer`, quantization/utils/humming_utils.py (0.26.0);
`prioritize_humming`, quantization/utils/humming/priority.py; `prepare_humming_linear_layer_config`, humming/linear.py;
`convert_to_humming_moe_kernel_format`, humming/moe.py; `create_humming_locks`, utils/humming.py (0.33.0); humming-kernels
0.1.19, transform.py: `check_and_pad_tensors` and `transform_humming_tensors`. The words are Marlin's; every kernel has locks
of its own. Before the release that has Humming, Marlin ran these layers.
"""

from __future__ import annotations

from vllm_capacity.errors import InputError
from vllm_capacity.units import cdiv, round_up
from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantContext,
    QuantisationMethod,
    Stored,
    bias_of,
)
from vllm_capacity.weights.quantisation.fp8_linear import FP8, weight_only_channel_linear
from vllm_capacity.weights.quantisation.marlin import packed
from vllm_capacity.weights.sharding import LocalLinear

LOCKS, LOCKS_PER_SM = 1024, 8
PADDED_ROWS, PADDED_INPUTS = 256, 128
"""`pad_n_to_multiple`, `pad_k_to_multiple`."""


def prefers_humming(context: QuantContext) -> bool:
    """`prefers_humming`: compute capability 9.0 alone."""
    return context.device.sm == 90 and context.release.has("humming_before_marlin")


def locks(context: QuantContext) -> Stored:
    """`create_humming_locks`; no parameter."""
    count = LOCKS_PER_SM * context.device.num_sms if context.release.has("humming_before_marlin") else LOCKS
    return Stored("locks", (count,), "int32", buffer=True)


def humming_matrix(
    prefix: str,
    rows: int,
    inputs: int,
    bits: int,
    group: int,
    scale_dtype: str,
    logical: int,
    *,
    experts: tuple[int, ...] = (),
    zero_points: bool = False,
) -> tuple[Stored, ...]:
    """One matrix [rows, inputs], or one for each of `experts`: words, scales and zero points. Rows are padded to 256 and
    inputs to 128; zero points have four bits or eight. `group` -1: one scale a row.
    """
    wide, deep = round_up(rows, PADDED_ROWS), round_up(inputs, PADDED_INPUTS)
    groups = deep // group if group > 0 else 1
    tensors = (
        Stored(f"{prefix}weight", (*experts, *packed(deep, wide, bits)), "int32", logical),
        Stored(f"{prefix}weight_scale", (*experts, groups, wide), scale_dtype, scale=True),
    )
    if not zero_points:
        return tensors
    shape = (*experts, groups, wide * (4 if bits <= 4 else 8) // 32)
    return (*tensors, Stored(f"{prefix}zero_point", shape, "int32", scale=True))


def humming_bias(layer: LocalLinear, dtype: str) -> tuple[Stored, ...]:
    """The bias with its padding, and zeros of its size for products that leave it out (`zero_bias`)."""
    if not layer.bias:
        return ()
    wide = round_up(layer.rows, PADDED_ROWS)
    return Stored("bias", (wide,), dtype, layer.bias), Stored("zero_bias", (wide,), dtype, buffer=True)


def humming_fp8_linear(
    layer: LocalLinear,
    context: QuantContext,
    *,
    static: bool,
    per_channel: bool,
    block: tuple[int, int] | None = None,
) -> LayerTensors:
    """CompressedTensorsW8A16Fp8: one scale per output in the model's dtype, whatever was loaded; blocks keep theirs."""
    rows, inputs, kind = layer.rows, layer.inputs, layer.dtype or context.dtype
    loaded: tuple[int, ...] = (rows, 1) if per_channel else (len(layer.outputs),)
    wide, deep = round_up(rows, PADDED_ROWS), round_up(inputs, PADDED_INPUTS)
    kept = Stored("weight_scale", (1, wide), kind, scale=True)
    if block is not None:
        loaded = (cdiv(rows, block[0]), cdiv(inputs, block[1]))
        kept = Stored("weight_scale", (deep // block[1], wide // block[0]), "float32", scale=True)
        if not context.release.has("humming_fp8_weight_only"):
            raise InputError(
                f"{context.model}: block fp8 on sm{context.device.sm} is not modelled before vLLM 0.25.0"
            )
    if not context.release.has("humming_fp8_weight_only"):
        return weight_only_channel_linear(layer, context, loaded)
    built = (
        Stored("weight", (rows, inputs), FP8, rows * inputs),
        Stored("weight_scale", loaded, "float32", scale=True),
        *((Stored("input_scale", (len(layer.outputs),), "float32", scale=True),) if static else ()),
        *bias_of(layer, kind),
    )
    stored = (
        Stored("weight", packed(deep, wide, 8), "int32", rows * inputs),
        kept,
        *((Stored("input_scale", (len(layer.outputs),), "float32", scale=True),) if static else ()),
        *bias_of(layer, kind),
        locks(context),
    )
    return LayerTensors(stored, built, 2 * wide * deep)


def humming(context: QuantContext) -> QuantisationMethod:
    """`--quantization humming` or `quant_method: humming`: layouts of a library that vLLM calls."""
    raise InputError(
        f"{context.model}: quantisation method 'humming' (quant_method, --quantization) is not modelled:"
        " its library lays the weights out."
        " `vllm-capacity dry-run` asks an installed vLLM instead"
    )
