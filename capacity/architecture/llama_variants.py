"""Dense families that differ from Llama's pattern in biases, norms or windows only: Seed-OSS, EXAONE 4.

Source: vllm/model_executor/models/seed_oss.py, exaone4.py (0.26.0): embedding on the first stage (and the
last if tied), final norm and head on the last.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    config_head_dim,
    decoder,
    dense_feed_forward,
    grouped_attention,
    layer_kinds,
)
from vllm_capacity.architecture.modules import Architecture, Attention, LayerGroup, Module
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def seed_oss(config: ModelConfig, release: Release) -> Architecture:
    """SeedOssForCausalLM: q, k, v biases always, none on the output (seed_oss.py:131-147)."""
    del release
    mixer = grouped_attention(
        config, config_head_dim(config), sliding_window=common.cache_sliding_window(config)
    )
    return _llama_pattern(
        config,
        "SeedOssForCausalLM",
        "seed_oss",
        [mixer] * config.num_hidden_layers,
        qkv_bias=True,
        allocated_first=False,
        norms=("input_layernorm", "post_attention_layernorm"),
    )


def exaone4(config: ModelConfig, release: Release) -> Architecture:
    """Exaone4ForCausalLM: norms after attention and MLP, q and k norms per head, windows by `layer_types`.

    Without `layer_types` a `sliding_window_pattern` such as LLLG gives them (Exaone4Config, transformers).
    """
    del release
    head_size, window = config_head_dim(config), config.integer("sliding_window", 0) or None
    kinds = layer_kinds(config, _exaone_kinds(config, window))
    mixers = [
        grouped_attention(
            config, head_size, qk_norm=True, sliding_window=window if kind == "sliding_attention" else None
        )
        for kind in kinds
    ]
    bias = config.boolean("attention_bias", False) or config.boolean("bias", False)
    return _llama_pattern(
        config,
        "Exaone4ForCausalLM",
        "exaone4",
        mixers,
        qkv_bias=bias,
        o_bias=bias,
        allocated_first=True,
        mlp_bias=config.boolean("mlp_bias", False),
        qk_norm=common.head_norms(head_size),
        norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    )


def _exaone_kinds(config: ModelConfig, window: int | None) -> list[str]:
    layers, pattern = config.num_hidden_layers, config.get("sliding_window_pattern")
    if window is None or pattern is None:
        return ["full_attention"] * layers
    named = isinstance(pattern, str) and bool(pattern)
    period = len(pattern) if named else config.size("sliding_window_pattern")
    if period < 1:
        raise InputError(f"{config.name}: config key 'sliding_window_pattern' must not be empty")
    return [
        "sliding_attention" if (i + 1) % period and i < layers - 1 else "full_attention"
        for i in range(layers)
    ]


def _llama_pattern(
    config: ModelConfig,
    name: str,
    family: str,
    mixers: list[Attention],
    *,
    norms: tuple[str, ...],
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: tuple[Module, ...] = (),
    allocated_first: bool,
) -> Architecture:
    hidden = config.hidden_size
    feed, feed_forward = dense_feed_forward(config, bias=mlp_bias)

    def build(mixer: Attention, indices: tuple[int, ...]) -> LayerGroup:
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(hidden, mixer, qkv_bias=qkv_bias, o_bias=o_bias, qk_norm=qk_norm),
                *feed,
                *(module for each in norms for module in common.norm(each, hidden)),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    tied = common.tied(config)
    rope = common.rope_cache(
        config, mixers[0].head_size, max_position=config.size("max_position_embeddings", 8192)
    )
    return decoder(
        config,
        name=name,
        family=family,
        tied=tied,
        layers=common.group_layers(mixers, build),
        outside=common.llama_placement(
            config.vocab_size, hidden, tied=tied, rope=(rope,), head_allocated_first=allocated_first
        ),
    )
