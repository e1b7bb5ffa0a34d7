"""ModelOpt checkpoints: FP8, NVFP4, MXFP8 and MIXED_PRECISION, in config.json or in hf_quant_config.json.

Sources (0.26.0): `ModelOptQuantConfigBase`, `ModelOptFp8Config`, `ModelOptNvFp4Config`, `ModelOptMxFp8Config` and
`ModelOptMixedPrecisionConfig` with their linear and MoE methods, layers/quantization/modelopt.py.
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
)
from vllm_capacity.weights.quantisation.compressed_tensors import head_as_linear
from vllm_capacity.weights.quantisation.fp8_experts import Fp8Experts, fp8_experts
from vllm_capacity.weights.quantisation.fp8_linear import (
    Activations,
    block_linear,
    per_channel_linear,
    per_tensor_linear,
)
from vllm_capacity.weights.quantisation.ignored import (
    WildcardList,
    all_alike,
    classes_of,
    plain_name,
    shards_of,
    strings,
)
from vllm_capacity.weights.quantisation.mx import mx_linear, mxfp8_experts
from vllm_capacity.weights.quantisation.nvfp4 import Origin, nvfp4_experts, nvfp4_linear
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear, LocalVocab

ALGORITHMS = (
    "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8", "MIXED_PRECISION",
)  # fmt: skip
_MINIMUM = {"FP8": 89, "FP8_PER_CHANNEL_PER_TOKEN": 89, "FP8_PB_WO": 89, "MXFP8": 80}
_VISION = ("vision_tower", "vision_model", "vit_large_projector")


class ModelOpt(QuantisationMethod):
    """One algorithm for every layer that is not excluded; heads are quantised too."""

    name = "modelopt"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        block = context.block or {}
        inner = block.get("quantization")
        settings: Mapping[str, Any] = inner if isinstance(inner, Mapping) else block
        self.settings = settings
        self.algorithm = _algorithm(settings, block)
        key = "exclude_modules" if settings is inner else "ignore"
        excluded = settings.get(key) or settings.get("exclude_modules") or block.get("ignored_layers")
        self.excluded = WildcardList(strings(excluded, key, context.model))
        minimum = _MINIMUM.get(self.algorithm, 75)
        if context.device.sm < minimum:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"The quantization method modelopt is not supported for the current GPU. Minimum capability: {minimum}."
                f" Current capability: {context.device.sm}.",
            )
        self.scheme = AlgorithmScheme(context, self.algorithm)

    def skips(self, prefix: str) -> bool:
        return self.at(prefix) is None

    def layer_class(self, index: int) -> Hashable:
        return self.excluded.layer_class(index)

    def at(self, prefix: str) -> Scheme | None:
        if self.excluded.skips(prefix) or any(part in prefix for part in _VISION):
            return None
        return self.scheme

    def vocab_at(self, prefix: str) -> Scheme | None:
        return self.at(prefix) if prefix.endswith("lm_head") else None

    def linear(self, layer: LocalLinear) -> LayerTensors:
        return self.scheme.linear(layer)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        return self.scheme.experts(layer)

    def loads_kv_scales(self, *, mla: bool) -> bool:
        """ModelOptKVCacheMethod for Attention and MLAAttention alike."""
        del mla
        return True

    @property
    def uses_quant_fp8(self) -> bool:
        return self.algorithm.startswith("FP8")


class ModelOptMixed(ModelOpt):
    """MIXED_PRECISION: an algorithm per layer in `quantized_layers`; what is not listed stays in 16 bits."""

    name = "modelopt_mixed"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        layers = self.settings.get("quantized_layers")
        if not isinstance(layers, Mapping) or not layers:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                "MIXED_PRECISION quant_algo requires a non-empty 'quantized_layers' mapping in the quantization config.",
            )
        self.layers: dict[str, str] = {}
        self.below: dict[str, str] = {}
        for name, info in layers.items():
            algorithm = str(info.get("quant_algo", "")).upper() if isinstance(info, Mapping) else ""
            plain = plain_name(name)
            self.layers[plain] = algorithm
            parent = plain
            while "." in parent:
                parent = parent.rpartition(".")[0]
                self.below.setdefault(parent, algorithm)
        self.schemes: dict[str, AlgorithmScheme] = {}
        self._by_layer = classes_of(f"{name}={algorithm}" for name, algorithm in self.layers.items())

    def layer_class(self, index: int) -> Hashable:
        return self.excluded.layer_class(index), self._by_layer.get(index, frozenset())

    def at(self, prefix: str) -> Scheme | None:
        if self.excluded.skips(prefix):
            return None
        algorithm = self._resolve(plain_name(prefix))
        if algorithm not in ("FP8", "NVFP4", "W4A16_NVFP4", "MXFP8"):
            return None
        found = self.schemes.get(algorithm)
        if found is None:
            found = self.schemes[algorithm] = AlgorithmScheme(self.context, algorithm)
        return found

    def _resolve(self, name: str) -> str | None:
        """`_resolve_quant_algo`: the layer itself, the shards of a fused one, the experts below it."""
        if name in self.layers:
            return self.layers[name]
        shards = tuple(shard for shard in shards_of(name) if shard in self.layers)
        if shards:
            return str(all_alike(name, shards, lambda shard: self.layers[shard]))
        if name in self.below:
            return self.below[name]
        return self.below.get(name.rpartition(".experts")[0]) if name.endswith(".experts") else None

    def loads_kv_scales(self, *, mla: bool) -> bool:
        """Only where the KV cache is quantised, and only for Attention layers."""
        scheme = self.settings.get("kv_cache_quant_algo") or (self.context.block or {}).get("kv_cache_scheme")
        return bool(scheme) and not mla

    @property
    def uses_quant_fp8(self) -> bool:
        return "FP8" in self.layers.values()


class AlgorithmScheme(Scheme):
    """One of ModelOpt's algorithms."""

    def __init__(self, context: QuantContext, algorithm: str) -> None:
        super().__init__(context)
        self.algorithm = algorithm

    def linear(self, layer: LocalLinear) -> LayerTensors:
        context, algorithm = self.context, self.algorithm
        if algorithm == "FP8":
            return per_tensor_linear(layer, context, Activations.STATIC)
        if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
            return per_channel_linear(layer, context)
        if algorithm == "FP8_PB_WO":
            for size, what in ((layer.rows, "out_features"), (layer.inputs, "in_features")):
                if size % 128:
                    raise RefusedError(
                        Reason.INVALID_LAYOUT,
                        f"ModelOpt FP8_PB_WO requires {what} divisible by 128, got {size}.",
                    )
            # the method never calls the kernel's own processing (modelopt.py:755-775), so scales stay as loaded
            tensors = block_linear(layer, context, (128, 128), name="weight_scale")
            return LayerTensors(tensors.as_built)
        if algorithm == "MXFP8":
            return mx_linear(layer, context, 8)
        return nvfp4_linear(layer, context, Origin.MODELOPT, weight_only=algorithm == "W4A16_NVFP4")

    def experts(self, layer: LocalExperts) -> LayerTensors:
        context, algorithm = self.context, self.algorithm
        if algorithm.startswith("FP8"):
            return fp8_experts(layer, Fp8Experts("tensor", Activations.STATIC), context)
        if algorithm == "MXFP8":
            return mxfp8_experts(layer, context)
        return nvfp4_experts(layer, context, Origin.MODELOPT, weight_only=algorithm == "W4A16_NVFP4")

    def vocab(self, layer: LocalVocab) -> LayerTensors:
        return self.linear(head_as_linear(layer))


def _algorithm(settings: Mapping[str, Any], block: Mapping[str, Any]) -> str:
    algorithm = settings.get("quant_algo")
    if not algorithm and str(block.get("quant_method")) == "mxfp8":
        algorithm = "MXFP8"
    if not algorithm:
        raise RefusedError(Reason.UNSUPPORTED_BY_RELEASE, "Missing 'quant_algo' in quantization config")
    name = str(algorithm).upper()
    if name not in ALGORITHMS:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"ModelOpt currently only supports: {list(ALGORITHMS)} quantizations in vLLM. Please check the"
            " `hf_quant_config.json` file for your model's quant configuration.",
        )
    return name


def modelopt(context: QuantContext) -> QuantisationMethod:
    """The config class by algorithm, as `override_quantization_method` picks it."""
    block = context.block
    if block is None:
        raise InputError(f"{context.model}: --quantization modelopt needs a ModelOpt checkpoint")
    inner = block.get("quantization")
    algorithm = _algorithm(inner if isinstance(inner, Mapping) else block, block)
    return ModelOptMixed(context) if algorithm == "MIXED_PRECISION" else ModelOpt(context)
