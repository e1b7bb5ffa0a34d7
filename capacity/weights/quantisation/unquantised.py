"""Weights in the model's dtype."""

from __future__ import annotations

from dataclasses import replace

from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantisationMethod,
    plain_experts,
    plain_linear,
)
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear


class Unquantised(QuantisationMethod):
    """UnquantizedLinearMethod and UnquantizedFusedMoEMethod.

    Experts stay as loaded on Hopper and before. TRT-LLM (sm10x) has every expert shuffled into a new tensor, FlashInfer's
    Cutlass (sm12x) has the halves of w13 exchanged (`convert_to_unquantized_kernel_format`, oracle/unquantized.py).
    """

    name = "unquantised"

    def linear(self, layer: LocalLinear) -> LayerTensors:
        return plain_linear(layer, self.context.dtype)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        plain = plain_experts(layer, self.context.dtype)
        family = self.context.device.sm // 10
        if layer.bias or not layer.gated or family not in (10, 12):
            return plain
        sizes = [tensor.n_bytes for tensor in plain.stored]
        return replace(plain, transient_bytes=sum(sizes) if family == 10 else sizes[0])
