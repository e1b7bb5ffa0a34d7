"""Qwen (the first generation): Llama's shape with biases on q, k and v and an MLP half as wide as the config says.

Source: vllm/model_executor/models/qwen.py (0.19.0 to 0.23.0, the last release that has it): embedding, final
norm and head on every pipeline stage. A config with a `visual` part runs as text only under this class.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, dense_feed_forward, grouped_attention, plain_head_dim
from vllm_capacity.architecture.modules import Architecture, LayerGroup
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def qwen(config: ModelConfig, release: Release) -> Architecture:
    """QWenLMHeadModel."""
    del release
    hidden, width = config.hidden_size, config.size("intermediate_size") // 2
    if width < 1:
        raise InputError(
            f"{config.name}: config key 'intermediate_size' is twice the MLP's width, so at least 2"
        )
    mixer = grouped_attention(config, plain_head_dim(config), num_kv_heads=config.num_attention_heads)
    feed, feed_forward = dense_feed_forward(config, width)
    group = LayerGroup(
        indices=tuple(range(config.num_hidden_layers)),
        modules=(
            *common.norm("ln_1", hidden),
            *common.attention_modules(
                hidden, mixer, prefix="attn", qkv_bias=True, qkv="c_attn", out="c_proj"
            ),
            *common.norm("ln_2", hidden),
            *feed,
        ),
        mixers=(mixer,),
        feed_forward=feed_forward,
    )
    tied = common.tied(config)
    return decoder(
        config,
        name="QWenLMHeadModel",
        family="qwen",
        tied=tied,
        layers=(group,),
        outside=common.every_stage_placement(
            config.vocab_size, hidden, tied=tied, rope=(common.rope_cache(config, mixer.head_size),)
        ),
    )
