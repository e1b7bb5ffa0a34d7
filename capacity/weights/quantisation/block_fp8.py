"""Block-wise fp8 checkpoints (`quant_method: fp8` with `weight_block_size`): DeepSeek-V3, Qwen3-FP8, MiMo-V2.

Sources (0.26.0, the same in 0.33.0): `Fp8LinearMethod` and `Fp8MoEMethod`, layers/quantization/fp8.py:250-420
and 481-720; `create_fp8_scale_parameter`, `validate_fp8_block_shape`, utils/fp8_utils.py:1196-1310. On Hopper
DeepGEMM leaves weight and scales as they are, and Triton or FlashInfer-CUTLASS experts keep the size.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.units import cdiv
from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantContext,
    QuantisationMethod,
    Stored,
    bias_of,
)
from vllm_capacity.weights.quantisation.ignored import ignore_list
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear

FP8 = "float8_e4m3fn"


class BlockFp8(QuantisationMethod):
    """fp8 weights with one fp32 scale per block."""

    name = "fp8"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        block = context.block or {}
        size = block.get("weight_block_size")
        if (
            not isinstance(size, (list, tuple))
            or len(size) != 2
            or not all(type(n) is int and n > 0 for n in size)
        ):
            raise InputError(
                f"{context.model}: 'weight_block_size' must be two positive integers, not {size!r:.40}"
            )
        if block.get("activation_scheme", "dynamic") != "dynamic":
            raise InputError(
                f"{context.model}: The block-wise quantization only supports dynamic activation scheme for"
                " now, but got"
                f" {block.get('activation_scheme')} activation scheme."
            )
        if not 90 <= context.device.sm < 100:
            raise InputError(
                f"{context.model}: block-wise fp8 on sm{context.device.sm} ({context.device.name}) is not"
                " modelled: the"
                " kernels there re-lay weights or scales; Hopper (sm90) is"
            )
        self.block_n, self.block_k = size
        self.ignored = ignore_list(_ignored(block))

    def skips(self, prefix: str) -> bool:
        return self.ignored.skips(prefix)

    def layer_class(self, index: int) -> Hashable:
        return self.ignored.layer_class(index)

    def linear(self, layer: LocalLinear) -> LayerTensors:
        self._check(layer)
        rows, inputs = layer.rows, layer.inputs
        scale = (cdiv(rows, self.block_n), cdiv(inputs, self.block_k))
        return LayerTensors((
            Stored("weight", (rows, inputs), FP8, rows * inputs),
            Stored("weight_scale_inv", scale, "float32", scale=True),
            *bias_of(layer, layer.dtype or self.context.dtype),
        ))  # fmt: skip

    def experts(self, layer: LocalExperts) -> LayerTensors:
        count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
        n, k = self.block_n, self.block_k
        if width % n:
            raise RefusedError(
                Reason.INVALID_LAYOUT,
                f"The output_size of gate's and up's weight = {width} is not divisible by weight quantization"
                f" block_n = {n}.",
            )
        if self.context.parallel.tp > 1 and width % k:
            raise RefusedError(
                Reason.INVALID_LAYOUT,
                f"The input_size of down's weight = {width} is not divisible by weight quantization block_k"
                f" = {k}.",
            )
        w13, w2 = (count, 2 * width, hidden), (count, hidden, width)
        stored = (
            Stored("w13_weight", w13, FP8, count * layer.slices * width * hidden),
            Stored("w2_weight", w2, FP8, count * hidden * width),
            *_expert_bias(layer, self.context.dtype),
            Stored(
                "w13_weight_scale_inv", (count, 2 * cdiv(width, n), cdiv(hidden, k)), "float32", scale=True
            ),
            Stored("w2_weight_scale_inv", (count, cdiv(hidden, n), cdiv(width, k)), "float32", scale=True),
        )
        # with expert parallelism FlashInfer-CUTLASS swaps the halves of w13: a second copy for a moment
        transient = stored[0].n_bytes if layer.expert_parallel else 0
        return LayerTensors(stored, transient_bytes=transient)

    def loads_kv_scales(self, *, mla: bool) -> bool:
        """Fp8KVCacheMethod for Attention layers, not for MLA (fp8.py:222)."""
        return not mla

    @property
    def uses_quant_fp8(self) -> bool:
        return True

    def _check(self, layer: LocalLinear) -> None:
        """`validate_fp8_block_shape`; fused layers may mismatch (`_maybe_allow_fp8_block_shape_mismatch`,
        linear.py).
        """
        if layer.tp > 1 and layer.input_divided and layer.inputs % self.block_k:
            raise RefusedError(
                Reason.INVALID_LAYOUT,
                f"Weight input_size_per_partition = {layer.inputs} is not divisible by weight quantization"
                f" block_k = {self.block_k}. ({layer.name})",
            )
        divided = layer.tp > 1 and not layer.input_divided and layer.full_outputs // layer.rows == layer.tp
        if divided and len(layer.outputs) == 1 and layer.rows % self.block_n:
            raise RefusedError(
                Reason.INVALID_LAYOUT,
                f"Weight output_partition_size = {layer.rows} is not divisible by weight quantization"
                f" block_n = {self.block_n}. ({layer.name})",
            )


def _ignored(block: Mapping[str, Any]) -> tuple[str, ...]:
    names = block.get("ignored_layers") or block.get("modules_to_not_convert") or ()
    return tuple(str(name) for name in names)


def _expert_bias(layer: LocalExperts, dtype: str) -> tuple[Stored, ...]:
    if not layer.bias:
        return ()
    count, width = layer.num_experts, layer.slices * layer.intermediate_size
    return (
        Stored("w13_bias", (count, width), dtype, count * width),
        Stored("w2_bias", (count, layer.hidden_size), dtype, count * layer.hidden_size),
    )
