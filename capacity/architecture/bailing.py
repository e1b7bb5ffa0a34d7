"""Bailing MoE (Ling, Ring).

Source: vllm/model_executor/models/bailing_moe.py (0.26.0): q and k norms per head with `use_qk_norm`, dense
layers before
`first_k_dense_replace`, the router in `router_dtype` with an fp32 bias where `moe_router_enable_expert_bias`;
Llama's stages
with the embedding itself as tied head.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    config_head_dim,
    decoder,
    dense_feed_forward,
    grouped_attention,
    moe_feed_forward,
)
from vllm_capacity.architecture.modules import (
    Architecture,
    FeedForward,
    LayerGroup,
    Module,
    Placement,
    Tensor,
)
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def bailing_moe(config: ModelConfig, release: Release) -> Architecture:
    """BailingMoeForCausalLM and BailingMoeV2ForCausalLM."""
    del release
    hidden, bias = config.hidden_size, config.boolean("use_bias", False)
    has_norms = config.boolean("use_qk_norm", False)
    mixer = grouped_attention(
        config, config_head_dim(config), qk_norm=has_norms, sliding_window=common.cache_sliding_window(config)
    )
    norm_bias = not config.boolean("use_rmsnorm", False)
    norms: tuple[Module, ...] = (
        *common.norm("attention.query_layernorm", mixer.head_size, bias=norm_bias),
        *common.norm("attention.key_layernorm", mixer.head_size, bias=norm_bias),
    )

    def build(sparse: bool, indices: tuple[int, ...]) -> LayerGroup:
        feed_forward: FeedForward
        feed, feed_forward = _experts(config) if sparse else dense_feed_forward(config, bias=bias)
        return LayerGroup(
            indices=indices,
            modules=(
                *common.norm("input_layernorm", hidden),
                *common.attention_modules(
                    hidden,
                    mixer,
                    prefix="attention",
                    qkv="query_key_value",
                    out="dense",
                    qkv_bias=bias or config.boolean("use_qkv_bias", False),
                    o_bias=bias,
                    qk_norm=norms if has_norms else (),
                ),
                *common.norm("post_attention_layernorm", hidden),
                *feed,
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    first = config.integer("first_k_dense_replace", 0)
    rope = dict(common.rope_parameters(config))
    rotary = (
        config.size("rotary_dim")
        if config.get("rotary_dim") is not None
        else int(mixer.head_size * float(rope.get("partial_rotary_factor", 1.0)))
    )
    rope["partial_rotary_factor"] = rotary / mixer.head_size
    tied = common.tied(config)
    return decoder(
        config,
        name="BailingMoeForCausalLM",
        family="bailing_moe",
        tied=tied,
        layers=common.group_layers([i >= first for i in range(config.num_hidden_layers)], build),
        outside=common.place(
            embed=common.embedding(config.vocab_size, hidden, name="word_embeddings"),
            head=common.lm_head(config.vocab_size, hidden),
            tied=tied,
            final_norm=common.norm("norm", hidden),
            embed_on=Placement.ENDS if tied else Placement.FIRST,
            head_on=Placement.LAST,
            norm_on=Placement.LAST,
            rope=(common.rope_cache(config, mixer.head_size, parameters=rope),),
        ),
    )


def _experts(config: ModelConfig) -> tuple[tuple[Module, ...], FeedForward]:
    dtype = config.get("router_dtype")
    shared = config.integer("num_shared_experts", 0)
    if shared:
        wide = config.get("moe_shared_expert_intermediate_size") is not None
        shared *= config.size("moe_shared_expert_intermediate_size" if wide else "moe_intermediate_size")
    count = config.size("num_experts")
    modules, feed_forward = moe_feed_forward(
        config,
        num_experts=count,
        top_k=config.size("num_experts_per_tok"),
        shared=shared,
        intermediate_size=config.size("moe_intermediate_size"),
        gate_dtype=None if dtype is None else "float32" if dtype == "fp32" else "bfloat16",
    )
    if config.boolean("moe_router_enable_expert_bias", False):
        modules += (Tensor(name="mlp.gate.expert_bias", shape=(count,), dtype="float32"),)
    return modules, feed_forward
