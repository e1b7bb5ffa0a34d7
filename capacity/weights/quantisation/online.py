"""16-bit checkpoints quantised while loading: `--quantization fp8_per_tensor`, mxfp8, experts_int8 and so on.

Sources (0.26.0): `_ONLINE_SHORTHANDS`, config/quantization.py; `OnlineQuantizationConfig`, quantization/online/base.py;
online/fp8.py, mxfp8.py, int8.py, nvfp4.py; `ExpertsInt8Config`, experts_int8.py. Layers are built on the meta device
and appear one at a time (model_loader/reload/layerwise.py).
"""

from __future__ import annotations

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.units import round_up
from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantContext,
    QuantisationMethod,
    plain_experts,
    plain_linear,
)
from vllm_capacity.weights.quantisation.fp8_experts import Fp8Experts, fp8_experts
from vllm_capacity.weights.quantisation.fp8_linear import (
    Activations,
    block_linear,
    per_channel_linear,
    per_tensor_linear,
    runs_on_marlin,
)
from vllm_capacity.weights.quantisation.int8 import int8_online_experts
from vllm_capacity.weights.quantisation.mx import mx_linear, mxfp8_experts
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear

BLOCK = (128, 128)


class Online(QuantisationMethod):
    """One shorthand for linear layers and experts. `kind` is the shorthand's name."""

    def __init__(self, context: QuantContext, kind: str) -> None:
        super().__init__(context)
        if context.block is not None:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                "Quantization method specified in the model config"
                f" ({context.block.get('quant_method')}) does not match the quantization method specified in the"
                f" `quantization` argument ({kind}).",
            )
        self.name = self.kind = kind
        if kind == "nvfp4_per_token" and context.device.sm // 10 != 10:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                "nvfp4_per_token online quantization requires a Blackwell (SM100) GPU.",
            )

    def linear(self, layer: LocalLinear) -> LayerTensors:
        context = self.context
        if self.kind == "fp8_per_tensor":
            token = Activations.TOKEN if context.device.sm >= 89 else Activations.TENSOR
            return per_tensor_linear(layer, context, token, online=True)
        if self.kind == "fp8_per_block":
            return block_linear(layer, context, BLOCK, online=True)
        if self.kind == "fp8_per_channel":
            if runs_on_marlin(context):
                raise RefusedError(
                    Reason.UNSUPPORTED_BY_RELEASE,
                    "FP8 PTPC online quant requires a kernel that honors per-token activation quantization; MarlinFP8"
                    " is W8A16 weight-only. Requires SM89+ for Cutlass FP8 or ROCm MI3xx for rowwise scaled_mm.",
                )
            return per_channel_linear(layer, context, online=True)
        if self.kind == "mxfp8":
            return mx_linear(layer, context, 8, online=True)
        return plain_linear(layer, context.dtype)

    def padded_experts(self, layer: LocalExperts) -> tuple[int, int]:
        if self.kind != "fp8_per_block":
            return layer.hidden_size, layer.intermediate_size
        return round_up(layer.hidden_size, BLOCK[1]), round_up(layer.intermediate_size, BLOCK[0])

    def experts(self, layer: LocalExperts) -> LayerTensors:
        context = self.context
        if self.kind == "fp8_per_tensor":
            return fp8_experts(
                layer, Fp8Experts("tensor", Activations.TENSOR, always_two=True, online=True), context
            )
        if self.kind == "fp8_per_channel":
            return fp8_experts(
                layer, Fp8Experts("channel", Activations.TOKEN, always_two=True, online=True), context
            )
        if self.kind == "fp8_per_block":
            return self._block_experts(layer)
        if self.kind == "mxfp8":
            return mxfp8_experts(layer, context, online=True)
        if self.kind in ("experts_int8", "int8_per_channel_weight_only"):
            return int8_online_experts(layer, context)
        if self.kind == "nvfp4_per_token":
            raise InputError(
                f"{context.model}: --quantization: experts quantised to NVFP4 while loading are not modelled"
            )
        return plain_experts(layer, context.dtype)

    def _block_experts(self, layer: LocalExperts) -> LayerTensors:
        """`Fp8PerBlockOnlineMoEMethod.maybe_roundup_sizes`: both sizes become multiples of the block."""
        hidden, width = self.padded_experts(layer)
        padded = LocalExperts(
            layer.name, layer.num_experts, layer.total_experts, hidden, width, layer.gated, layer.bias, layer.dtype,
            layer.quantised, layer.expert_tp, layer.expert_parallel,
        )  # fmt: skip
        scheme = Fp8Experts("block", Activations.TOKEN, BLOCK, always_two=True, online=True)
        return fp8_experts(padded, scheme, self.context)

    @property
    def uses_quant_fp8(self) -> bool:
        return self.kind.startswith("fp8")


def per_tensor(context: QuantContext) -> QuantisationMethod:
    return Online(context, "fp8_per_tensor")


def per_block(context: QuantContext) -> QuantisationMethod:
    return Online(context, "fp8_per_block")


def per_channel(context: QuantContext) -> QuantisationMethod:
    return Online(context, "fp8_per_channel")


def mxfp8(context: QuantContext) -> QuantisationMethod:
    """A checkpoint that says mxfp8 has ModelOpt's format; otherwise the shorthand."""
    if context.block is not None:
        from vllm_capacity.weights.quantisation.modelopt import modelopt

        return modelopt(context)
    return Online(context, "mxfp8")


def experts_int8(context: QuantContext) -> QuantisationMethod:
    return Online(context, "experts_int8")


def int8_weight_only(context: QuantContext) -> QuantisationMethod:
    return Online(context, "int8_per_channel_weight_only")


def nvfp4_per_token(context: QuantContext) -> QuantisationMethod:
    return Online(context, "nvfp4_per_token")
