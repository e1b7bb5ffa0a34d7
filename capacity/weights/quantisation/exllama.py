"""GPTQ on ExLlama kernels, up to 0.21.0: 2 and 3 bits, and asymmetric checkpoints.

Source: `GPTQConfig` and `GPTQLinearMethod`, quantization/gptq.py (0.21.0): tensors keep the checkpoint's layout, the shuffle
after loading is in place.
"""

from __future__ import annotations

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.weights.quantisation.base import LayerTensors, QuantContext, Scheme, Stored, bias_of
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear

BITS = (2, 3, 4, 8)


class ExLlama(Scheme):
    """One set of bits, group (-1: one group) and order. Raises RefusedError for what GPTQConfig refuses."""

    def __init__(self, context: QuantContext, bits: int, group: int, act_order: bool) -> None:
        super().__init__(context)
        if bits not in BITS:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Currently, only 2/3/4/8-bit weight quantization is supported for GPTQ, but got {bits} bits.",
            )
        if context.dtype != "float16":
            # config/vllm.py: _get_quantization_config; get_supported_act_dtypes is [torch.half]
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"torch.{context.dtype} is not supported for quantization method gptq. Supported dtypes: [torch.float16] "
                "(--dtype float16)",
            )
        self.bits, self.group, self.act_order = bits, group, act_order

    def linear(self, layer: LocalLinear) -> LayerTensors:
        """`create_weights` and `process_weights_after_loading`: shapes in words of 32 bits, per rank."""
        rows, inputs, bits = layer.rows, layer.inputs, self.bits
        for what, size, multiple in (
            ("input", inputs, abs(self.group)),
            ("output", rows, 32 if 32 % bits else 32 // bits),
        ):
            if size % multiple:
                raise RefusedError(
                    Reason.INVALID_LAYOUT,
                    f"The {what} size is not aligned with the quantized weight shape. This can be caused by too large tensor "
                    f"parallel size. ({layer.name})",
                )
        divided = layer.input_divided and self.group != -1
        group = layer.full_inputs if self.group == -1 else self.group
        groups = (inputs if divided and not self.act_order else layer.full_inputs) // group
        kind = layer.dtype or self.context.dtype
        kept = (
            Stored("qweight", (inputs * bits // 32, rows), "int32", rows * inputs),
            Stored("qzeros", (groups, rows * bits // 32), "int32", scale=True),
            Stored("scales", (groups, rows), kind, scale=True),
            *bias_of(layer, kind),
        )
        order = Stored("g_idx", (inputs,), "int32", scale=True)
        # without act-order an empty tensor replaces g_idx; a divided input with act-order leaves the kernel unused
        stored = (*kept, order) if self.act_order else kept
        sorting = 8 * inputs if self.act_order and not divided else 0
        return LayerTensors(stored, (*kept, order), transient_bytes=sorting)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        raise InputError(
            f"{self.context.model}: GPTQ experts on ExLlama kernels ({layer.name}) are not modelled"
        )
