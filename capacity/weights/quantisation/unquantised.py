"""Weights in the model's dtype."""

from __future__ import annotations

from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantisationMethod,
    plain_experts,
    plain_linear,
)
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear


class Unquantised(QuantisationMethod):
    """UnquantizedLinearMethod and UnquantizedFusedMoEMethod: nothing is re-laid on Hopper
    (oracle/unquantized.py).
    """

    name = "unquantised"

    def linear(self, layer: LocalLinear) -> LayerTensors:
        return plain_linear(layer, self.context.dtype)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        return plain_experts(layer, self.context.dtype)
