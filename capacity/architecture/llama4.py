"""Llama 4 (Scout, Maverick): text and vision.

Source: vllm/model_executor/models/llama4.py, mllama4.py (0.26.0): layers with rope (`no_rope_layers` 1)
attend in chunks of
`attention_chunk_size` and, with `use_qk_norm`, normalise q and k without weights in fp32; sparse layers by
`interleave_moe_layer_step`, with one shared expert of the experts' width; Llama's stages. The vision model
and the projector
are on every pipeline stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    decoder,
    dense_feed_forward,
    grouped_attention,
    moe_feed_forward,
)
from vllm_capacity.architecture.modules import Architecture, FeedForward, LayerGroup, Module, Tensor
from vllm_capacity.architecture.vision import llama4_vision, multimodal
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def llama4(config: ModelConfig, release: Release) -> Architecture:
    """Llama4ForCausalLM: the text model alone."""
    del release
    return _text(config)


def llama4_multimodal(config: ModelConfig, release: Release) -> Architecture:
    """Llama4ForConditionalGeneration."""
    return multimodal(
        llama4(config, release),
        "Llama4ForConditionalGeneration",
        llama4_vision(config),
        modalities=("image",),
    )


def _text(config: ModelConfig) -> Architecture:
    hidden, layers = config.hidden_size, config.num_hidden_layers
    roped = _roped_layers(config)
    step = config.integer("interleave_moe_layer_step", 1)
    chunk = config.integer("attention_chunk_size", 0) or None
    has_norm = config.boolean("use_qk_norm", True)

    def build(kind: tuple[bool, bool], indices: tuple[int, ...]) -> LayerGroup:
        rope, sparse = kind
        mixer = grouped_attention(
            config,
            config.size("head_dim", 128),
            chunk_size=chunk if rope else None,
            rope=rope,
            qk_norm=has_norm and rope,
        )
        norm: tuple[Module, ...] = ()
        if has_norm and rope:
            norm = (
                Tensor(
                    name="self_attn.qk_norm.weight", shape=(mixer.head_size,), dtype="float32", buffer=True
                ),
            )
        feed_forward: FeedForward
        feed, feed_forward = _sparse(config) if sparse else _dense(config)
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(hidden, mixer, qk_norm=norm),
                *feed,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    kinds = [(roped[i], step > 0 and (i + 1) % step == 0) for i in range(layers)]
    tied = common.tied(config)
    cache = common.rope_cache(config, config.size("head_dim", 128))
    outside = common.llama_placement(
        config.vocab_size,
        hidden,
        tied=tied,
        head_allocated_first=True,
        rope=common.caches_at(cache, [i for i in range(layers) if roped[i]]),
    )
    return decoder(
        config,
        name="Llama4ForCausalLM",
        family="llama4",
        tied=tied,
        layers=common.group_layers(kinds, build),
        outside=outside,
    )


def _roped_layers(config: ModelConfig) -> list[bool]:
    """`no_rope_layers` holds 1 for layers with rope; empty or absent: every fourth layer has none
    (Llama4TextConfig).
    """
    layers, given = config.num_hidden_layers, config.integers("no_rope_layers")
    if given:
        if len(given) < layers:
            raise InputError(
                f"{config.name}: config key 'no_rope_layers' has {len(given)} entries for {layers} layers"
            )
        return [bool(entry) for entry in given[:layers]]
    interval = config.size("no_rope_layer_interval", 4)
    return [(i + 1) % interval != 0 for i in range(layers)]


def _sparse(config: ModelConfig) -> tuple[tuple[Module, ...], FeedForward]:
    width = config.size("intermediate_size")
    return moe_feed_forward(
        config,
        num_experts=config.size("num_local_experts", 16),
        top_k=config.size("num_experts_per_tok", 1),
        intermediate_size=width,
        shared=width,
        prefix="feed_forward",
        gate="router",
        shared_name="shared_expert",
        shared_whole=True,
    )


def _dense(config: ModelConfig) -> tuple[tuple[Module, ...], FeedForward]:
    return dense_feed_forward(config, config.size("intermediate_size_mlp", 16384), prefix="feed_forward")
