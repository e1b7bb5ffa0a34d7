"""InternLM2 and 2.5.

Source: vllm/model_executor/models/internlm2.py (0.26.0): head size hidden // heads, embedding, final norm and
head on every pipeline stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, grouped_attention, plain_head_dim
from vllm_capacity.architecture.modules import Architecture, DenseMLP, LayerGroup
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def internlm2(config: ModelConfig, release: Release) -> Architecture:
    """InternLM2ForCausalLM."""
    del release
    hidden, intermediate = config.hidden_size, config.size("intermediate_size")
    mixer = grouped_attention(
        config, plain_head_dim(config), sliding_window=common.cache_sliding_window(config)
    )
    modules = (
        *common.attention_modules(hidden, mixer, prefix="attention", qkv="wqkv", out="wo"),
        *common.gated_mlp(hidden, intermediate, prefix="feed_forward", down="w2"),
        *common.norm("attention_norm", hidden),
        *common.norm("ffn_norm", hidden),
    )
    tied = common.tied(config)
    rope = common.rope_cache(
        config, mixer.head_size, max_position=config.size("max_position_embeddings", 8192)
    )
    return decoder(
        config,
        name="InternLM2ForCausalLM",
        family="internlm2",
        tied=tied,
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=modules,
                mixers=(mixer,),
                feed_forward=DenseMLP(intermediate_size=intermediate),
            ),
        ),
        outside=common.every_stage_placement(config.vocab_size, hidden, tied=tied, rope=(rope,)),
    )
