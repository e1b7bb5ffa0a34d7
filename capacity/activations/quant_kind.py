"""Which kind of quantised weights the checkpoint has, as far as activations care."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from vllm_capacity.context import RankContext


class QuantKind(StrEnum):
    """Weights (and whether activations are quantised too)."""

    NONE = "none"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    INT8 = "int8"
    WNA16 = "wna16"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"

    @property
    def quantises_activations(self) -> bool:
        """True where the linear kernels read 8-bit or smaller activations."""
        return self in (QuantKind.FP8, QuantKind.FP8_BLOCK, QuantKind.INT8, QuantKind.NVFP4)


def quant_kind(ctx: RankContext) -> QuantKind:
    """Kind of the linear and expert weights after vLLM's choice of method (`engine.quantization`)."""
    method = ctx.engine.quantization
    if method in (None, "none"):
        return QuantKind.NONE
    block: Mapping[str, Any] = ctx.config.quantization or {}
    if method == "fp8":
        return QuantKind.FP8_BLOCK if block.get("weight_block_size") else QuantKind.FP8
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return QuantKind.MXFP4
    if method in ("modelopt_fp4", "nvfp4"):
        return QuantKind.NVFP4
    if method in ("modelopt", "fbgemm_fp8", "ptpc_fp8"):
        return QuantKind.FP8
    if method in ("compressed-tensors", "modelopt_mixed"):
        return _compressed_tensors(block)
    if "int8" in str(method):
        return QuantKind.INT8
    return QuantKind.WNA16


def _compressed_tensors(block: Mapping[str, Any]) -> QuantKind:
    """From the first config group: bits and type of weights, whether input activations are quantised."""
    groups = block.get("config_groups")
    group: Mapping[str, Any] = (
        next(iter(groups.values()), {}) if isinstance(groups, Mapping) and groups else {}
    )
    weights = group.get("weights") or {}
    activations = group.get("input_activations")
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float" and bits == 4:
        return QuantKind.NVFP4
    if not activations:
        return QuantKind.WNA16
    if kind == "float":
        return QuantKind.FP8_BLOCK if weights.get("strategy") == "block" else QuantKind.FP8
    return QuantKind.INT8
