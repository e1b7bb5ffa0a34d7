"""Arcee (AFM): Llama's attention, and an MLP without gate.

Source: vllm/model_executor/models/arcee.py (0.26.0; the same modules in 0.19.0 to 0.31.0, then the Transformers backend).
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import config_head_dim, decoder, grouped_attention
from vllm_capacity.architecture.modules import Architecture, DenseMLP, LayerGroup
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def arcee(config: ModelConfig, release: Release) -> Architecture:
    """ArceeForCausalLM."""
    del release
    if config.get("hidden_act", "relu2") != "relu2":
        raise InputError(
            f"{config.name}: ArceeForCausalLM runs hidden_act relu2 only (vLLM raises a ValueError)"
        )
    hidden, width = config.hidden_size, config.size("intermediate_size")
    bias = config.boolean("attention_bias", False) or config.boolean("bias", False)
    mixer = grouped_attention(
        config, config_head_dim(config), sliding_window=common.cache_sliding_window(config)
    )
    modules = (
        *common.attention_modules(hidden, mixer, qkv_bias=config.boolean("qkv_bias", bias), o_bias=bias),
        *common.plain_mlp(hidden, width, bias=config.boolean("mlp_bias", False)),
        *common.norm("input_layernorm", hidden),
        *common.norm("post_attention_layernorm", hidden),
    )
    # ArceeMLP.forward overwrites x three times
    feed_forward = DenseMLP(intermediate_size=width, gated=False, frees_gate_up=True)
    every_layer = tuple(range(config.num_hidden_layers))
    tied = common.tied(config)
    return decoder(
        config,
        name="ArceeForCausalLM",
        family="arcee",
        tied=tied,
        layers=(
            LayerGroup(indices=every_layer, modules=modules, mixers=(mixer,), feed_forward=feed_forward),
        ),
        outside=common.llama_placement(
            config.vocab_size,
            hidden,
            tied=tied,
            head_allocated_first=True,  # and dropped where it is tied
            rope=(common.rope_cache(config, mixer.head_size),),
            head_bias=config.boolean("lm_head_bias", False),
        ),
    )
