"""Methods with few rules of their own: fbgemm_fp8, bitsandbytes, torchao, moe_wna16, and those vLLM no longer has.

Sources (0.26.0): `FBGEMMFp8LinearMethod`, quantization/fbgemm_fp8.py; `BitsAndBytesLinearMethod`, bitsandbytes.py, and
`BitsAndBytesModelLoader`, model_loader/bitsandbytes_loader.py; `TorchAOConfig`, torchao.py; `MoeWNA16Config`,
moe_wna16.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.units import cdiv
from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantContext,
    QuantisationMethod,
    Stored,
    bias_of,
    plain_experts,
)
from vllm_capacity.weights.quantisation.fp8_linear import per_channel_linear, runs_on_marlin
from vllm_capacity.weights.quantisation.ignored import ignore_list, plain_name, strings
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear


class FbgemmFp8(QuantisationMethod):
    """One scale per output and an upper bound for the inputs' scale; experts stay in 16 bits."""

    name = "fbgemm_fp8"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        names = (context.block or {}).get("modules_to_not_convert")
        self.ignored = ignore_list(strings(names, "modules_to_not_convert", context.model))

    def skips(self, prefix: str) -> bool:
        return self.ignored.skips(prefix)

    def layer_class(self, index: int) -> Hashable:
        return self.ignored.layer_class(index)

    def linear(self, layer: LocalLinear) -> LayerTensors:
        if runs_on_marlin(self.context):
            # FBGEMMFp8LinearMethod prepares the layer for Marlin and then calls the kernel, which does so again
            raise InputError(f"{self.context.model}: fbgemm_fp8 on GPUs without fp8 is not modelled")
        bound = Stored("input_scale_ub", (), "float32", scale=True)
        return per_channel_linear(layer, self.context, extra=(bound,))

    def experts(self, layer: LocalExperts) -> LayerTensors:
        return plain_experts(layer, self.context.dtype)

    @property
    def uses_quant_fp8(self) -> bool:
        return True


