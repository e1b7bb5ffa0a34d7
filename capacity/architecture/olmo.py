"""OLMo 2 and 3 with vLLM's own classes.

Source: vllm/model_executor/models/olmo2.py (to 0.25.1) and olmo3.py (0.26.0): q_norm over the hidden size and
k_norm over all KV heads, replicated (:113-117), no norm before attention or MLP but one after each,
embedding, final norm and an untied head on every pipeline stage, one rope cache per layer type where the
config has two blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    decoder,
    dense_feed_forward,
    grouped_attention,
    layer_caches,
    layer_kinds,
    plain_head_dim,
)
from vllm_capacity.architecture.modules import Architecture, LayerGroup
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def olmo2(config: ModelConfig, release: Release) -> Architecture:
    """Olmo2ForCausalLM, which up to 0.25.1 runs OLMo 3 too."""
    del release
    if "Olmo3ForCausalLM" in config.architectures:
        return _olmo(config, "Olmo2ForCausalLM", _olmo3_kinds(config))
    return _olmo(
        config, "Olmo2ForCausalLM", layer_kinds(config, ["full_attention"] * config.num_hidden_layers)
    )


def olmo3(config: ModelConfig, release: Release) -> Architecture:
    """Olmo3ForCausalLM."""
    del release
    return _olmo(config, "Olmo3ForCausalLM", _olmo3_kinds(config))


def _olmo3_kinds(config: ModelConfig) -> tuple[str, ...]:
    """Without `layer_types` every fourth layer is full (Olmo3Config, transformers)."""
    layers = range(config.num_hidden_layers)
    return layer_kinds(config, ["sliding_attention" if (i + 1) % 4 else "full_attention" for i in layers])


def _olmo(config: ModelConfig, name: str, kinds: tuple[str, ...]) -> Architecture:
    hidden, head_size = config.hidden_size, plain_head_dim(config)
    window = config.integer("sliding_window", 4096) or None
    elsewhere = common.cache_sliding_window(config) if len(set(kinds)) == 1 else None
    feed, feed_forward = dense_feed_forward(config)

    def build(kind: str, indices: tuple[int, ...]) -> LayerGroup:
        mixer = grouped_attention(
            config,
            head_size,
            qk_norm=True,
            sliding_window=window if kind == "sliding_attention" else elsewhere,
        )
        qk_norm = (
            *common.norm("self_attn.k_norm", mixer.num_kv_heads * head_size),
            *common.norm("self_attn.q_norm", hidden),
        )
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(hidden, mixer, qk_norm=qk_norm),
                *feed,
                *common.norm("post_attention_layernorm", hidden),
                *common.norm("post_feedforward_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    caches = layer_caches(config, head_size, kinds, {kind: olmo3_rope(config, kind) for kind in kinds})
    tied = common.tied(config)
    return decoder(
        config,
        name=name,
        family="olmo",
        tied=tied,
        layers=common.group_layers(kinds, build),
        outside=common.every_stage_placement(
            config.vocab_size, hidden, tied=tied, head_allocated_first=False, rope=caches
        ),
    )


def olmo3_rope(config: ModelConfig, kind: str) -> Mapping[str, Any]:
    """A `rope_scaling` of old files counts for full layers only (Olmo3Config.convert_rope_params_to_dict,
    transformers 5).
    """
    given = config.get("rope_parameters")
    if given is None and kind == "sliding_attention":
        return {"rope_type": "default", "rope_theta": config.get("rope_theta", 500000.0)}
    return common.rope_parameters(config, kind)
