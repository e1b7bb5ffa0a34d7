"""Granite 3 and 4 dense (GraniteForCausalLM) and GraniteMoe.

Source: vllm/model_executor/models/granite.py, granitemoe.py (0.26.0): Granite is Llama's pattern with a tied
head allocated first (:471-478); GraniteMoe has head size hidden // heads (:168) and embedding, final norm and
head on every stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    config_head_dim,
    decoder,
    dense_feed_forward,
    grouped_attention,
    moe_feed_forward,
    plain_head_dim,
)
from vllm_capacity.architecture.modules import Architecture, LayerGroup
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def granite(config: ModelConfig, release: Release) -> Architecture:
    """GraniteForCausalLM."""
    del release
    hidden = config.hidden_size
    mixer = grouped_attention(
        config, config_head_dim(config), sliding_window=common.cache_sliding_window(config)
    )
    bias = config.boolean("attention_bias", False) or config.boolean("bias", False)
    feed, feed_forward = dense_feed_forward(config, bias=config.boolean("mlp_bias", False))
    modules = (
        *common.attention_modules(hidden, mixer, qkv_bias=bias, o_bias=bias),
        *feed,
        *common.norm("input_layernorm", hidden),
        *common.norm("post_attention_layernorm", hidden),
    )
    tied = common.tied(config)
    rope = common.rope_cache(
        config, mixer.head_size, max_position=config.size("max_position_embeddings", 8192)
    )
    return decoder(
        config,
        name="GraniteForCausalLM",
        family="granite",
        tied=tied,
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=modules,
                mixers=(mixer,),
                feed_forward=feed_forward,
            ),
        ),
        outside=common.llama_placement(
            config.vocab_size, hidden, tied=tied, head_allocated_first=True, rope=(rope,)
        ),
    )


def granite_moe(config: ModelConfig, release: Release) -> Architecture:
    """GraniteMoeForCausalLM."""
    return _granite_moe(config, release, "GraniteMoeForCausalLM", shared=0)


def granite_moe_shared(config: ModelConfig, release: Release) -> Architecture:
    """GraniteMoeSharedForCausalLM: a dense MLP beside the experts (granitemoeshared.py)."""
    return _granite_moe(
        config, release, "GraniteMoeSharedForCausalLM", shared=config.integer("shared_intermediate_size", 0)
    )


def _granite_moe(config: ModelConfig, release: Release, name: str, *, shared: int) -> Architecture:
    del release
    hidden = config.hidden_size
    mixer = grouped_attention(
        config, plain_head_dim(config), sliding_window=common.cache_sliding_window(config)
    )
    experts, feed_forward = moe_feed_forward(
        config,
        num_experts=config.size("num_local_experts"),
        top_k=config.size("num_experts_per_tok"),
        intermediate_size=config.size("intermediate_size"),
        prefix="block_sparse_moe",
    )
    modules = (
        *common.attention_modules(hidden, mixer),
        *experts,
        *(
            common.gated_mlp(hidden, shared, prefix="shared_mlp", up="input_linear", down="output_linear")
            if shared
            else ()
        ),
        *common.norm("input_layernorm", hidden),
        *common.norm("post_attention_layernorm", hidden),
    )
    tied = common.tied(config)
    return decoder(
        config,
        name=name,
        family="granitemoe",
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
