"""AutoRound checkpoints (`quant_method: auto-round`, `inc` in vLLM): integer weights, settings per layer.

Sources (0.26.0): `INCConfig` and `INCConfigParser`, quantization/inc/; `INCWNA16LinearScheme`,
inc/schemes/inc_wna16_linear.py: GPTQ packing on Machete or Marlin, AWQ packing on AutoAWQ's Triton method.
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
from vllm_capacity.weights.quantisation.ignored import compile_pattern, plain_name, shards_of
from vllm_capacity.weights.quantisation.marlin import GROUP_SIZES
from vllm_capacity.weights.quantisation.wna16_experts import marlin_takes, moe_wna16_experts, wna16_experts
from vllm_capacity.weights.quantisation.wna16_linear import WNA16, Layout, awq_triton_linear, wna16_linear
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear

_SPECIAL = set(r"*+?^$()[]{}|\\")
FORMATS = ("auto_round:auto_gptq", "auto_round:auto_awq")


class Inc(QuantisationMethod):
    """INCConfig."""

    name = "inc"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        block, model = context.block or {}, context.model
        self.default = (
            integer(block, ("bits",), model),
            integer(block, ("group_size",), model),
            block.get("sym") is not False,
        )
        if self.default[0] not in (2, 3, 4, 8):
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Unsupported weight_bits: {self.default[0]}, currently only support {{2, 3, 4, 8}}.",
            )
        self.format = str(block.get("packing_format", FORMATS[0]))
        if self.format not in FORMATS:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Unsupported packing_format: {self.format}, currently only support {set(FORMATS)}.",
            )
        kind = block.get("data_type", "int")
        if kind != "int":
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Unsupported data_type: {kind}, currently only support  {{'int'}}.",
            )
        blocks = block.get("block_name_to_quantize", block.get("to_quant_block_names"))
        self.blocks = tuple(
            plain_name(part.strip()) for part in (blocks.split(",") if isinstance(blocks, str) else blocks or ())
            if isinstance(part, str)
        )  # fmt: skip
        extra = block.get("extra_config") or {}
        if not isinstance(extra, Mapping):
            raise InputError(f"{model}: 'extra_config' must be an object")
        self.exact: dict[str, Mapping[str, Any]] = {}
        self.patterns: list[tuple[re.Pattern[str], Mapping[str, Any]]] = []
        for name, settings in extra.items():
            if not isinstance(settings, Mapping):
                continue
            self.exact[plain_name(name)] = settings
            if set(name) & _SPECIAL:
                try:
                    self.patterns.append((compile_pattern(name, model), settings))
                except InputError:
                    continue  # vLLM passes over what is no expression
        self._schemes: dict[tuple[int, int, bool], _Settings] = {}

    def layer_class(self, index: int) -> Hashable:
        return index if self.exact else None

    def skips(self, prefix: str) -> bool:
        return self.at(prefix) is None

    def at(self, prefix: str) -> Scheme | None:
        settings = self._resolve(plain_name(prefix))
        if settings[0] >= 16:
            return None
        found = self._schemes.get(settings)
        if found is None:
            found = self._schemes[settings] = _Settings(self.context, settings, self.format)
        return found

    def _resolve(self, name: str) -> tuple[int, int, bool]:
        """`INCConfigParser._resolve_raw`: an exact entry, else the shards', else patterns, else the default."""
        if name in self.exact:
            return self._merged(self.exact[name], True)
        quantised = not self.blocks or any(name.startswith(part) for part in self.blocks)
        if name.endswith("experts"):
            inner = {self._merged(v, quantised) for key, v in self.exact.items() if key.startswith(name)}
            if inner:
                return self._one(inner, name)
        shards = shards_of(name)
        if shards and any(self._configured(shard) is not None for shard in shards):
            return self._one({self._setting(shard, quantised) for shard in shards}, name)
        return self._setting(name, quantised)

    def _one(self, found: set[tuple[int, int, bool]], name: str) -> tuple[int, int, bool]:
        if len(found) > 1:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Fused module '{name}' requires consistent quant config for its parts",
            )
        return next(iter(found))

    def _configured(self, name: str) -> Mapping[str, Any] | None:
        if name in self.exact:
            return self.exact[name]
        return next((settings for pattern, settings in self.patterns if pattern.search(name)), None)

    def _setting(self, name: str, quantised: bool) -> tuple[int, int, bool]:
        return self._merged(self._configured(name) or {}, quantised)

    def _merged(self, settings: Mapping[str, Any], quantised: bool) -> tuple[int, int, bool]:
        bits, group, symmetric = self.default if quantised else (16, -1, True)
        bits, group = settings.get("bits", bits), settings.get("group_size", group)
        if type(bits) is not int or type(group) is not int or not 1 <= bits <= 32 or group < -1 or group == 0:
            raise InputError(f"{self.context.model}: an entry of 'extra_config' is not made of integers")
        return bits, group, bool(settings.get("sym", symmetric))

    def linear(self, layer: LocalLinear) -> LayerTensors:
        return _Settings(self.context, self.default, self.format).linear(layer)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        return _Settings(self.context, self.default, self.format).experts(layer)


class _Settings(Scheme):
    def __init__(self, context: QuantContext, settings: tuple[int, int, bool], packing: str) -> None:
        super().__init__(context)
        self.bits, self.group, self.symmetric = settings
        self.awq = packing.endswith("awq")

    def linear(self, layer: LocalLinear) -> LayerTensors:
        if self.awq:
            scheme = WNA16(self.bits, self.group, Layout.AWQ, not self.symmetric)
            # without zero points uint4 is no type of Marlin's (`check_marlin_supported`)
            on_triton = self.symmetric or self.bits != 4 or self.group not in GROUP_SIZES
            return (awq_triton_linear if on_triton else wna16_linear)(layer, scheme, self.context)
        if self.bits not in (4, 8) or not self.symmetric:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"INC quantization with bits={self.bits}, sym={self.symmetric} is not supported. Only 4-bit and"
                " 8-bit symmetric quantization is supported with Marlin kernels.",
            )
        return wna16_linear(layer, WNA16(self.bits, self.group, Layout.GPTQ), self.context)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        layout = Layout.AWQ if self.awq else Layout.GPTQ
        scheme = WNA16(self.bits, self.group, layout, not self.symmetric)
        typed = self.symmetric != self.awq and (self.bits == 4 or (self.bits == 8 and not self.awq))
        if typed and marlin_takes(layer, scheme, self.context):
            return wna16_experts(layer, scheme, self.context)
        return moe_wna16_experts(layer, scheme, self.context)
