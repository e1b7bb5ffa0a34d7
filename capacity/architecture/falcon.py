"""Falcon 7B, 40B, 180B.

Source: vllm/model_executor/models/falcon.py (0.26.0): KV heads are `num_kv_heads` with the new decoder
architecture, 1 with `multi_query`, else one per head (:104-111); the attention layer gets no cache config
with rope or ALiBi, so no window; one, two or no parallel LayerNorms (:270-292); embedding, final norm and an
untied head on every stage, tied unless the config says false (:452-462).
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, grouped_attention, plain_head_dim
from vllm_capacity.architecture.modules import Architecture, DenseMLP, LayerGroup, Module
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def falcon(config: ModelConfig, release: Release) -> Architecture:
    """FalconForCausalLM."""
    del release
    hidden, heads = config.hidden_size, config.num_attention_heads
    new, parallel = config.boolean("new_decoder_architecture", False), config.boolean("parallel_attn", True)
    bias, rotary = config.boolean("bias", False), not config.boolean("alibi", False)
    if new:
        kv_heads = config.size("num_kv_heads") if config.get("num_kv_heads") else heads
    else:
        kv_heads = 1 if config.boolean("multi_query", True) else heads
    mixer = grouped_attention(config, plain_head_dim(config), num_kv_heads=kv_heads, rope=rotary)
    norms: tuple[Module, ...]
    if not parallel:
        norms = (
            *common.norm("post_attention_layernorm", hidden, bias=True),
            *common.norm("input_layernorm", hidden, bias=True),
        )
    elif config.integer("num_ln_in_parallel_attn", 2 if new else 1) == 2:
        norms = (*common.norm("ln_attn", hidden, bias=True), *common.norm("ln_mlp", hidden, bias=True))
    else:
        norms = common.norm("input_layernorm", hidden, bias=True)
    modules = (
        *common.attention_modules(
            hidden,
            mixer,
            prefix="self_attention",
            qkv="query_key_value",
            out="dense",
            qkv_bias=bias,
            o_bias=bias,
        ),
        *common.plain_mlp(hidden, 4 * hidden, bias=bias, up="dense_h_to_4h", down="dense_4h_to_h"),
        *norms,
    )
    rope = common.rope_cache(
        config, mixer.head_size, max_position=config.size("max_position_embeddings", 8192)
    )
    tied = common.tied(config, default=True)
    return decoder(
        config,
        name="FalconForCausalLM",
        family="falcon",
        tied=tied,
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=modules,
                mixers=(mixer,),
                feed_forward=DenseMLP(intermediate_size=4 * hidden, gated=False),
            ),
        ),
        outside=common.every_stage_placement(
            config.vocab_size,
            hidden,
            tied=tied,
            rope=(rope,) if rotary else (),
            head_allocated_first=False,
            final_norm=common.norm("ln_f", hidden, bias=True),
        ),
    )
