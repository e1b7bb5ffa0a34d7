"""gpt-oss checkpoints (`quant_method: mxfp4`): 4-bit experts, everything else in the model's dtype.

Hopper runs them with the Triton kernels, which keep swizzled copies outside the module's parameters. Sources
(0.26.0): `GptOssMxfp4MoEMethod`, layers/quantization/mxfp4.py:100-330;
`mxfp4_round_up_hidden_size_and_intermediate_size` and the Triton branch,
layers/fused_moe/oracle/mxfp4.py:635-680 and 1129-1170; `_swizzle_mxfp4`, utils/mxfp4_utils.py:36-107;
third_party/triton_kernels/tensor_details/layout_details/hopper_value.py and hopper_scale.py.
"""

from __future__ import annotations

from vllm_capacity.errors import InputError
from vllm_capacity.units import round_up
from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantContext,
    QuantisationMethod,
    Stored,
    plain_linear,
)
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear

BLOCK = 32
"""Elements per e8m0 scale."""
SWIZZLE_SCALE_ROWS = 2 * 8 * 2 * 8
"""HopperMXScaleLayout with 8 warps pads the rows of the scales."""
SWIZZLE_VALUE_ROWS, SWIZZLE_VALUE_BYTES = 16, 32
"""HopperMXValueLayout (mma version 3) pads rows and packed bytes of the values."""


class Mxfp4(QuantisationMethod):
    """GptOssMxfp4MoEMethod with the Triton backend."""

    name = "mxfp4"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        if context.moe_backend not in ("auto", "triton"):
            raise InputError(
                f"{context.model}: mxfp4 with moe_backend={context.moe_backend!r} is not modelled; auto is"
            )
        if not 90 <= context.device.sm < 100:
            raise InputError(
                f"{context.model}: mxfp4 on sm{context.device.sm} ({context.device.name}) is not modelled:"
                " vLLM uses other"
                " kernels with other padding there; Hopper (sm90) is"
            )

    def linear(self, layer: LocalLinear) -> LayerTensors:
        """All linear layers stay unquantised (mxfp4.py:73-100)."""
        return plain_linear(layer, self.context.dtype)

    def padded_experts(self, layer: LocalExperts) -> tuple[int, int]:
        return layer.hidden_size, round_up(layer.intermediate_size, 64)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        count = layer.num_experts
        hidden, width = self.padded_experts(layer)
        w13 = _Matrix(
            "w13",
            count,
            2 * width,
            hidden,
            count * layer.slices * layer.intermediate_size * layer.hidden_size,
        )
        w2 = _Matrix("w2", count, hidden, width, count * layer.hidden_size * layer.intermediate_size)
        built = [*w13.built(), *w2.built()]
        stored: list[Stored] = []
        if layer.bias:
            rows = layer.slices * layer.intermediate_size
            for name, padded, logical in (
                ("w13_bias", 2 * width, rows),
                ("w2_bias", hidden, layer.hidden_size),
            ):
                built.append(Stored(name, (count, padded), "bfloat16", count * logical))
                stored.append(Stored(name, (count, padded), "float32", count * logical))
        pad = 4 if self.context.release.has("mxfp4_scale_groups_padded") else 2
        swizzled = [*w13.swizzled(pad), *w2.swizzled(pad)]
        stored = swizzled + stored
        if not self.context.release.has("mxfp4_dead_scales_freed"):
            stored += [tensor for tensor in built if tensor.scale]
        # w13's swizzle holds a copy beside the original; w2's comes while the swizzled w13 is alive already
        transient = sum(tensor.n_bytes for tensor in swizzled)
        return LayerTensors(tuple(stored), tuple(built), transient)


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

    def swizzled(self, group_multiple: int) -> tuple[Stored, Stored]:
        values = (
            self.count,
            round_up(self.rows, SWIZZLE_VALUE_ROWS),
            round_up(self.columns // 2, SWIZZLE_VALUE_BYTES),
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
