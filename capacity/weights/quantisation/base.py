"""What a quantisation method has to say: which tensors it stores for a layer, and what it needs while
loading.

Adding a method: one module with a subclass of `QuantisationMethod`, one row in `METHODS` of the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from math import prod
from typing import Any

from vllm_capacity.device import Device
from vllm_capacity.frozen import dataclass
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.releases.release import Release
from vllm_capacity.units import DTYPE_BYTES
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear, LocalVocab


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a layer on one rank. `name` is the parameter's own ('weight', 'w13_weight_scale_inv').

    `logical` are the model parameters that it stands for (0 for scales); `scale` sends it to the role
    `quantisation_scales`; `buffer` is True where vLLM keeps it outside the module's parameters; `scaled`: see `Tensor`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    logical: int = 0
    scale: bool = False
    buffer: bool = False
    scaled: bool = False

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """A layer's tensors: `stored` after loading, `built` as constructed (None: the same).

    `transient_bytes`: the most that `process_weights_after_loading` of this layer holds beyond what was there
    before it. `repacking`: what it allocates and frees, in order, where that was read off the source.
    """

    stored: tuple[Stored, ...]
    built: tuple[Stored, ...] | None = None
    transient_bytes: int = 0
    repacking: tuple[tuple[str, int], ...] = ()
    """(name, bytes) of a tensor that is allocated, (name, 0) of one that is freed; built ones are there at first."""
    late: bool = False
    """An attention layer's own processing, which comes when every other module of the model has been processed
    (model_loader/utils.py: process_weights_after_loading).
    """

    @property
    def as_built(self) -> tuple[Stored, ...]:
        return self.stored if self.built is None else self.built


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantContext:
    """What a method may depend on. `block` is the checkpoint's quantisation block (None: not quantised)."""

    dtype: str
    device: Device
    release: Release
    parallel: ParallelConfig
    block: Mapping[str, Any] | None = None
    model: str = ""
    model_type: str = ""
    environment: Mapping[str, str] | None = None
    moe_backend: str = "auto"
    text: Mapping[str, Any] | None = None
    """The text part of the config: a few methods depend on it (DeepSeek-V4's `expert_dtype`)."""
    is_multimodal: bool = False
    """The text model's modules carry the prefix `language_model.`."""
    linear_backend: str = "auto"
    lora: bool = False
    """`--enable-lora`: experts run on kernels that adapters can be added to."""
    allow_deprecated: bool = False
    """`--allow-deprecated-quantization`."""


class Scheme(ABC):
    """How one layer is stored: what a QuantisationMethod chooses for a prefix. Shapes are one rank's."""

    def __init__(self, context: QuantContext) -> None:
        self.context = context

    @abstractmethod
    def linear(self, layer: LocalLinear) -> LayerTensors:
        """A linear layer; `layer.bias` is stored too."""

    @abstractmethod
    def experts(self, layer: LocalExperts) -> LayerTensors:
        """The routed experts of one layer."""

    def vocab(self, layer: LocalVocab) -> LayerTensors:
        """Embedding or head; most methods leave them unquantised."""
        return plain_vocab(layer, self.context.dtype)

    def padded_experts(self, layer: LocalExperts) -> tuple[int, int]:
        """(hidden size, intermediate size per rank) after `maybe_roundup_sizes`."""
        return layer.hidden_size, layer.intermediate_size


class QuantisationMethod(Scheme):
    """One method for one checkpoint and device; methods raise RefusedError where vLLM does.

    Modules marked `quantised=False` never get here. `at` and `skips` are asked with the full prefix
    ('model.layers.3.mlp.gate_up_proj'), once per class of layers: `layer_class` is equal for layers that the
    method treats alike.
    """

    name: str = ""

    def skips(self, prefix: str) -> bool:
        """True where vLLM leaves this layer unquantised."""
        del prefix
        return False

    def at(self, prefix: str) -> Scheme | None:
        """The scheme of a linear layer or of experts ('...mlp.experts'); None: unquantised."""
        return None if self.skips(prefix) else self

    def vocab_at(self, prefix: str) -> Scheme | None:
        """The scheme of an embedding or head; most methods leave them unquantised."""
        del prefix
        return None

    def layer_class(self, index: int) -> Hashable:
        """What the ignore list says about layer `index` in particular; None where nothing."""
        del index
        return None

    def loads_kv_scales(self, *, mla: bool) -> bool:
        """True where the method gives attention layers scales to load (a BaseKVCacheMethod)."""
        del mla
        return False

    @property
    def uses_quant_fp8(self) -> bool:
        """True where its linear layers build a QuantFP8, which imports DeepGEMM."""
        return False


def plain_linear(layer: LocalLinear, dtype: str) -> LayerTensors:
    """UnquantizedLinearMethod: weight [outputs, inputs] and bias (layers/linear.py)."""
    kind = layer.dtype or dtype
    weight = Stored("weight", (layer.rows, layer.inputs), kind, layer.rows * layer.inputs)
    return LayerTensors((weight, *bias_of(layer, kind)))


def bias_of(layer: LocalLinear, dtype: str) -> tuple[Stored, ...]:
    """The bias in `params_dtype`, whatever the weight is stored as."""
    return (Stored("bias", (layer.bias,), dtype, layer.bias),) if layer.bias else ()


def plain_experts(layer: LocalExperts, dtype: str) -> LayerTensors:
    """UnquantizedFusedMoEMethod (layers/fused_moe/unquantized_fused_moe_method.py:73-125)."""
    kind = layer.dtype or dtype
    count, hidden, width = layer.num_experts, layer.hidden_size, layer.intermediate_size
    stored = [
        Stored(
            "w13_weight", (count, layer.slices * width, hidden), kind, count * layer.slices * width * hidden
        )
    ]
    if layer.bias:
        stored.append(Stored("w13_bias", (count, layer.slices * width), kind, count * layer.slices * width))
    stored.append(Stored("w2_weight", (count, hidden, width), kind, count * hidden * width))
    if layer.bias:
        stored.append(Stored("w2_bias", (count, hidden), kind, count * hidden))
    return LayerTensors(tuple(stored))


def plain_vocab(layer: LocalVocab, dtype: str) -> LayerTensors:
    """UnquantizedEmbeddingMethod: padded rows (layers/vocab_parallel_embedding.py)."""
    kind = layer.dtype or dtype
    stored = [Stored("weight", (layer.rows, layer.columns), kind, layer.rows * layer.columns)]
    if layer.bias:
        stored.append(Stored("bias", (layer.bias,), kind, layer.bias))
    return LayerTensors(tuple(stored))
