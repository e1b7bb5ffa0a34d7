"""Which of vLLM's modules a checkpoint's tensor is loaded into, from its name alone.

Checkpoints name what the Hugging Face class holds; vLLM fuses some of it (`stacked_params_mapping` and
`packed_modules_mapping` of the model classes, `make_expert_params_mapping` of FusedMoE, `hf_to_vllm_mapper` for
prefixes; model_executor/models, 0.26.0). The mapper is generic: the modules of an `Architecture` say which names there
are, the table of fused names which of them a tensor is a slice of, and a tail that only one module has decides the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from vllm_capacity.architecture.modules import Architecture, Experts, Module, Tensor, VocabEmbedding
from vllm_capacity.frozen import dataclass
from vllm_capacity.weights.groups import role_of

FUSED: Mapping[str, tuple[tuple[str, int], ...]] = {
    "q_proj": (("qkv_proj", 0), ("qkv", 0), ("Wqkv", 0)),
    "k_proj": (("qkv_proj", 1), ("qkv", 1), ("Wqkv", 1), ("kv_proj", 0)),
    "v_proj": (("qkv_proj", 2), ("qkv", 2), ("Wqkv", 2), ("kv_proj", 1)),
    "gate_proj": (("gate_up_proj", 0), ("w13", 0)),
    "up_proj": (("gate_up_proj", 1), ("w13", 1)),
    "w1": (("w13", 0), ("gate_up_proj", 0)),
    "w3": (("w13", 1), ("gate_up_proj", 1)),
    "q_a_proj": (("fused_qkv_a_proj", 0),),
    "kv_a_proj_with_mqa": (("fused_qkv_a_proj", 1),),
    "in_proj_qkv": (("in_proj_qkvz", 0),),
    "in_proj_z": (("in_proj_qkvz", 1),),
    "in_proj_b": (("in_proj_ba", 0),),
    "in_proj_a": (("in_proj_ba", 1),),
    "wk": (("wk_weights_proj", 0), ("qkv_proj", 1)),
    "weights_proj": (("wk_weights_proj", 1),),
    "wq": (("qkv_proj", 0),),
    "wv": (("qkv_proj", 2),),
    "query": (("qkv_proj", 0),),
    "key": (("qkv_proj", 1),),
    "value": (("qkv_proj", 2),),
}
"""Checkpoint name -> (vLLM's fused name, position of the slice), in the order in which they are tried."""

RENAMED: Mapping[str, tuple[str, ...]] = {
    "A_log": ("A",),
    "w2": ("down_proj",),
    "wg": ("gate",),
    "layer": ("gate",),
    "router": ("gate",),
    "wo": ("o_proj",),
    "attention_norm": ("input_layernorm",),
    "ffn_norm": ("post_attention_layernorm",),
    "att_proj": ("qkv_proj",),
    "attn_out": ("o_proj",),
    "ff_proj": ("gate_up_proj",),
    "ff_out": ("down_proj",),
    "attn_norm": ("input_layernorm",),
    "ff_norm": ("post_attention_layernorm",),
    "ln_f": ("norm",),
    "dense": ("o_proj",),
    "out_proj": ("o_proj",),
    "c_attn": ("qkv_proj",),
    "e_score_correction_bias": ("gate.e_score_correction_bias",),
    "expert_bias": ("gate.e_score_correction_bias",),
    "gate": ("router",),
}
"""Last parts that classes rename without fusing."""

EMBEDDINGS = frozenset(
    {"embed_tokens", "word_embeddings", "tok_embeddings", "wte", "embeddings", "embedding", "new_embedding"}
)
HEADS = frozenset({"lm_head", "output", "output_layer", "embed_out", "proj_out", "ff_out"})

STEMS: Mapping[str, str] = {
    "attention.output.dense": "attention.self.output.dense",
    "intermediate.dense": "mlp.intermediate.dense",
    "output.dense": "mlp.output.dense",
}
"""Whole paths inside a layer that the ends of names cannot tell apart (models/bert.py)."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)\.(.+)$")
_EXPERT = re.compile(r"(?:^|\.)(?:experts|switch_mlp|input_linear|output_linear)(?:\.|$)")
_TOWER = re.compile(
    r"(?:^|\.)(?:visual|vision\w*|mm_projector|multi_modal_projector|audio\w*|patch_merger|resampler|vpm|embed_vision|"
    r"embed_audio|image_newline|connector|aligner)(?:\.|$)"
)
_ENCODER = re.compile(r"(?:^|\.)encoder\.")
_PRETRAINING = re.compile(r"^cls\.|(?:^|\.)pooler\.")
_MTP = re.compile(r"(?:^|\.)(?:mtp\w*|nextn\w*)(?:\.|$)")
_DERIVED = re.compile(
    r"rotary_emb\.inv_freq$|rotary_pos_emb\.inv_freq$|\.(?:masked_bias|position_ids|attn\.bias|num_batches_tracked)$"
)
"""Buffers of the Hugging Face class that vLLM computes itself (models/utils.py: AutoWeightsLoader)."""

_STACKED = re.compile(r"_(blocks|packed|scales|bias|scale\w*|zero\w*|shape)$")

_BITSANDBYTES = re.compile(r"\.weight\.(?:nested_)?(?:absmax|quant_map|quant_state\..*)$")

PACKED = ("weight", "qweight", "weight_packed")
"""Names of a parameter that holds a module's matrix."""

_PARAMETERS = frozenset({
    *PACKED, "bias", "scales", "qzeros", "g_idx", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_shape",
    "weight_zero_point", "weight_g_idx", "weight_global_scale", "input_scale", "input_global_scale", "input_zero_point",
    "k_scale", "v_scale", "q_scale", "kv_scale", "SCB", "weight_format", "biases", "scale", "zero_point", "output_scale",
    "quant_state",
})  # fmt: skip


class Kind(StrEnum):
    """What becomes of a stored tensor."""

    LOADED = "loaded"
    DERIVED = "derived"
    """vLLM computes it itself."""
    MTP = "mtp"
    """Belongs to multi-token-prediction layers, which only a speculative configuration loads."""
    TOWER = "tower"
    """Part of an encoder of images or sound."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a tensor goes: `layer` is None outside the layers, `part` the slice of a fused module.

    `parameter` is the parameter's own name ('weight', 'qweight', 'bias', 'weight_scale').
    """

    kind: Kind
    module: str = ""
    layer: int | None = None
    part: int | None = None
    parameter: str = ""


class NameMap:
    """The names of one architecture. `target` is asked once per tensor and remembers what layers have in common."""

    def __init__(self, architecture: Architecture) -> None:
        self.num_layers = architecture.num_hidden_layers
        self.has_encoder = architecture.is_encoder_decoder
        self.group_of = {i: n for n, group in enumerate(architecture.layers) for i in group.indices}
        self.layers = tuple(_Names(group.modules) for group in architecture.layers)
        own = [p.module for p in architecture.outside if role_of(p.module.name) != "encoder"]
        self.outside = _Names(own)
        self.embedding = next(
            (m.name for m in own if isinstance(m, VocabEmbedding) and not m.name.startswith("lm_head")), ""
        )
        self.head = next((m.name for m in own if m.name.startswith("lm_head")), "")
        self._known: dict[tuple[int, str], Target] = {}

    def target(self, name: str) -> Target:
        """What vLLM does with the checkpoint's tensor `name`."""
        name = _BITSANDBYTES.sub(".quant_state", name)
        if _DERIVED.search(name):
            return Target(Kind.DERIVED)
        if _MTP.search(name):
            return Target(Kind.MTP)
        if _TOWER.search(name) or (self.has_encoder and _ENCODER.search(name)):
            return Target(Kind.TOWER)
        found = _LAYER.search(name)
        if found is None:
            return self._outside(name)
        index, rest = int(found[1]), found[2]
        if index >= self.num_layers:
            return Target(Kind.MTP)
        group = self.group_of.get(index)
        if group is None:
            return Target(Kind.UNKNOWN)
        known = self._known.get((group, rest))
        if known is None:
            known = self._known[group, rest] = self.layers[group].find(rest)
        if known.kind is not Kind.LOADED:
            return known
        return Target(known.kind, known.module, index, known.part, known.parameter)

    def _outside(self, name: str) -> Target:
        stem, parameter = _split(name)
        last = stem.rpartition(".")[2]
        if last in HEADS:
            return Target(Kind.LOADED, self.head or "lm_head", None, None, parameter)
        if last in EMBEDDINGS and self.embedding:
            return Target(Kind.LOADED, self.embedding, None, None, parameter)
        return Target(Kind.UNKNOWN) if _PRETRAINING.search(name) else self.outside.find(name)


class _Names:
    """The modules of one kind of layer (or those outside the layers) and how they are found."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.tensors: set[str] = set()
        self.buffers: set[str] = set()
        self.modules: set[str] = set()
        self.experts = ""
        for module in modules:
            if isinstance(module, Tensor):
                (self.buffers if module.buffer else self.tensors).add(module.name)
            else:
                self.modules.add(module.name)
                if isinstance(module, Experts):
                    self.experts = module.name

    def find(self, rest: str) -> Target:
        """The module of a name inside the layer."""
        if rest in self.tensors:
            return Target(Kind.LOADED, rest)
        if rest in self.buffers:
            return Target(Kind.DERIVED)
        if self.experts and _EXPERT.search(rest) and "shared" not in rest:
            return Target(Kind.LOADED, self.experts, None, _expert_part(rest), _expert_parameter(rest))
        stem, parameter = _split(rest)
        stem = stem if stem in self.modules else STEMS.get(stem, stem)
        if stem in self.modules:
            return Target(Kind.LOADED, stem, None, None, parameter)
        head, _, last = stem.rpartition(".")
        for fused, part in FUSED.get(last, ()):
            name = f"{head}.{fused}" if head else fused
            if name in self.modules:
                return Target(Kind.LOADED, name, None, part, parameter)
        return self._by_tail(rest, stem, parameter)

    def _by_tail(self, rest: str, stem: str, parameter: str) -> Target:
        """Classes rename a layer's parts (block_sparse_moe, mixer, attn): the end of the name decides if it is unique."""
        last = stem.rpartition(".")[2]
        tensor = self._unique(self.tensors, f"{last}.{parameter}" if parameter else last)
        if tensor:
            return Target(Kind.LOADED, tensor)
        attempts = [(last, None), *FUSED.get(last, ()), *((name, None) for name in RENAMED.get(last, ()))]
        for tail, part in attempts:
            module = self._unique(self.modules, tail)
            if module and ("shared" in module) == ("shared" in rest):
                return Target(Kind.LOADED, module, None, part, parameter)
            tensor = self._unique(self.tensors, f"{tail}.{parameter}" if parameter else tail)
            if tensor:
                return Target(Kind.LOADED, tensor)
        if parameter in ("k_scale", "v_scale", "q_scale", "kv_scale"):
            return Target(Kind.DERIVED)
        return Target(Kind.UNKNOWN)

    @staticmethod
    def _unique(names: Iterable[str], tail: str) -> str:
        found = [name for name in names if name == tail or name.endswith("." + tail)]
        return found[0] if len(found) == 1 else ""


def _split(name: str) -> tuple[str, str]:
    """('mlp.gate_proj', 'weight'); parameters that end a module's name without a dot keep it whole."""
    stem, _, last = name.rpartition(".")
    return (stem, last) if stem and last in _PARAMETERS else (name, "")


def _expert_parameter(rest: str) -> str:
    """Stacked experts end in the parameter's name after an underscore (gate_up_proj_blocks of gpt-oss)."""
    stem, parameter = _split(rest)
    suffix = None if parameter else _STACKED.search(stem)
    return {"blocks": "weight", "packed": "weight"}.get(suffix[1], suffix[1]) if suffix else parameter


def _expert_part(rest: str) -> int | None:
    """0 and 1 are the two halves of w13, 2 is w2, None a tensor that holds both halves."""
    stem = _STACKED.sub("", _split(rest)[0])
    last = stem.rpartition(".")[2]
    if last in ("gate_proj", "w1"):
        return 0
    if last in ("up_proj", "w3", "v1"):
        return 1
    return 2 if last in ("down_proj", "w2", "output_linear") else None
