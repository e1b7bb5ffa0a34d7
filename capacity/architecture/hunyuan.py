"""Hunyuan V1, dense and MoE (Hunyuan-A13B, Hunyuan-7B).

Source: vllm/model_executor/models/hunyuan_v1.py (0.26.0): Llama's stages; q and k norms per head with
`use_qk_norm`; layers off the `cla_share_factor` raster attend with another layer's keys and values (not
modelled); a shared MLP of `num_shared_expert` times the intermediate size where `use_mixed_mlp_moe`.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    decoder,
    dense_feed_forward,
    grouped_attention,
    moe_feed_forward,
)
from vllm_capacity.architecture.modules import Architecture, FeedForward, LayerGroup, Module
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def hunyuan_dense(config: ModelConfig, release: Release) -> Architecture:
    """HunYuanDenseV1ForCausalLM."""
    del release
    return _hunyuan(config, "HunYuanDenseV1ForCausalLM", sparse=False)


def hunyuan_moe(config: ModelConfig, release: Release) -> Architecture:
    """HunYuanMoEV1ForCausalLM."""
    del release
    return _hunyuan(config, "HunYuanMoEV1ForCausalLM", sparse=True)


def hunyuan_moe_transformers(config: ModelConfig, release: Release) -> Architecture:
    """HunYuanMoEV1ForCausalLM since 0.29: Transformers' own class, which knows the model type hunyuan_v1_moe only.

    Older files (model type `hunyuan`, head size under `attention_head_dim`) fail in that class: it reads `head_dim`
    (modeling_hunyuan_v1_moe.py:161, Transformers 5.20).
    """
    if config.get("head_dim") is None:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"TypeError: unsupported operand type(s) for ** or pow(): 'NoneType' and 'float' (vLLM {release.version} runs"
            " HunYuanMoEV1ForCausalLM with Transformers' class, which needs 'head_dim'); plan it with --vllm-version"
            " 0.28.0 or older",
        )
    raise InputError(
        f"{config.name}: HunYuanMoEV1ForCausalLM with Transformers' class (vLLM {release.version}) is not modelled"
    )


def per_layer(config: ModelConfig, key: str, layer: int, default: int | None = None) -> int:
    """An integer, or the layer's entry of a list of integers."""
    if isinstance(config.get(key), (list, tuple)):
        values = config.integers(key) or ()
        if layer >= len(values):
            raise InputError(
                f"{config.name}: config key {key!r} has {len(values)} entries, too few for all layers"
            )
        return values[layer]
    return config.integer(key, default) if default is not None else config.integer(key)


def _hunyuan(config: ModelConfig, name: str, *, sparse: bool) -> Architecture:
    if config.boolean("use_cla", False) and config.integer("cla_share_factor", 1) > 1:
        raise InputError(f"{config.name}: cross-layer attention (use_cla) is not modelled")
    hidden = config.hidden_size
    size = (
        config.size("head_dim")
        if config.get("head_dim")
        else config.size("attention_head_dim", config.head_dim)
    )
    has_norms = config.boolean("use_qk_norm", False)
    mixer = grouped_attention(
        config, size, qk_norm=has_norms, sliding_window=common.cache_sliding_window(config)
    )
    bias = config.boolean("attention_bias", False) or config.boolean("bias", False)
    norms: tuple[Module, ...] = (
        *common.norm("self_attn.query_layernorm", size),
        *common.norm("self_attn.key_layernorm", size),
    )

    def build(facts: tuple[int, ...], indices: tuple[int, ...]) -> LayerGroup:
        feed_forward: FeedForward
        if sparse:
            width, shared, top_k = facts
            feed, feed_forward = moe_feed_forward(
                config,
                num_experts=config.size("num_experts"),
                top_k=top_k,
                intermediate_size=width,
                shared=shared,
                shared_name="shared_mlp",
            )
        else:
            feed, feed_forward = dense_feed_forward(config, facts[0], bias=config.boolean("mlp_bias", False))
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(
                    hidden, mixer, qkv_bias=bias, o_bias=bias, qk_norm=norms if has_norms else ()
                ),
                *feed,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    def facts_of(layer: int) -> tuple[int, ...]:
        width = per_layer(config, "intermediate_size", layer)
        if not sparse:
            return (width,)
        shared = 0
        if config.get("use_mixed_mlp_moe"):
            shared = config.size("intermediate_size") * per_layer(config, "num_shared_expert", layer, 1)
        experts = (
            width
            if config.get("moe_intermediate_size") is None
            else per_layer(config, "moe_intermediate_size", layer)
        )
        return experts, shared, per_layer(config, "moe_topk", layer, 1)

    tied = common.tied(config)
    rope = common.rope_cache(config, size, max_position=config.size("max_position_embeddings", 8192))
    return decoder(
        config,
        name=name,
        family="hunyuan_v1",
        tied=tied,
        layers=common.group_layers([facts_of(i) for i in range(config.num_hidden_layers)], build),
        outside=common.llama_placement(
            config.vocab_size, hidden, tied=tied, head_allocated_first=True, rope=(rope,)
        ),
    )
