"""Quark checkpoints (`quant_method: quark`): fp8, int8 and NVFP4 schemes; MXFP4 only where nothing emulates it.

Sources (0.26.0): `QuarkConfig.get_quant_method`, `_get_scheme_from_config` and `_find_matched_config`,
quantization/quark/quark.py; quark/schemes/quark_w8a8_fp8.py and quark_w8a8_int8.py; quark/quark_moe.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantContext,
    QuantisationMethod,
    Scheme,
    Stored,
    bias_of,
)
from vllm_capacity.weights.quantisation.fp8_experts import Fp8Experts, fp8_experts
from vllm_capacity.weights.quantisation.fp8_linear import (
    Activations,
    per_channel_linear,
    per_tensor_linear,
)
from vllm_capacity.weights.quantisation.ignored import (
    PatternList,
    matches_wildcard,
    plain_name,
    shards_of,
    strings,
)
from vllm_capacity.weights.quantisation.int8 import int8_linear
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear


class Quark(QuantisationMethod):
    """QuarkConfig."""

    name = "quark"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        block, model = context.block or {}, context.model
        if not isinstance(block.get("export"), Mapping):
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                "The export key should be included in the configurations of Quark quantized model",
            )
        self.exclude = PatternList(strings(block.get("exclude"), "exclude", model), model)
        layers = block.get("layer_quant_config") or {}
        default = block.get("global_quant_config")
        if not isinstance(layers, Mapping) or not isinstance(default, Mapping):
            raise InputError(f"{model}: a Quark block needs 'layer_quant_config' and 'global_quant_config'")
        self.layers = {name: value for name, value in layers.items() if isinstance(value, Mapping)}
        self.default = default

    def layer_class(self, index: int) -> Hashable:
        return index if any("layers" in name for name in self.layers) else self.exclude.layer_class(index)

    def skips(self, prefix: str) -> bool:
        children = prefix + "."
        if prefix.endswith("experts") and any(
            entry == prefix or entry.startswith(children) for entry in self.exclude.exact
        ):
            return True
        return self.exclude.skips(prefix)

    def at(self, prefix: str) -> Scheme | None:
        return None if self.skips(prefix) else _QuarkScheme(self.context, self._config(plain_name(prefix)))

    def _config(self, name: str) -> Mapping[str, Any]:
        shards = shards_of(name) or (name,)
        found = [self._match(shard) for shard in shards]
        if any(config != found[0] for config in found):
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Found a different quantization configuration for {list(shards)} in {name}. vLLM requires all to use"
                " the same scheme.",
            )
        return found[0]

    def _match(self, name: str) -> Mapping[str, Any]:
        return next(
            (config for pattern, config in self.layers.items() if matches_wildcard(name, pattern)),
            self.default,
        )

    def linear(self, layer: LocalLinear) -> LayerTensors:
        return _QuarkScheme(self.context, self.default).linear(layer)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        return _QuarkScheme(self.context, self.default).experts(layer)

    def loads_kv_scales(self, *, mla: bool) -> bool:
        return not mla

    @property
    def uses_quant_fp8(self) -> bool:
        weight = self.default.get("weight")
        return isinstance(weight, Mapping) and weight.get("dtype") == "fp8_e4m3"


class _QuarkScheme(Scheme):
    def __init__(self, context: QuantContext, config: Mapping[str, Any]) -> None:
        super().__init__(context)
        weight, inputs = config.get("weight"), config.get("input_tensors")
        self.weight: Mapping[str, Any] = weight if isinstance(weight, Mapping) else {}
        self.inputs: Mapping[str, Any] = inputs if isinstance(inputs, Mapping) else {}

    @property
    def _is(self) -> tuple[object, object]:
        return self.weight.get("dtype"), self.inputs.get("dtype")

    def _unknown(self, what: str) -> InputError:
        return InputError(
            f"{self.context.model}: Quark {what} with weights {self.weight.get('dtype')!r}"
            f" {self.weight.get('qscheme')!r} and inputs {self.inputs.get('dtype')!r} are not modelled"
        )

    def linear(self, layer: LocalLinear) -> LayerTensors:
        static, channel = not self.inputs.get("is_dynamic"), self.weight.get("qscheme") == "per_channel"
        if self._is == ("fp8_e4m3", "fp8_e4m3") and self.context.device.sm >= 89:
            activations = Activations.STATIC if static else Activations.TOKEN
            if not channel:
                return per_tensor_linear(layer, self.context, activations)
            extra = (Stored("input_scale", (), "float32", scale=True),) if static else ()
            return per_channel_linear(layer, self.context, extra=extra)
        if self._is == ("int8", "int8"):
            symmetric = self.inputs.get("symmetric") is not False
            return int8_linear(layer, self.context, per_channel=channel, static=static, symmetric=symmetric)
        if self._is_mxfp4 and layer.inputs % 32 == 0:
            # QuarkOCP_MX emulates on NVIDIA GPUs: the tensors stay as loaded (quark_ocp_mx.py)
            rows, inputs = layer.rows, layer.inputs
            return LayerTensors((
                Stored("weight", (rows, inputs // 2), "uint8", rows * inputs),
                Stored("weight_scale", (rows, inputs // 32), "uint8", scale=True),
                *bias_of(layer, layer.dtype or self.context.dtype),
            ))  # fmt: skip
        raise self._unknown("linear layers")

    @property
    def _is_mxfp4(self) -> bool:
        w = self.weight
        return (w.get("dtype"), w.get("qscheme"), w.get("group_size"), w.get("scale_format")) == (
            "fp4", "per_group", 32, "e8m0",
        )  # fmt: skip

    def experts(self, layer: LocalExperts) -> LayerTensors:
        if self._is == ("fp8_e4m3", "fp8_e4m3"):
            static = not self.inputs.get("is_dynamic")
            granularity = "channel" if self.weight.get("qscheme") == "per_channel" else "tensor"
            activations = Activations.STATIC if static else Activations.TOKEN
            return fp8_experts(layer, Fp8Experts(granularity, activations, always_two=True), self.context)
        if self._is_mxfp4 and self.inputs.get("dtype") == "fp4" and self.inputs.get("is_dynamic"):
            # emulated on NVIDIA GPUs: no native kernel reads MXFP4 activations (QuarkOCP_MX_MoEMethod)
            count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
            return LayerTensors((
                Stored("w13_weight", (count, 2 * width, hidden // 2), "uint8", count * layer.slices * width * hidden),
                Stored("w2_weight", (count, hidden, width // 2), "uint8", count * hidden * width),
                Stored("w13_weight_scale", (count, 2 * width, hidden // 32), "uint8", scale=True),
                Stored("w2_weight_scale", (count, hidden, width // 32), "uint8", scale=True),
            ))  # fmt: skip
        raise self._unknown("experts")
