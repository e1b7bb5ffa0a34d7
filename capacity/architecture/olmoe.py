"""OLMoE and Apertus.

Source: vllm/model_executor/models/olmoe.py (0.26.0): q and k norms over all heads, whole on every rank, everything on every
stage; apertus.py: Llama's stages, norms per head, an MLP without gate whose activation has two parameters and two buffers.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    config_head_dim,
    decoder,
    grouped_attention,
    moe_feed_forward,
    plain_head_dim,
)
from vllm_capacity.architecture.modules import Architecture, DenseMLP, LayerGroup, Tensor
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def olmoe(config: ModelConfig, release: Release) -> Architecture:
    """OlmoeForCausalLM."""
    del release
    hidden = config.hidden_size
    mixer = grouped_attention(config, plain_head_dim(config), qk_norm=True)
    experts, feed_forward = moe_feed_forward(
        config,
        num_experts=config.size("num_experts"),
        top_k=config.size("num_experts_per_tok"),
        intermediate_size=config.size("intermediate_size"),
    )
    norms = (
        *common.norm("self_attn.q_norm", hidden),
        *common.norm("self_attn.k_norm", mixer.num_kv_heads * mixer.head_size),
    )
    modules = (
        *common.attention_modules(hidden, mixer, qk_norm=norms),
        *experts,
        *common.norm("input_layernorm", hidden),
        *common.norm("post_attention_layernorm", hidden),
    )
    rope = common.rope_cache(
        config, mixer.head_size, max_position=config.size("max_position_embeddings", 4096)
    )
    return decoder(
        config,
        name="OlmoeForCausalLM",
        family="olmoe",
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=modules,
                mixers=(mixer,),
                feed_forward=feed_forward,
            ),
        ),
        outside=common.every_stage_placement(config.vocab_size, hidden, tied=False, rope=(rope,)),
    )


def apertus(config: ModelConfig, release: Release) -> Architecture:
    """ApertusForCausalLM."""
    del release
    hidden, width, size = config.hidden_size, config.size("intermediate_size"), config_head_dim(config)
    windows = common.layer_windows(config, common.cache_sliding_window(config))
    bias = config.boolean("attention_bias", False) or config.boolean("bias", False)

    def build(window: int | None, indices: tuple[int, ...]) -> LayerGroup:
        mixer = grouped_attention(config, size, qk_norm=True, sliding_window=window)
        modules = (
            *common.attention_modules(
                hidden, mixer, qkv_bias=bias, o_bias=bias, qk_norm=common.head_norms(size)
            ),
            *common.plain_mlp(hidden, width, bias=config.boolean("mlp_bias", False)),
            Tensor(name="mlp.act_fn.alpha_p", shape=(1,)),
            Tensor(name="mlp.act_fn.alpha_n", shape=(1,)),
            Tensor(name="mlp.act_fn.beta", shape=(), buffer=True),
            Tensor(name="mlp.act_fn.eps", shape=(), buffer=True),
            *common.norm("attention_layernorm", hidden),
            *common.norm("feedforward_layernorm", hidden),
        )
        return LayerGroup(
            indices=indices,
            modules=modules,
            mixers=(mixer,),
            feed_forward=DenseMLP(intermediate_size=width, gated=False),
        )

    tied = common.tied(config)
    rope = common.rope_cache(config, size, max_position=config.size("max_position_embeddings", 8192))
    return decoder(
        config,
        name="ApertusForCausalLM",
        family="apertus",
        tied=tied,
        layers=common.group_layers(windows, build),
        outside=common.llama_placement(
            config.vocab_size, hidden, tied=tied, rope=(rope,), head_allocated_first=True
        ),
    )
