"""`quant_method: compressed-tensors`: a scheme per group of targets, an ignore list, a KV cache scheme.

Sources (0.26.0): `CompressedTensorsConfig.get_quant_method`, `_get_scheme_from_parts` and `get_scheme_dict`,
quantization/compressed_tensors/compressed_tensors.py:136-1010; `find_matched_target`, compressed_tensors/utils.py;
`CompressedTensorsMoEMethod.get_moe_method`, compressed_tensors_moe/compressed_tensors_moe.py.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.weights.quantisation.base import (
    LayerTensors,
    QuantContext,
    QuantisationMethod,
    Scheme,
    Stored,
    bias_of,
    plain_linear,
)
from vllm_capacity.weights.quantisation.fp8 import block_size, check_block
from vllm_capacity.weights.quantisation.fp8_experts import Fp8Experts, fp8_experts
from vllm_capacity.weights.quantisation.fp8_linear import (
    Activations,
    block_linear,
    per_channel_linear,
    per_tensor_linear,
)
from vllm_capacity.weights.quantisation.humming import humming_fp8_linear
from vllm_capacity.weights.quantisation.ignored import (
    PatternList,
    compile_pattern,
    plain_name,
    shards_of,
    strings,
)
from vllm_capacity.weights.quantisation.int8 import int8_experts, int8_linear
from vllm_capacity.weights.quantisation.mx import mx_linear, mxfp8_experts
from vllm_capacity.weights.quantisation.mxfp4 import mxfp4_experts
from vllm_capacity.weights.quantisation.nvfp4 import Origin, nvfp4_experts, nvfp4_linear
from vllm_capacity.weights.quantisation.wna16_experts import wna16_experts
from vllm_capacity.weights.quantisation.wna16_linear import WNA16, Layout, wna16_linear
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear, LocalVocab

ACTIVATION_FORMATS = ("naive-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The part of compressed-tensors' QuantizationArgs that decides storage."""

    bits: int
    kind: str
    strategy: str
    group: int | None
    symmetric: bool
    dynamic: bool
    actorder: str | None
    block: tuple[int, int] | None
    scale_dtype: str

    @classmethod
    def read(cls, value: object, model: str) -> Arguments | None:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise InputError(f"{model}: quantisation arguments must be an object, not {value!r:.40}")
        bits = value.get("num_bits", 8)
        group = value.get("group_size")
        if type(bits) is not int or not 1 <= bits <= 16 or not (group is None or type(group) is int):
            raise InputError(f"{model}: num_bits {bits!r:.20} and group_size {group!r:.20} must be integers")
        block = block_size(value.get("block_structure"), model)
        actorder = value.get("actorder")
        strategy = value.get("strategy")
        if strategy is None:
            # QuantizationArgs.validate_model_after: groups when there is a size, else one scale per tensor
            strategy = "tensor" if group is None else "channel" if group == -1 else "group"
            if bits == 4 and value.get("type") == "float" and group == 16:
                strategy = "tensor_group"
        return cls(
            bits, str(value.get("type", "int")), str(strategy), group if group != -1 else None,
            value.get("symmetric", True) is not False, bool(value.get("dynamic", False)),
            None if actorder is None else str(actorder).lower(), block, str(value.get("scale_dtype") or ""),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """One config group: the targets' weights, input and output activations and format."""

    weights: Arguments
    inputs: Arguments | None
    outputs: Arguments | None
    format: str


class CompressedTensors(QuantisationMethod):
    """CompressedTensorsConfig."""

    name = "compressed-tensors"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        block, model = context.block or {}, context.model
        sparsity = block.get("sparsity_config") or {}
        if not isinstance(sparsity, Mapping):
            raise InputError(f"{model}: quantization_config: 'sparsity_config' must be an object")
        if sparsity.get("targets"):
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                "Sparsity support has been removed from compressed-tensors. Please use a model without sparsity"
                " configuration.",
            )
        if block.get("transform_config"):
            raise InputError(f"{model}: compressed-tensors with transforms is not modelled")
        self.ignore = PatternList(strings(block.get("ignore"), "ignore", model), model)
        self.targets = _targets(block, model)
        self.patterns = {
            target: compile_pattern(target[3:], model) for target in self.targets if target.startswith("re:")
        }
        self.names = {plain_name(target): target for target in self.targets if "." in target}
        self.by_layer = any(re.search(r"layers.*\d", target) for target in self.targets)
        self._schemes: dict[Group, _GroupScheme] = {}
        _check_cache_scheme(block.get("kv_cache_scheme"))

    def layer_class(self, index: int) -> Hashable:
        return index if self.by_layer else self.ignore.layer_class(index)

    def skips(self, prefix: str) -> bool:
        return self.at(prefix) is None

    def at(self, prefix: str) -> Scheme | None:
        if prefix.endswith(".experts"):
            found = {self._group(f"{prefix}.0.{name}", "RoutedExperts") for name in _EXPERT_PARTS}
            if len(found) > 1:
                raise RefusedError(
                    Reason.UNSUPPORTED_BY_RELEASE,
                    "All MoE projections need to have same quantization scheme but found multiple",
                )
            group = found.pop()
        else:
            group = self._group(prefix, "Linear")
        return None if group is None else self._scheme(group)

    def vocab_at(self, prefix: str) -> Scheme | None:
        """A head counts as a linear layer, an embedding as VocabParallelEmbedding: only explicit targets match."""
        head = prefix.endswith("lm_head")
        group = self._group(prefix, "ParallelLMHead" if head else "VocabParallelEmbedding")
        if group is None:
            return None
        return self._scheme(group) if head else _Embedding(self.context, group)

    def _scheme(self, group: Group) -> _GroupScheme:
        found = self._schemes.get(group)
        if found is None:
            found = self._schemes[group] = _GroupScheme(self.context, group)
        return found

    def _group(self, prefix: str, module: str) -> Group | None:
        """`get_scheme_dict` and `find_matched_target`: by name, by module class, by the shards of a fused layer."""
        if self.ignore.skips(prefix) or not self.targets:
            return None
        target = self._by_name(prefix)
        if target is None:
            target = next((t for t in self.targets if _names_class(t, module)), None)
        if target is None and module == "RoutedExperts" and "Linear" in self.targets:
            target = "Linear"
        if target is None:
            shards = [self._by_name(shard) for shard in shards_of(prefix)]
            target = shards[0] if shards and None not in shards else None
        return None if target is None else self.targets[target]

    def _by_name(self, name: str) -> str | None:
        found = self.names.get(plain_name(name))
        if found is not None:
            return found
        return next((target for target, pattern in self.patterns.items() if pattern.match(name)), None)

    def linear(self, layer: LocalLinear) -> LayerTensors:
        return plain_linear(layer, self.context.dtype)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        raise InputError(f"{self.context.model}: no compressed-tensors group matches {layer.name}")

    def loads_kv_scales(self, *, mla: bool) -> bool:
        """CompressedTensorsKVCacheMethod for Attention layers, not for MLA."""
        return not mla

    @property
    def uses_quant_fp8(self) -> bool:
        return any(
            g.inputs is not None and g.weights.kind == "float" and g.weights.bits == 8
            for g in self.targets.values()
        )


