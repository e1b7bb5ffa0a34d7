"""Llama-Nemotron (DeciLM): a block config per layer, with layers that have no attention or no MLP.

Source: vllm/model_executor/models/nemotron_nas.py (0.26.0): KV heads are heads // n_heads_in_group, the MLP's
width comes from
`ffn_mult` (:69-85) or `intermediate_size`; a skipped attention or MLP has no norm either; Llama's stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import config_head_dim, decoder, dense_feed_forward, grouped_attention
from vllm_capacity.architecture.modules import Architecture, FeedForward, LayerGroup, Mixer, Module
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release
from vllm_capacity.units import round_up


def decilm(config: ModelConfig, release: Release) -> Architecture:
    """DeciLMForCausalLM."""
    del release
    hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    blocks = config.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) < layers:
        raise InputError(f"{config.name}: config key 'block_configs' must have one entry per layer")
    bias = config.boolean("attention_bias", False) or config.boolean("bias", False)
    qkv_bias = config.boolean("qkv_bias", False) if "qkv_bias" in config.text else bias
    size = config_head_dim(config)

    def build(kind: tuple[int, int], indices: tuple[int, ...]) -> LayerGroup:
        kv_heads, width = kind
        modules: tuple[Module, ...] = ()
        mixers: tuple[Mixer, ...] = ()
        feed_forward: FeedForward | None = None
        if kv_heads:
            mixer = grouped_attention(
                config, size, num_kv_heads=kv_heads, sliding_window=common.cache_sliding_window(config)
            )
            mixers = (mixer,)
            modules += (
                *common.attention_modules(hidden, mixer, qkv_bias=qkv_bias, o_bias=bias),
                *common.norm("input_layernorm", hidden),
            )
        if width:
            feed, feed_forward = dense_feed_forward(config, width, bias=config.boolean("mlp_bias", False))
            modules += (*feed, *common.norm("post_attention_layernorm", hidden))
        return LayerGroup(indices=indices, modules=modules, mixers=mixers, feed_forward=feed_forward)

    kinds = [(_kv_heads(config, block, heads), _width(config, block)) for block in blocks[:layers]]
    with_attention = [i for i, (kv_heads, _) in enumerate(kinds) if kv_heads]
    tied = common.tied(config)
    cache = common.rope_cache(config, size, max_position=config.size("max_position_embeddings", 8192))
    return decoder(
        config,
        name="DeciLMForCausalLM",
        family="decilm",
        tied=tied,
        layers=common.group_layers(kinds, build),
        outside=common.llama_placement(
            config.vocab_size,
            hidden,
            tied=tied,
            head_allocated_first=True,
            rope=common.caches_at(cache, with_attention),
        ),
    )


def _part(config: ModelConfig, block: Any, name: str) -> Mapping[str, Any]:
    part = block.get(name) if isinstance(block, Mapping) else None
    if not isinstance(part, Mapping):
        raise InputError(f"{config.name}: each entry of block_configs needs an object {name!r}")
    return part


def _kv_heads(config: ModelConfig, block: Any, heads: int) -> int:
    """KV heads of a layer, 0 without attention. `replace_with_linear` layers are not modelled."""
    part = _part(config, block, "attention")
    if part.get("no_op"):
        return 0
    if part.get("replace_with_linear"):
        raise InputError(f"{config.name}: block_configs with replace_with_linear are not modelled")
    group = part.get("n_heads_in_group")
    if type(group) is not int or not 1 <= group <= heads:
        raise InputError(
            f"{config.name}: block_configs: n_heads_in_group must be from 1 to {heads}, not {group!r:.30}"
        )
    return heads // group


def _width(config: ModelConfig, block: Any) -> int:
    """The MLP's width, 0 without one: two thirds of ffn_mult x hidden, rounded up to 256
    (nemotron_nas.py:60-66).
    """
    part = _part(config, block, "ffn")
    if part.get("no_op"):
        return 0
    factor, size = part.get("ffn_mult"), part.get("intermediate_size")
    if isinstance(factor, (int, float)) and not isinstance(factor, bool) and 0 < factor < 1e6:
        return round_up(int(2 * factor * config.hidden_size / 3), 256)
    if type(size) is int and 0 < size < 1 << 40:
        return size
    raise InputError(f"{config.name}: block_configs: ffn needs a positive ffn_mult or intermediate_size")
