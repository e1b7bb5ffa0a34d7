"""Humming kernels, which vLLM prefers for 8-bit weights with 16-bit activations, and `--quantization humming`.

Source (0.26.0): `_POSSIBLE_WFP8A16_KERNELS`, kernels/linear/__init__.py; `HummingFP8ScaledMMLinearKernel`,
kernels/linear/scaled_mm/humming.py; `prepare_humming_layer`, quantization/utils/humming_utils.py. The words are
Marlin's, with 1,024 locks a layer. Before the release that has Humming, Marlin ran these layers.
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

LOCKS = 1024
PADDED_ROWS, PADDED_INPUTS = 256, 128
"""`pad_n_to_multiple`, `pad_k_to_multiple`."""


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
        Stored("locks", (LOCKS,), "int32", buffer=True),
    )
    return LayerTensors(stored, built, 2 * wide * deep)


def humming(context: QuantContext) -> QuantisationMethod:
    """`--quantization humming` or `quant_method: humming`: layouts of a library that vLLM calls."""
    raise InputError(
        f"{context.model}: quantisation method 'humming' (quant_method, --quantization) is not modelled:"
        " its library lays the weights out."
        " `vllm-capacity dry-run` asks an installed vLLM instead"
    )
