"""AWQ checkpoints (`quant_method: awq`): 4-bit weights with zero points, packed in AWQ's own order.

Sources: `AutoAWQConfig`, `AutoAWQMarlinLinearMethod`, `AutoAWQMoEMethod`, quantization/auto_awq.py (0.24.0 to 0.33.0);
awq_marlin.py before. Where the checkpoint has no `modules_to_not_convert`, vLLM reads the list off the
safetensors dtypes; here every linear layer counts as quantised, as AutoAWQ writes them.
"""

from __future__ import annotations

from collections.abc import Hashable

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantContext,
    QuantisationMethod,
    Scheme,
)
from vllm_capacity.weights.quantisation.compressed_tensors import head_as_linear
from vllm_capacity.weights.quantisation.ignored import ignore_list, strings
from vllm_capacity.weights.quantisation.marlin import GROUP_SIZES
from vllm_capacity.weights.quantisation.wna16_experts import moe_wna16_experts, wna16_experts
from vllm_capacity.weights.quantisation.wna16_linear import WNA16, Layout, awq_triton_linear, wna16_linear
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear, LocalVocab


class Awq(QuantisationMethod):
    """AutoAWQConfig. `experts_on_triton`: `--quantization moe_wna16`."""

    name = "auto_awq"

    def __init__(self, context: QuantContext, *, experts_on_triton: bool = False) -> None:
        super().__init__(context)
        block, model = context.block or {}, context.model
        bits = integer(block, ("w_bit", "bits"), model)
        if bits != 4:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Unsupported num_bits = {bits}. Supported: 4. For 8-bit AWQ, use Marlin backend by setting"
                " backend='awq:marlin' or backend='marlin'.",
            )
        group = integer(block, ("q_group_size", "group_size"), model)
        zero = block.get("zero_point")
        if not isinstance(zero, bool):
            raise InputError(f"{model}: an AWQ checkpoint must say whether it has zero points ('zero_point')")
        self.scheme = WNA16(bits, group, Layout.AWQ, zero)
        self.lm_head = block.get("lm_head") is True
        self.experts_on_triton = experts_on_triton
        names = strings(block.get("modules_to_not_convert"), "modules_to_not_convert", model)
        self.ignored = ignore_list(names, True)

    def skips(self, prefix: str) -> bool:
        return self.ignored.skips(prefix)

    def layer_class(self, index: int) -> Hashable:
        return self.ignored.layer_class(index)

    def vocab_at(self, prefix: str) -> Scheme | None:
        head = self.lm_head and prefix.endswith("lm_head")
        return self if head and not self.skips(prefix) else None

    def vocab(self, layer: LocalVocab) -> LayerTensors:
        return self.linear(head_as_linear(layer))

    def linear(self, layer: LocalLinear) -> LayerTensors:
        scheme = self.scheme
        divides = (
            scheme.group in (-1,) or scheme.group >= layer.full_inputs or layer.inputs % scheme.group == 0
        )
        if not scheme.zero_points or scheme.group not in GROUP_SIZES or not divides:
            return awq_triton_linear(layer, scheme, self.context)
        return wna16_linear(layer, scheme, self.context)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        if self.experts_on_triton:
            return moe_wna16_experts(layer, self.scheme, self.context)
        return wna16_experts(layer, self.scheme, self.context)


def integer(block: object, keys: tuple[str, ...], model: str) -> int:
    """The first of the keys that is there, as an integer (QuantizationConfig.get_from_keys)."""
    if isinstance(block, dict):
        for key in keys:
            if key in block:
                value = block[key]
                if type(value) is int and -1 <= value <= 1 << 20 and value != 0:
                    return value
                raise InputError(
                    f"{model}: {key!r} in the quantisation block must be an integer, not {value!r:.40}"
                )
    raise InputError(f"{model}: Cannot find any of {list(keys)} in the model's quantization config.")