class BitsAndBytes(QuantisationMethod):
    """4 bits in one column of bytes with one fp32 `absmax` per 64 weights of each fused slice; 8 bits per row.

    Double quantisation is undone while loading (`_dequantize_dq`), so it saves nothing. A 16-bit checkpoint is
    quantised slice by slice on the GPU.
    """

    name = "bitsandbytes"
    BLOCK = 64

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        block = context.block or {}
        self.eight = block.get("load_in_8bit") is True
        if context.parallel.tp > 1 and context.block is not None and self.eight:
            raise InputError(
                f"{context.model}: 8-bit bitsandbytes checkpoints with --tensor-parallel-size above 1 are not modelled"
            )
        self.skipped = strings(block.get("llm_int8_skip_modules"), "llm_int8_skip_modules", context.model)

    def skips(self, prefix: str) -> bool:
        """`is_layer_skipped_bnb`: a component of the prefix, or its beginning."""
        name = plain_name(prefix)
        parts = name.split(".")
        beginnings = {".".join(parts[: i + 1]) for i in range(len(parts))}
        return any(plain_name(entry) in parts or plain_name(entry) in beginnings for entry in self.skipped)

    def layer_class(self, index: int) -> Hashable:
        return index if any("layers" in entry for entry in self.skipped) else None

    def linear(self, layer: LocalLinear) -> LayerTensors:
        rows, inputs = layer.rows, layer.inputs
        bias = bias_of(layer, layer.dtype or self.context.dtype)
        if self.eight:
            weight = Stored("weight", (rows, inputs), "int8", rows * inputs)
            scales = tuple(
                Stored(f"SCB_{i}", (n,), "float32", scale=True) for i, n in enumerate(layer.outputs)
            )
        else:
            if rows * inputs % 2:
                raise RefusedError(
                    Reason.INVALID_LAYOUT, "The input size is not aligned with the quantized weight shape."
                )
            weight = Stored("weight", (rows * inputs // 2, 1), "uint8", rows * inputs)
            scales = tuple(
                Stored(f"absmax_{i}", (cdiv(n * inputs, self.BLOCK),), "float32", scale=True)
                for i, n in enumerate(layer.outputs)
            )
        widest = max(layer.outputs) * inputs
        return LayerTensors(
            (weight, *scales, *bias), (weight, *bias), 3 * widest if self.context.block is None else widest
        )

    def experts(self, layer: LocalExperts) -> LayerTensors:
        raise InputError(f"{self.context.model}: bitsandbytes experts are not modelled")


class TorchAo(QuantisationMethod):
    """`quant_method: torchao` and `--quantization torchao`: torchao's own tensor classes hold the weight."""

    name = "torchao"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        block = context.block
        if block is None:
            raise InputError(
                f"{context.model}: --quantization torchao quantises with a torchao config that vLLM is given in"
                " --hf-overrides; that is not modelled. `vllm-capacity dry-run` asks an installed vLLM instead"
            )
        kind = block.get("quant_type")
        if kind is None:
            raise RefusedError(Reason.UNSUPPORTED_BY_RELEASE, "quant_type must be specified")
        if not isinstance(kind, Mapping):
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                "Expected only one key 'default' in quant_type dictionary"
                f" (this checkpoint's quant_type is {str(kind)!r:.40}, the form of torchao before 0.10)",
            )
        if set(kind) != {"default"} or not isinstance(kind["default"], Mapping):
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE, "Expected only one key 'default' in quant_type dictionary"
            )
        self.config = kind["default"]
        self.skipped = strings(block.get("modules_to_not_convert"), "modules_to_not_convert", context.model)
        self.scheme = str(self.config.get("_type", ""))
        data = self.config.get("_data")
        self.data: Mapping[str, object] = data if isinstance(data, Mapping) else {}

    def skips(self, prefix: str) -> bool:
        """`should_skip`: whole components of the prefix."""
        return any(f".{entry}." in f".{prefix}." for entry in self.skipped)

    def layer_class(self, index: int) -> Hashable:
        return index if any("layers" in entry for entry in self.skipped) else None

    def linear(self, layer: LocalLinear) -> LayerTensors:
        """int8 weight-only and fp8 per row: plain data and scales; other classes pack by hardware."""
        rows, inputs, kind = layer.rows, layer.inputs, layer.dtype or self.context.dtype
        bias = bias_of(layer, kind)
        if self.scheme == "Int8WeightOnlyConfig" and self.data.get("group_size") is None:
            data = Stored("weight", (rows, inputs), "int8", rows * inputs)
            scales = (
                Stored("weight.scale", (rows,), kind, scale=True),
                Stored("weight.zero_point", (rows,), "int64", scale=True),
            )
            return LayerTensors((data, *scales, *bias))
        if self.scheme in ("Float8WeightOnlyConfig",):
            data = Stored("weight", (rows, inputs), "float8_e4m3fn", rows * inputs)
            return LayerTensors((data, Stored("weight.scale", (rows, 1), "float32", scale=True), *bias))
        raise InputError(f"{self.context.model}: torchao's {self.scheme or 'config'} is not modelled")

    def experts(self, layer: LocalExperts) -> LayerTensors:
        return plain_experts(layer, self.context.dtype)


def moe_wna16(context: QuantContext) -> QuantisationMethod:
    """`--quantization moe_wna16`: GPTQ or AWQ linear layers, experts on vLLM's Triton kernel."""
    block = context.block or {}
    method = str(block.get("quant_method", "")).lower()
    if method == "gptq":
        # MoeWNA16Config makes a new AutoGPTQConfig per layer, which never hears which modules are quantised
        # (`maybe_update_config`), so it builds 16-bit linear layers that the checkpoint does not fit
        if not block.get("modules_in_block_to_quantize") and not context.release.has("gptq_exllama"):
            raise InputError(
                f"{context.model}: --quantization moe_wna16 with a GPTQ checkpoint that has no"
                " modules_in_block_to_quantize is not modelled; leave --quantization out"
            )
        from vllm_capacity.weights.quantisation.gptq import Gptq

        return Gptq(context, experts_on_triton=True)
    if method in ("awq", "awq_marlin"):
        from vllm_capacity.weights.quantisation.awq import Awq

        return Awq(context, experts_on_triton=True)
    raise RefusedError(Reason.UNSUPPORTED_BY_RELEASE, "moe_wna16 only support gptq and awq.")
