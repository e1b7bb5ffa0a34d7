"""`quant_method: fp8` and `--quantization fp8`: per tensor, per block or quantised while loading.

Sources (0.26.0): `Fp8Config.get_quant_method`, `Fp8LinearMethod`, `Fp8MoEMethod`, layers/quantization/fp8.py;
`validate_fp8_block_shape`, utils/fp8_utils.py:1196-1310; online layers in quantization/online/fp8.py.
"""

from __future__ import annotations

from collections.abc import Hashable

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.weights.quantisation.base import LayerTensors, QuantContext, QuantisationMethod
from vllm_capacity.weights.quantisation.fp8_experts import Fp8Experts, fp8_experts
from vllm_capacity.weights.quantisation.fp8_linear import (
    Activations,
    block_linear,
    per_tensor_linear,
)
from vllm_capacity.weights.quantisation.ignored import ignore_list, strings
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear


class Fp8(QuantisationMethod):
    """Fp8Config. `block` None means that a 16-bit checkpoint is quantised while loading."""

    name = "fp8"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        block = context.block or {}
        self.online = context.block is None
        scheme = block.get("activation_scheme", "dynamic")
        if scheme not in ("static", "dynamic"):
            raise RefusedError(Reason.UNSUPPORTED_BY_RELEASE, f"Unsupported activation scheme {scheme}")
        self.static = scheme == "static"
        self.block_size = block_size(block.get("weight_block_size"), context.model)
        if self.block_size is not None and self.static:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                "The block-wise quantization only supports dynamic activation scheme for now, but got static"
                " activation scheme.",
            )
        names = strings(block.get("ignored_layers"), "ignored_layers", context.model)
        names = names or strings(block.get("modules_to_not_convert"), "modules_to_not_convert", context.model)
        self.ignored = ignore_list(names)

    def skips(self, prefix: str) -> bool:
        return self.ignored.skips(prefix)

    def layer_class(self, index: int) -> Hashable:
        return self.ignored.layer_class(index)

    @property
    def _activations(self) -> Activations:
        """Per token where the GPU's Cutlass takes it (`cutlass_fp8_supported`), else per tensor."""
        if self.static:
            return Activations.STATIC
        return Activations.TOKEN if self.context.device.sm >= 89 else Activations.TENSOR

    def linear(self, layer: LocalLinear) -> LayerTensors:
        if self.block_size is None:
            return per_tensor_linear(layer, self.context, self._activations, online=self.online)
        check_block(layer, self.block_size)
        return block_linear(layer, self.context, self.block_size)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        granularity = "tensor" if self.block_size is None else "block"
        activations = Activations.STATIC if self.static else Activations.TENSOR
        scheme = Fp8Experts(granularity, activations, self.block_size, always_two=True, online=self.online)
        return fp8_experts(layer, scheme, self.context)

    def loads_kv_scales(self, *, mla: bool) -> bool:
        """Fp8KVCacheMethod for Attention layers, not for MLA (fp8.py:222)."""
        return not mla

    @property
    def uses_quant_fp8(self) -> bool:
        return True


def block_size(value: object, model: str) -> tuple[int, int] | None:
    """`weight_block_size` or `block_structure`. Raises InputError where it is not two positive integers."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and len(value) == 2:
        first, second = value
        if type(first) is int and type(second) is int and 0 < first <= 1 << 20 and 0 < second <= 1 << 20:
            return first, second
    raise InputError(f"{model}: 'weight_block_size' must be two positive integers, not {value!r:.40}")


def check_block(layer: LocalLinear, block: tuple[int, int]) -> None:
    """`validate_fp8_block_shape`; fused layers may mismatch (`_maybe_allow_fp8_block_shape_mismatch`,
    linear.py).
    """
    block_n, block_k = block
    if layer.tp > 1 and layer.input_divided and layer.inputs % block_k:
        raise RefusedError(
            Reason.INVALID_LAYOUT,
            f"Weight input_size_per_partition = {layer.inputs} is not divisible by weight quantization"
            f" block_k = {block_k}. ({layer.name})",
        )
    divided = layer.tp > 1 and not layer.input_divided and layer.full_outputs // layer.rows == layer.tp
    if divided and len(layer.outputs) == 1 and layer.rows % block_n:
        raise RefusedError(
            Reason.INVALID_LAYOUT,
            f"Weight output_partition_size = {layer.rows} is not divisible by weight quantization"
            f" block_n = {block_n}. ({layer.name})",
        )
