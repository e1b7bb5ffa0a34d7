"""EAGLE and EAGLE-3 heads of Llama's kind: layers that draft tokens from the target model's hidden states.

Source: vllm/model_executor/models/llama_eagle3.py, llama_eagle.py; v1/worker/gpu/spec_decode/eagle/utils.py and
v1/spec_decode/llm_base_proposer.py say what is shared with the target (0.26.0 and 0.33.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm_capacity.architecture import common
from vllm_capacity.architecture.llama import llama_like
from vllm_capacity.architecture.modules import (
    Architecture,
    LayerGroup,
    Linear,
    Module,
    Placed,
    Placement,
    QkvLinear,
    Shard,
    Tensor,
)
from vllm_capacity.inputs.model_config import ModelConfig

LLAMA_HEADS = frozenset(
    {
        "LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "EagleLlamaForCausalLM",
        "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM", "PEagleDraftModel",
        "PeagleLlamaForCausalLM", "Eagle3Speculator",
    }
)  # fmt: skip
"""Names that vLLM's registry gives to Eagle3LlamaForCausalLM or EagleLlamaForCausalLM (registry.py:601-630, 0.26.0;
EAGLEConfig puts `Eagle3` or `Eagle` before a plain name).
"""
AUX_STATES = 3
"""Hidden states of the target that an EAGLE-3 head reads unless its config says otherwise."""


def flattened(draft: Mapping[str, Any]) -> dict[str, Any]:
    """A config of the `speculators` format as one of a plain head (transformers_utils/configs/speculators/algos.py:
    update_eagle3): the decoder layer's own config first.
    """
    inner = draft.get("transformer_layer_config")
    if not isinstance(inner, Mapping):
        return dict(draft)
    kept = {
        key: draft[key]
        for key in ("draft_vocab_size", "target_hidden_size", "norm_before_fc")
        if key in draft
    }
    return {**inner, **kept, "architectures": ["Eagle3LlamaForCausalLM"]}


def is_llama_head(config: ModelConfig) -> bool:
    return bool(config.architectures) and config.architectures[0] in LLAMA_HEADS


def eagle_head(
    config: ModelConfig, *, eagle3: bool, own_embedding: bool, own_head: bool, unmapped: int = 0
) -> Architecture:
    """`config` is the head's own, one of Llama's kind; a vocabulary of `unmapped` needs no map of token ids."""
    base = llama_like(config, name=config.architectures[0], family="eagle")
    layers = tuple(part for group in base.layers for part in _layers(group, base.hidden_size, eagle3=eagle3))
    rope = (placed.module for placed in base.outside if placed.module.name.endswith("cos_sin_cache"))
    embedding = (common.embedding(base.vocab_size, base.hidden_size),) if own_embedding else ()
    rest = _eagle3(config, base, own_head, unmapped) if eagle3 else (_projection(2 * base.hidden_size, base),)
    outside = tuple(Placed(module=module, placement=Placement.EVERY) for module in (*rope, *embedding, *rest))
    return replace(base, layers=layers, outside=outside)


def _layers(group: LayerGroup, hidden: int, *, eagle3: bool) -> tuple[LayerGroup, ...]:
    """The first layer reads embedding and hidden state side by side (EAGLE-3) or has no norm before it (EAGLE)."""
    first, rest = tuple(i for i in group.indices if i == 0), tuple(i for i in group.indices if i > 0)
    more = common.norm("hidden_norm", hidden) if eagle3 else ()
    found = []
    for indices in (first, rest):
        if indices:
            modules = tuple(
                _first(module, eagle3) if indices == first else module for module in group.modules
            )
            kept = tuple(module for module in modules if module is not None)
            found.append(replace(group, indices=indices, modules=(*kept, *more)))
    return tuple(found)


def _first(module: Module, eagle3: bool) -> Module | None:
    if eagle3:
        return replace(module, inputs=2 * module.inputs) if isinstance(module, QkvLinear) else module
    return None if module.name.startswith("input_layernorm") else module


def _projection(inputs: int, base: Architecture) -> Linear:
    return Linear(name="fc", inputs=inputs, outputs=(base.hidden_size,), shard=Shard.REPLICATED)


def _eagle3(config: ModelConfig, base: Architecture, own_head: bool, unmapped: int) -> tuple[Module, ...]:
    hidden = base.hidden_size
    read = config.size("target_hidden_size", hidden) * _aux_states(config)
    vocabulary = config.size("draft_vocab_size", base.vocab_size)
    found: list[Module] = [*common.norm("norm", hidden), _projection(read, base)]
    if config.boolean("norm_before_fc", False):
        found += common.norm("input_norm", read)
    if own_head:
        found.append(common.lm_head(vocabulary, hidden))
    if vocabulary != unmapped:
        found.append(Tensor(name="draft_id_to_target_id", shape=(vocabulary,), dtype="int64"))
    return tuple(found)


def _aux_states(config: ModelConfig) -> int:
    given = config.get("num_aux_hidden_states")
    if given is not None:
        return config.size("num_aux_hidden_states")
    inner = config.get("eagle_config")
    layers = inner.get("eagle_aux_hidden_state_layer_ids") if isinstance(inner, Mapping) else None
    return len(layers) if isinstance(layers, (list, tuple)) and layers else AUX_STATES
