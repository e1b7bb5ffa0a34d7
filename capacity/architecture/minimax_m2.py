"""MiniMax-M2, M2.5, M2.7.

Source: vllm/model_executor/models/minimax_m2.py (0.26.0): q and k norms over all heads, divided by tp like
the heads (:217-226), an fp32 router and correction bias (:87-112), `rotary_dim` of each head rotated,
embedding on the first and head on the last pipeline stage, never tied.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import config_head_dim, decoder, grouped_attention, moe_feed_forward
from vllm_capacity.architecture.modules import Architecture, LayerGroup, Module, Tensor
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def minimax_m2(config: ModelConfig, release: Release) -> Architecture:
    """MiniMaxM2ForCausalLM."""
    del release
    hidden = config.hidden_size
    mixer = grouped_attention(
        config,
        config_head_dim(config),
        num_kv_heads=config.size("num_key_value_heads", 8),
        qk_norm=True,
        sliding_window=common.cache_sliding_window(config),
    )
    count = config.size("num_local_experts")
    experts, feed_forward = moe_feed_forward(
        config,
        num_experts=count,
        top_k=config.size("num_experts_per_tok"),
        intermediate_size=config.size("intermediate_size"),
        gate_dtype="float32",
    )
    if config.boolean("use_routing_bias", False):
        experts = (Tensor(name="mlp.e_score_correction_bias", shape=(count,), dtype="float32"), *experts)
    heads, kv_heads, size = mixer.num_heads, mixer.num_kv_heads, mixer.head_size
    norms: tuple[Module, ...] = (
        Tensor(name="self_attn.q_norm.weight", shape=(heads * size,), shard_dim=0),
        Tensor(name="self_attn.k_norm.weight", shape=(kv_heads * size,), shard_dim=0, kv_heads=kv_heads),
    )
    modules = (
        *common.attention_modules(
            hidden, mixer, qkv_bias=config.boolean("attention_bias", False), qk_norm=norms
        ),
        *experts,
        *common.norm("input_layernorm", hidden),
        *common.norm("post_attention_layernorm", hidden),
    )
    rope = {**common.rope_parameters(config)}
    rope.setdefault("partial_rotary_factor", config.size("rotary_dim", size) / size)
    cache = common.rope_cache(
        config, size, parameters=rope, max_position=config.size("max_position_embeddings", 8192)
    )
    return decoder(
        config,
        name="MiniMaxM2ForCausalLM",
        family="minimax_m2",
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=modules,
                mixers=(mixer,),
                feed_forward=feed_forward,
            ),
        ),
        outside=common.llama_placement(
            config.vocab_size, hidden, tied=False, head_allocated_first=False, rope=(cache,)
        ),
    )
