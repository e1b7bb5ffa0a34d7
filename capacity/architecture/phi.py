"""Phi-1.5 and Phi-2 (PhiForCausalLM) and Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini (Phi3ForCausalLM).

Source: vllm/model_executor/models/phi3.py is Llama's class; phi.py (0.26.0): biases everywhere, one LayerNorm
a layer, embedding, final norm and a head with bias on every pipeline stage, head size hidden // heads.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, grouped_attention, plain_head_dim
from vllm_capacity.architecture.llama import llama_like
from vllm_capacity.architecture.modules import Architecture, DenseMLP, LayerGroup
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def phi3(config: ModelConfig, release: Release) -> Architecture:
    """Phi3ForCausalLM."""
    del release
    return llama_like(config, name="Phi3ForCausalLM", family="phi3")


def phi(config: ModelConfig, release: Release) -> Architecture:
    """PhiForCausalLM. Every query head has a KV head, whatever the config says (phi.py:97-104)."""
    del release
    if common.tied(config):
        raise InputError(f"{config.name}: PhiForCausalLM needs tie_word_embeddings false (vLLM asserts it)")
    hidden, heads = config.hidden_size, config.num_attention_heads
    inner = config.size("n_inner") if config.get("n_inner") is not None else 4 * hidden
    mixer = grouped_attention(
        config, plain_head_dim(config), num_kv_heads=heads, sliding_window=common.cache_sliding_window(config)
    )
    modules = (
        *common.norm("input_layernorm", hidden, bias=True),
        *common.attention_modules(hidden, mixer, qkv_bias=True, o_bias=True, out="dense"),
        *common.plain_mlp(hidden, inner, bias=True, up="fc1", down="fc2"),
    )
    rope = common.rope_cache(
        config, mixer.head_size, max_position=config.size("max_position_embeddings", 2048)
    )
    return decoder(
        config,
        name="PhiForCausalLM",
        family="phi",
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=modules,
                mixers=(mixer,),
                feed_forward=DenseMLP(intermediate_size=inner, gated=False),
            ),
        ),
        outside=common.every_stage_placement(
            config.vocab_size,
            hidden,
            tied=False,
            rope=(rope,),
            head_bias=True,
            final_norm=common.norm("final_layernorm", hidden, bias=True),
        ),
    )
