"""Which kind of quantised weights the checkpoint has, as far as activations care."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any

from vllm_capacity.context import RankContext
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig


class QuantKind(StrEnum):
    """Weights (and whether activations are quantised too)."""

    NONE = "none"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    INT8 = "int8"
    WNA16 = "wna16"
    MXFP4 = "mxfp4"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


_KINDS: Mapping[str, QuantKind] = {
    "mxfp4": QuantKind.MXFP4,
    "gpt_oss_mxfp4": QuantKind.MXFP4,
    "deepseek_v4_fp8": QuantKind.FP8_BLOCK,
    "fp8_per_block": QuantKind.FP8_BLOCK,
    "fp8_per_tensor": QuantKind.FP8,
    "fp8_per_channel": QuantKind.FP8,
    "fbgemm_fp8": QuantKind.FP8,
    "mxfp8": QuantKind.MXFP8,
    "modelopt_mxfp8": QuantKind.MXFP8,
    "modelopt_fp4": QuantKind.NVFP4,
    "nvfp4": QuantKind.NVFP4,
    "nvfp4_per_token": QuantKind.NVFP4,
    "int8_per_channel_weight_only": QuantKind.WNA16,
    "experts_int8": QuantKind.WNA16,
    "bitsandbytes": QuantKind.WNA16,
}
"""Methods whose name says it all."""


def quantises_activations(ctx: RankContext) -> bool:
    """True where the linear kernels read 8-bit or smaller activations. GPUs before Blackwell run NVFP4 and MXFP8 on Marlin or
    Humming, with 16-bit ones (`_POSSIBLE_NVFP4_KERNELS` and `_POSSIBLE_MXFP8_KERNELS`, kernels/linear/__init__.py);
    compressed-tensors' MXFP4 layers have 8-bit ones on Humming (`check_and_fallback_input_schema`, humming/schema.py).
    """
    kind = quant_kind(ctx)
    if kind in (QuantKind.NVFP4, QuantKind.MXFP8):
        return ctx.device.sm >= 100
    if kind is QuantKind.MXFP4 and ctx.engine.quantization == "compressed-tensors":
        return ctx.device.sm == 90 and ctx.release.has("humming_before_marlin")
    return kind in (QuantKind.FP8, QuantKind.FP8_BLOCK, QuantKind.INT8)


def quant_kind(ctx: RankContext) -> QuantKind:
    """Kind of the linear and expert weights after vLLM's choice of method (`engine.quantization`)."""
    return _kind(ctx.engine.quantization, ctx.config)


def static_inputs(ctx: RankContext) -> bool:
    """True where 8-bit inputs have one scale, which the checkpoint holds: nothing is measured beside them."""
    block: Mapping[str, Any] = ctx.config.quantization or {}
    method = ctx.engine.quantization
    if method == "fp8":
        return block.get("activation_scheme") == "static"
    if method in ("modelopt", "modelopt_mixed"):
        inner: Any = block.get("quantization")
        inner = inner if isinstance(inner, Mapping) else block
        return "PER_CHANNEL" not in str(inner.get("quant_algo") or "").upper()
    if method == "compressed-tensors":
        inputs = _first_group(block).get("input_activations") or {}
        return inputs.get("strategy") == "tensor" and not inputs.get("dynamic")
    if method == "quark":
        group = block.get("global_quant_config")
        inputs = group.get("input_tensors") if isinstance(group, Mapping) else None
        return isinstance(inputs, Mapping) and not inputs.get("is_dynamic")
    return False


@lru_cache(maxsize=256)
def _kind(method: str | None, config: ModelConfig) -> QuantKind:
    if method in (None, "none"):
        return QuantKind.NONE
    block: Mapping[str, Any] = config.quantization or {}
    if method == "fp8":
        return QuantKind.FP8_BLOCK if block.get("weight_block_size") else QuantKind.FP8
    if method in ("modelopt", "modelopt_mixed"):
        return _modelopt(block)
    if method == "compressed-tensors":
        return _compressed_tensors(block)
    if method == "quark":
        return _quark(block)
    if method == "torchao":
        return QuantKind.FP8 if "Float8Dynamic" in str(block.get("quant_type")) else QuantKind.WNA16
    return _KINDS.get(str(method), QuantKind.WNA16)


def _modelopt(block: Mapping[str, Any]) -> QuantKind:
    """By `quant_algo`; a mixed checkpoint counts as its experts' algorithm, which has the largest buffers."""
    inner: Any = block.get("quantization")
    inner = inner if isinstance(inner, Mapping) else block
    algorithm = str(inner.get("quant_algo") or "").upper()
    if algorithm == "MIXED_PRECISION":
        layers = inner.get("quantized_layers")
        rows = layers if isinstance(layers, Mapping) else {}
        algorithms = {
            str(row.get("quant_algo")).upper(): "expert" in name
            for name, row in sorted(rows.items(), key=lambda item: "expert" in item[0])
            if isinstance(row, Mapping)
        }
        experts = [name for name, of_experts in algorithms.items() if of_experts]
        algorithm = next(iter(experts or algorithms), "")
    if "NVFP4" in algorithm:
        return QuantKind.WNA16 if algorithm.startswith("W4A16") else QuantKind.NVFP4
    if algorithm == "MXFP8":
        return QuantKind.MXFP8
    return QuantKind.FP8_BLOCK if algorithm == "FP8_PB_WO" else QuantKind.FP8


def _quark(block: Mapping[str, Any]) -> QuantKind:
    """From `global_quant_config`: the weights' dtype, and whether inputs are quantised."""
    found = block.get("global_quant_config")
    group: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    weight, inputs = group.get("weight"), group.get("input_tensors")
    if isinstance(weight, list):
        weight = weight[0] if weight else None
    dtype = str(weight.get("dtype")) if isinstance(weight, Mapping) else ""
    if not inputs:
        return QuantKind.WNA16
    if dtype.startswith("fp4"):
        return QuantKind.MXFP4
    return QuantKind.INT8 if dtype.startswith("int8") else QuantKind.FP8


def _compressed_tensors(block: Mapping[str, Any]) -> QuantKind:
    """From the first config group: bits and type of weights, whether input activations are quantised."""
    group = _first_group(block)
    weights = group.get("weights") or {}
    activations = group.get("input_activations")
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float" and bits == 4 and weights.get("group_size") == 32:
        return QuantKind.MXFP4
    if not activations:
        return QuantKind.WNA16
    if kind == "float" and bits == 4:
        return QuantKind.NVFP4
    if kind == "float" and weights.get("group_size") == 32:
        return QuantKind.MXFP8
    if kind == "float":
        return QuantKind.FP8_BLOCK if weights.get("strategy") == "block" else QuantKind.FP8
    return QuantKind.INT8


def _first_group(block: Mapping[str, Any]) -> Mapping[str, Any]:
    groups = block.get("config_groups")
    group: object = next(iter(groups.values()), {}) if isinstance(groups, Mapping) and groups else {}
    parts = ("weights", "input_activations")
    if not isinstance(group, Mapping) or not all(isinstance(group.get(p) or {}, Mapping) for p in parts):
        raise InputError(
            "quantization_config: every entry of 'config_groups', its 'weights' and 'input_activations' must be an object"
        )
    return group