_EXPERT_PARTS = ("gate_proj", "up_proj", "down_proj")


def _names_class(target: str, module: str) -> bool:
    """`_is_equal_or_regex_match` with check_contains against vLLM's class names (QKVParallelLinear, ...)."""
    if target.startswith("re:"):
        return False
    names = _LINEAR_CLASSES if module == "Linear" else (module,)
    return any(target.lower() in name.lower() for name in names)


_LINEAR_CLASSES = ("QKVParallelLinear", "MergedColumnParallelLinear", "RowParallelLinear", "ReplicatedLinear")


def _targets(block: Mapping[str, Any], model: str) -> dict[str, Group]:
    """Targets -> their group, groups of Attention left out (they only say how the KV cache is quantised)."""
    groups = block.get("config_groups") or {}
    if not isinstance(groups, Mapping):
        raise InputError(f"{model}: 'config_groups' must be an object")
    found: dict[str, Group] = {}
    for value in groups.values():
        if not isinstance(value, Mapping):
            raise InputError(f"{model}: a group of 'config_groups' must be an object, not {value!r:.40}")
        targets = strings(value.get("targets"), "targets", model)
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue
        weights = Arguments.read(value.get("weights"), model)
        if weights is None:
            raise InputError(f"{model}: a group of 'config_groups' says nothing about its weights")
        own = value.get("format") or block.get("format") or ""
        group = Group(
            weights,
            Arguments.read(value.get("input_activations"), model),
            Arguments.read(value.get("output_activations"), model),
            str(own),
        )
        found.update(dict.fromkeys(targets, group))
    return found


