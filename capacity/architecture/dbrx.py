"""DBRX.

Source: vllm/model_executor/models/dbrx.py (0.26.0): LayerNorms without biases, KV heads from `attn_config`,
experts from `ffn_config`, `max_seq_len` rows of rope cache, everything outside the layers on every pipeline
stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, grouped_attention, moe_feed_forward, plain_head_dim
from vllm_capacity.architecture.modules import Architecture, LayerGroup, Placement
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def dbrx(config: ModelConfig, release: Release) -> Architecture:
    """DbrxForCausalLM."""
    del release
    hidden = config.hidden_size
    attention, ffn = config.sub("attn_config"), config.sub("ffn_config")
    mixer = grouped_attention(config, plain_head_dim(config), num_kv_heads=attention.size("kv_n_heads", 1))
    experts, feed_forward = moe_feed_forward(
        config,
        num_experts=ffn.size("moe_num_experts", 4),
        top_k=ffn.size("moe_top_k", 1),
        intermediate_size=ffn.size("ffn_hidden_size", 3584),
        prefix="ffn",
        gate="router.layer",
    )
    prefix = "norm_attn_norm"
    modules = (
        *common.attention_modules(hidden, mixer, prefix=f"{prefix}.attn", qkv="Wqkv", out="out_proj"),
        *common.norm(f"{prefix}.norm_1", hidden),
        *common.norm(f"{prefix}.norm_2", hidden),
        *experts,
    )
    rope = common.rope_cache(
        config,
        mixer.head_size,
        parameters={"rope_type": "default"},
        max_position=config.size("max_seq_len", 2048),
    )
    return decoder(
        config,
        name="DbrxForCausalLM",
        family="dbrx",
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=modules,
                mixers=(mixer,),
                feed_forward=feed_forward,
            ),
        ),
        outside=common.place(
            embed=common.embedding(config.vocab_size, hidden, name="wte"),
            head=common.lm_head(config.vocab_size, hidden),
            tied=False,
            final_norm=common.norm("norm_f", hidden),
            embed_on=Placement.EVERY,
            head_on=Placement.EVERY,
            norm_on=Placement.EVERY,
            rope=(rope,),
        ),
    )
