"""Phi-3.5-MoE.

Source: vllm/model_executor/models/phimoe.py (0.26.0): Mixtral's layer with biases on attention, LayerNorms
with biases, a head with bias, everything outside the layers on every pipeline stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import config_head_dim, decoder, grouped_attention, moe_feed_forward
from vllm_capacity.architecture.modules import Architecture, LayerGroup
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def phimoe(config: ModelConfig, release: Release) -> Architecture:
    """PhiMoEForCausalLM."""
    del release
    hidden = config.hidden_size
    mixer = grouped_attention(
        config, config_head_dim(config), sliding_window=common.cache_sliding_window(config)
    )
    experts, feed_forward = moe_feed_forward(
        config,
        num_experts=config.size("num_local_experts", 16),
        top_k=config.size("num_experts_per_tok", 2),
        intermediate_size=config.size("intermediate_size"),
        prefix="block_sparse_moe",
    )
    modules = (
        *common.attention_modules(hidden, mixer, qkv_bias=True, o_bias=True),
        *experts,
        *common.norm("input_layernorm", hidden, bias=True),
        *common.norm("post_attention_layernorm", hidden, bias=True),
    )
    return decoder(
        config,
        name="PhiMoEForCausalLM",
        family="phimoe",
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=modules,
                mixers=(mixer,),
                feed_forward=feed_forward,
            ),
        ),
        outside=common.every_stage_placement(
            config.vocab_size,
            hidden,
            tied=False,
            rope=(common.rope_cache(config, mixer.head_size),),
            head_bias=True,
            final_norm=common.norm("norm", hidden, bias=True),
        ),
    )