def _check_cache_scheme(scheme: object) -> None:
    """`CompressedTensorsKVCacheMethod.validate_kv_cache_scheme`."""
    if not isinstance(scheme, Mapping):
        return
    if scheme.get("type") != "float" or scheme.get("num_bits") != 8:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            "Currently supported kv cache quantization is num_bits=8, type=float, however received"
            f" num_bits={scheme.get('num_bits')}, type={scheme.get('type')}",
        )
    if not scheme.get("symmetric"):
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            "Only support symmetric scaling factor for compressed-tensors KV cache. However found symmetric:"
            f" {scheme.get('symmetric')}",
        )


class _GroupScheme(Scheme):
    """`_get_scheme_from_parts` in its order, and the experts' method."""

    def __init__(self, context: QuantContext, group: Group) -> None:
        super().__init__(context)
        self.group = group

    # -- what the group is -----------------------------------------------------------------------------------
    @property
    def _is_nvfp4(self) -> bool:
        w = self.group.weights
        return (w.kind, w.bits, w.strategy, w.group, w.symmetric) == ("float", 4, "tensor_group", 16, True)

    @property
    def _is_mxfp4(self) -> bool:
        w = self.group.weights
        return (w.kind, w.bits, w.strategy, w.group, w.symmetric) == ("float", 4, "group", 32, True)

    @property
    def _is_mxfp8(self) -> bool:
        w = self.group.weights
        scales = w.scale_dtype.endswith("uint8")
        return (w.kind, w.bits, w.strategy, w.group, w.symmetric) == (
            "float",
            8,
            "group",
            32,
            True,
        ) and scales

    @property
    def _is_wna16(self) -> bool:
        w = self.group.weights
        static = self.group.inputs is None and not w.dynamic
        return static and w.kind == "int" and w.strategy in ("channel", "group")

    @property
    def _is_fp8(self) -> bool:
        w, inputs = self.group.weights, self.group.inputs
        plain = w.kind == "float" and w.bits == 8 and w.symmetric and not w.dynamic
        if (
            not plain
            or w.strategy not in ("tensor", "channel", "block")
            or inputs is None
            or inputs.kind != "float"
        ):
            return False
        return inputs.dynamic or (inputs.symmetric and inputs.strategy == "tensor")

    @property
    def _is_w4a8_fp8(self) -> bool:
        w, inputs = self.group.weights, self.group.inputs
        return (
            inputs is not None and (w.bits, w.strategy, w.symmetric) == (4, "group", True) and not w.dynamic
            and (inputs.bits, inputs.strategy, inputs.symmetric, inputs.dynamic) == (8, "token", True, True)
        )  # fmt: skip

    def _w4a8(self, layer: LocalLinear) -> LayerTensors:
        """CompressedTensorsW4A8Fp8 on CutlassW4A8LinearKernel: scales become fp8 beside one fp32 per output."""
        context, group = self.context, self.group.weights.group or 128
        rows, inputs = layer.rows, layer.inputs
        if inputs % group or group != 128 or inputs % 128 or rows % 128:
            raise self._unknown(f"linear layers [{rows}, {inputs}]")
        bias, kind = bias_of(layer, layer.dtype or context.dtype), layer.dtype or context.dtype
        weight = Stored("weight_packed", (rows, inputs // 8), "int32", rows * inputs)
        shape = Stored("weight_shape", (2,), "int64", scale=True)
        scale = Stored("weight_scale", (rows, inputs // group), kind, scale=True)
        stored = (
            weight, Stored("weight_scale", (inputs // group, rows), "float8_e4m3fn", scale=True), shape,
            Stored("weight_chan_scale", (rows, 1), "float32", scale=True), *bias,
        )  # fmt: skip
        return LayerTensors(stored, (weight, scale, shape, *bias), 3 * weight.n_bytes)

    @property
    def _is_int8(self) -> bool:
        w, inputs = self.group.weights, self.group.inputs
        if inputs is None or w.bits != 8 or inputs.bits != 8 or w.strategy not in ("tensor", "channel"):
            return False
        return w.symmetric and not w.dynamic and inputs.strategy == ("token" if inputs.dynamic else "tensor")

    def _wna16(self) -> WNA16:
        w = self.group.weights
        if w.actorder in ("group", "dynamic") and self.context.release.has("act_order_refused"):
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Compressed-tensors group/dynamic activation ordering (actorder={w.actorder!r}) is no longer supported. Use a"
                " checkpoint with static/weight activation ordering or without activation ordering.",
            )
        return WNA16(
            w.bits, -1 if w.group is None else w.group, Layout.COMPRESSED_TENSORS, not w.symmetric,
            w.actorder in ("group", "dynamic"),
        )  # fmt: skip

    def _unknown(self, what: str) -> InputError:
        w, inputs = self.group.weights, self.group.inputs
        acts = "16-bit" if inputs is None else f"{inputs.bits}-bit {inputs.kind} {inputs.strategy}"
        return InputError(
            f"{self.context.model}: compressed-tensors {what} with {w.bits}-bit {w.kind} {w.strategy} weights and {acts}"
            f" activations in format {self.group.format!r} are not modelled"
        )

    # -- layers ----------------------------------------------------------------------------------------------
    def linear(self, layer: LocalLinear) -> LayerTensors:
        context, w, inputs = self.context, self.group.weights, self.group.inputs
        if self._is_nvfp4:
            return nvfp4_linear(layer, context, Origin.COMPRESSED_TENSORS, weight_only=inputs is None)
        if self._is_mxfp4:
            return mx_linear(layer, context, 4)
        if self._is_mxfp8:
            return mx_linear(layer, context, 8)
        if self._is_w4a8_fp8 and context.device.sm == 90:
            return self._w4a8(layer)
        if self.group.outputs is not None:
            raise self._unknown("linear layers with quantised outputs")
        if self._is_wna16 and self.group.format == "pack-quantized":
            return wna16_linear(layer, self._wna16(), context)
        if self.group.format in ACTIVATION_FORMATS:
            if self._is_fp8 and context.device.sm >= 89:
                return self._fp8(layer)
            if w.kind == "float" and w.bits == 8:
                block = (w.block or (128, 128)) if w.strategy == "block" else None
                if block is not None:
                    check_block(layer, block)
                return humming_fp8_linear(
                    layer, context, static=inputs is not None and not inputs.dynamic,
                    per_channel=w.strategy == "channel", block=block,
                )  # fmt: skip
            if self._is_int8 and inputs is not None:
                return int8_linear(
                    layer, context, per_channel=w.strategy == "channel", static=not inputs.dynamic,
                    symmetric=inputs.symmetric,
                )  # fmt: skip
        raise self._unknown("linear layers")

    def _fp8(self, layer: LocalLinear) -> LayerTensors:
        w, inputs = self.group.weights, self.group.inputs
        static = inputs is not None and not inputs.dynamic
        if w.strategy == "block":
            block = w.block or (128, 128)
            check_block(layer, block)
            return block_linear(layer, self.context, block, name="weight_scale")
        activations = Activations.STATIC if static else Activations.TOKEN
        if w.strategy == "tensor":
            return per_tensor_linear(layer, self.context, activations)
        extra = (Stored("input_scale", (), "float32", scale=True),) if static else ()
        return per_channel_linear(layer, self.context, extra=extra)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        context, w, inputs = self.context, self.group.weights, self.group.inputs
        if self._is_mxfp4:
            return mxfp4_experts(layer, context)
        if self._is_mxfp8:
            return mxfp8_experts(layer, context)
        if self._is_wna16:
            if self.group.format != "pack-quantized":
                raise self._unknown("experts")
            return wna16_experts(layer, self._wna16(), context)
        if self._is_nvfp4:
            return nvfp4_experts(layer, context, Origin.COMPRESSED_TENSORS, weight_only=inputs is None)
        if self._is_fp8 and inputs is not None:
            activations = Activations.TOKEN if inputs.dynamic else Activations.STATIC
            return fp8_experts(layer, Fp8Experts(w.strategy, activations, w.block, cutlass=True), context)
        if self._is_int8 and inputs is not None:
            if w.strategy != "channel" or not inputs.dynamic:
                raise RefusedError(
                    Reason.UNSUPPORTED_BY_RELEASE,
                    "For INT8 Fused MoE layers, we require channelwise, dynamic per token quantization.",
                )
            return int8_experts(layer, context)
        raise self._unknown("experts")

    def padded_experts(self, layer: LocalExperts) -> tuple[int, int]:
        if self._is_mxfp4:
            from vllm_capacity.weights.quantisation.mxfp4 import padded_sizes

            return padded_sizes(layer, self.context)
        return layer.hidden_size, layer.intermediate_size

    def vocab(self, layer: LocalVocab) -> LayerTensors:
        return self.linear(head_as_linear(layer))


def head_as_linear(layer: LocalVocab) -> LocalLinear:
    """A head that a method treats as a linear layer: its rows are the outputs."""
    return LocalLinear(
        layer.name, layer.columns, (layer.rows,), layer.bias, layer.dtype, True, layer.columns,
        layer.rows * layer.tp, layer.tp,
    )  # fmt: skip


class _Embedding(Scheme):
    """CompressedTensorsEmbeddingWNA16Int: packed rows that are looked up and dequantised."""

    def __init__(self, context: QuantContext, group: Group) -> None:
        super().__init__(context)
        self.group = group

    def linear(self, layer: LocalLinear) -> LayerTensors:
        raise InputError(f"{self.context.model}: {layer.name} is not an embedding")

    def experts(self, layer: LocalExperts) -> LayerTensors:
        raise InputError(f"{self.context.model}: {layer.name} is not an embedding")

    def vocab(self, layer: LocalVocab) -> LayerTensors:
        w = self.group.weights
        if (
            w.kind != "int"
            or self.group.inputs is not None
            or w.strategy not in ("channel", "group")
            or 32 % w.bits
        ):
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                "compressed-tensors embeddings only support weight-only INT group/channel (WNA16) quantization",
            )
        groups = layer.columns // w.group if w.strategy == "group" and w.group else 1
        return LayerTensors((
            Stored("weight_packed", (layer.rows, layer.columns * w.bits // 32), "int32", layer.rows * layer.columns),
            Stored("weight_scale", (layer.rows, groups), self.context.dtype, scale=True),
            Stored("weight_shape", (2,), "int64", scale=True),
        ))  # fmt: skip
