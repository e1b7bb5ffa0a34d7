"""GPTQ checkpoints (`quant_method: gptq`): act-order, `dynamic` rules per module, 4 and 8 bits.

Sources: `AutoGPTQConfig`, `AutoGPTQLinearMethod`, `AutoGPTQMoEMethod`, quantization/auto_gptq.py (0.22.0 to 0.33.0);
`get_dynamic_override` and `override_config`, utils/gptq_utils.py; `GPTQConfig`, gptq.py (ExLlama, to 0.21.0). vLLM
reads which modules are quantised off the safetensors dtypes; here every linear layer counts, as GPTQ writes them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.weights.quantisation.awq import integer
from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantContext,
    QuantisationMethod,
    Scheme,
)
from vllm_capacity.weights.quantisation.compressed_tensors import head_as_linear
from vllm_capacity.weights.quantisation.exllama import ExLlama
from vllm_capacity.weights.quantisation.ignored import classes_of, compile_pattern, strings
from vllm_capacity.weights.quantisation.wna16_experts import moe_wna16_experts, wna16_experts
from vllm_capacity.weights.quantisation.wna16_linear import WNA16, Layout, wna16_linear
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear, LocalVocab


class Gptq(QuantisationMethod):
    """AutoGPTQConfig. `experts_on_triton`: `--quantization moe_wna16`."""

    name = "auto_gptq"

    def __init__(self, context: QuantContext, *, experts_on_triton: bool = False) -> None:
        super().__init__(context)
        block, model = context.block or {}, context.model
        if block.get("checkpoint_format") == "marlin":
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                "GPTQ checkpoints in Marlin's own format (checkpoint_format: marlin) are not supported: vLLM"
                f" {context.release.version} has no gptq_marlin_24 or marlin method and finds no 'qweight' in GPTQ's layout",
            )
        self.bits = integer(block, ("bits",), model)
        self.group = integer(block, ("group_size",), model)
        self.act_order = _boolean(block, "desc_act", model) and self.group != -1
        self.symmetric = _boolean(block, "sym", model)
        self.lm_head = block.get("lm_head") is True
        self.experts_on_triton = experts_on_triton
        self.modules = _modules(block, model)
        self._listed = classes_of(self.modules)
        self.rules = _rules(block.get("dynamic"), model)
        self.by_layer = any(re.search(r"\d|\\d|\[", pattern.pattern) for _, pattern, _ in self.rules)
        self._schemes: dict[WNA16, _Rule] = {}
        self._scheme(self.bits, self.group, self.act_order, self.symmetric)

    def layer_class(self, index: int) -> Hashable:
        return index if self.by_layer else self._listed.get(index)

    def skips(self, prefix: str) -> bool:
        return self.at(prefix) is None

    def at(self, prefix: str) -> Scheme | None:
        """`get_linear_quant_method`: negative rules leave a module alone, positive ones change bits or group."""
        if self.modules and not prefix.endswith("experts") and not self._is_listed(prefix):
            return None
        for positive, pattern, override in self.rules:
            if not pattern.match(prefix):
                continue
            if not positive:
                return None
            bits = override.get("bits", self.bits)
            group = override.get("group_size", self.group)
            act_order = override.get("desc_act", self.act_order)
            return self._scheme(bits, group, bool(act_order), bool(override.get("sym", self.symmetric)))
        return self._scheme(self.bits, self.group, self.act_order, self.symmetric)

    def _is_listed(self, prefix: str) -> bool:
        """`is_layer_gptq_quantized`: the listed names are parts of the module's."""
        from vllm_capacity.weights.quantisation.ignored import all_alike, shards_of

        def listed(name: str) -> bool:
            return any(module in name for module in self.modules)

        shards = shards_of(prefix)
        return bool(all_alike(prefix, shards, listed)) if shards else listed(prefix)

    def vocab_at(self, prefix: str) -> Scheme | None:
        return self.at(prefix) if self.lm_head and prefix.endswith("lm_head") else None

    def _scheme(self, bits: int, group: int, act_order: bool, symmetric: bool) -> Scheme:
        if type(bits) is not int or type(group) is not int or group == 0 or group < -1:
            raise InputError(
                f"{self.context.model}: bits {bits!r:.20} and group_size {group!r:.20} must be integers"
            )
        if (bits, symmetric) not in ((4, True), (8, True)):
            if self.context.release.has("gptq_exllama"):
                return ExLlama(self.context, bits, group, act_order and group != -1)
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Unsupported quantization config: bits={bits}, sym={symmetric} (vLLM"
                f" {self.context.release.version}; the last release with ExLlama kernels for it was 0.21.0)",
            )
        if act_order and group != -1 and self.context.release.has("act_order_refused"):
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                "GPTQ group activation ordering (desc_act=True) is no longer supported. Use a checkpoint with static"
                " activation ordering or desc_act=False.",
            )
        key = WNA16(bits, group, Layout.GPTQ, False, act_order and group != -1)
        found = self._schemes.get(key)
        if found is None:
            found = self._schemes[key] = _Rule(self.context, key, self.experts_on_triton)
        return found

    def linear(self, layer: LocalLinear) -> LayerTensors:
        return self._scheme(self.bits, self.group, self.act_order, self.symmetric).linear(layer)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        return self._scheme(self.bits, self.group, self.act_order, self.symmetric).experts(layer)


class _Rule(Scheme):
    """GPTQ with one set of bits, group and order."""

    def __init__(self, context: QuantContext, scheme: WNA16, experts_on_triton: bool) -> None:
        super().__init__(context)
        self.scheme, self.experts_on_triton = scheme, experts_on_triton

    def linear(self, layer: LocalLinear) -> LayerTensors:
        return wna16_linear(layer, self.scheme, self.context)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        if self.experts_on_triton:
            return moe_wna16_experts(layer, self.scheme, self.context)
        return wna16_experts(layer, self.scheme, self.context)

    def vocab(self, layer: LocalVocab) -> LayerTensors:
        return self.linear(head_as_linear(layer))


def _boolean(block: Mapping[str, Any], key: str, model: str) -> bool:
    value = block.get(key)
    if not isinstance(value, bool):
        raise InputError(
            f"{model}: {key!r} in the quantisation block must be true or false, not {value!r:.40}"
        )
    return value


def _modules(block: Mapping[str, Any], model: str) -> tuple[str, ...]:
    value = block.get("modules_in_block_to_quantize")
    if isinstance(value, (list, tuple)) and value and all(isinstance(part, (list, tuple)) for part in value):
        value = [name for part in value for name in part]
    return strings(value, "modules_in_block_to_quantize", model)


def _rules(dynamic: object, model: str) -> tuple[tuple[bool, re.Pattern[str], Mapping[str, Any]], ...]:
    """(positive, pattern, overrides): '-:' leaves modules out, '+:' or nothing changes them."""
    if not dynamic:
        return ()
    if not isinstance(dynamic, Mapping):
        raise InputError(f"{model}: 'dynamic' in the quantisation block must be an object")
    found = []
    for text, override in dynamic.items():
        if override is not None and not isinstance(override, Mapping):
            raise InputError(f"{model}: the dynamic rule {text!r:.40} must be an object")
        pattern = compile_pattern(text.removeprefix("-:").removeprefix("+:"), model)
        found.append((not text.startswith("-:"), pattern, override or {}))
    return tuple(found)
