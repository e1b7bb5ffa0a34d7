"""Mixtral.

Source: vllm/model_executor/models/mixtral.py (0.26.0): embedding, final norm and head on every pipeline stage
(:317-341, :407-414); every layer is sparse; `head_dim` of the config wins.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import config_head_dim, decoder, grouped_attention, moe_feed_forward
from vllm_capacity.architecture.modules import Architecture, LayerGroup
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def mixtral(config: ModelConfig, release: Release) -> Architecture:
    """MixtralForCausalLM."""
    del release
    hidden = config.hidden_size
    mixer = grouped_attention(
        config,
        config_head_dim(config),
        num_kv_heads=config.size("num_key_value_heads", 8),
        sliding_window=common.cache_sliding_window(config),
    )
    experts, feed_forward = moe_feed_forward(
        config,
        num_experts=config.size("num_local_experts", 8),
        top_k=config.size("num_experts_per_tok", 2),
        intermediate_size=config.size("intermediate_size"),
        prefix="block_sparse_moe",
    )
    modules = (
        *common.attention_modules(hidden, mixer),
        *experts,
        *common.norm("input_layernorm", hidden),
        *common.norm("post_attention_layernorm", hidden),
    )
    tied = common.tied(config)
    return decoder(
        config,
        name="MixtralForCausalLM",
        family="mixtral",
        tied=tied,
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=modules,
                mixers=(mixer,),
                feed_forward=feed_forward,
            ),
        ),
        outside=common.every_stage_placement(
            config.vocab_size, hidden, tied=tied, rope=(common.rope_cache(config, mixer.head_size),)
        ),
    )
