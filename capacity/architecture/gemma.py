"""Gemma 1, 2 and 3 (text).

Source: vllm/model_executor/models/gemma.py, gemma2.py, gemma3.py (0.26.0): embedding and final norm on every
pipeline stage and a scalar `normalizer` beside them; Gemma 1 and 2 assert tied embeddings and build no head,
Gemma 3 builds one and drops it; Gemma 2 and 3 have four norms a layer and windows by `layer_types`; Gemma 3
normalises q and k per head and has one rope cache per layer type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, dense_feed_forward, grouped_attention, layer_caches
from vllm_capacity.architecture.modules import (
    Architecture,
    AttentionKind,
    LayerGroup,
    Module,
    Placed,
    Placement,
    Tensor,
)
from vllm_capacity.architecture.vision import multimodal, siglip_vision
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

FULL, SLIDING = "full_attention", "sliding_attention"


def gemma(config: ModelConfig, release: Release) -> Architecture:
    """GemmaForCausalLM."""
    del release
    head_size = config.size("head_dim", 256)
    return _gemma(
        config,
        "GemmaForCausalLM",
        "gemma",
        kinds=(FULL,) * config.num_hidden_layers,
        head_size=head_size,
        caches=(common.rope_cache(config, head_size),),
        norms=("input_layernorm", "post_attention_layernorm"),
    )


def gemma2(config: ModelConfig, release: Release) -> Architecture:
    """Gemma2ForCausalLM. Without `layer_types` every second layer is full (Gemma2Config, transformers)."""
    del release
    head_size = config.size("head_dim", 256)
    kinds = common_kinds(config, pattern=2)
    return _gemma(
        config,
        "Gemma2ForCausalLM",
        "gemma2",
        kinds=kinds,
        head_size=head_size,
        caches=(common.rope_cache(config, head_size),),
        norms=FOUR_NORMS,
        head=False,
    )


def gemma3(config: ModelConfig, release: Release) -> Architecture:
    """Gemma3ForCausalLM. Without `layer_types` every sixth layer is full (Gemma3TextConfig, transformers)."""
    del release
    head_size = config.size("head_dim", 256)
    kinds = common_kinds(config, pattern=config.size("sliding_window_pattern", 6))
    return _gemma(
        config,
        "Gemma3ForCausalLM",
        "gemma3",
        kinds=kinds,
        head_size=head_size,
        caches=layer_caches(config, head_size, kinds, {kind: gemma3_rope(config, kind) for kind in kinds}),
        norms=FOUR_NORMS,
        head=True,
    )


def gemma3_multimodal(config: ModelConfig, release: Release) -> Architecture:
    """Gemma3ForConditionalGeneration: a SigLIP encoder before the text model."""
    return multimodal(
        gemma3(config, release), "Gemma3ForConditionalGeneration", siglip_vision(config),
        modalities=("image",), tp_data=False,
    )  # fmt: skip


FOUR_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def common_kinds(config: ModelConfig, *, pattern: int) -> tuple[str, ...]:
    """`layer_types`, or full attention in every `pattern`-th layer."""
    kinds = config.strings("layer_types")
    layers = config.num_hidden_layers
    if kinds is None:
        return tuple(FULL if (i + 1) % pattern == 0 else SLIDING for i in range(layers))
    if len(kinds) < layers:
        raise InputError(
            f"{config.name}: config key 'layer_types' has {len(kinds)} entries for {layers} layers"
        )
    return kinds[:layers]


def gemma3_rope(config: ModelConfig, kind: str) -> Mapping[str, Any]:
    """A block per layer type, or one block for full layers and a default one for sliding layers
    (gemma3.py:176-187).
    """
    given = config.get("rope_parameters")
    if kind == SLIDING and not (isinstance(given, Mapping) and kind in given):
        return {"rope_type": "default", "rope_theta": config.get("rope_local_base_freq", 10000.0)}
    return common.rope_parameters(config, kind)


def _gemma(
    config: ModelConfig,
    name: str,
    family: str,
    *,
    kinds: tuple[str, ...],
    head_size: int,
    caches: tuple[Tensor | Placed, ...],
    norms: tuple[str, ...],
    head: bool = False,
) -> Architecture:
    hidden = config.hidden_size
    tied = common.tied(config, default=True)
    if not head and not tied:
        raise InputError(f"{config.name}: {name} needs tie_word_embeddings true (vLLM asserts it)")
    bias = config.boolean("attention_bias", False) and family != "gemma"
    causal = AttentionKind.DECODER if config.boolean("is_causal", True) else AttentionKind.ENCODER_ONLY
    has_norms = family == "gemma3"
    window = config.integer("sliding_window", 4096) or None
    # a window of the whole model reaches full layers only where all layers are of one kind
    # (engine/arg_utils.py:1888-1893)
    elsewhere = common.cache_sliding_window(config) if len(set(kinds)) == 1 else None
    feed, feed_forward = dense_feed_forward(config)

    def build(kind: str, indices: tuple[int, ...]) -> LayerGroup:
        sliding = window if kind == SLIDING else elsewhere
        mixer = grouped_attention(config, head_size, sliding_window=sliding, qk_norm=has_norms, kind=causal)
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(
                    hidden,
                    mixer,
                    qkv_bias=bias,
                    o_bias=bias,
                    qk_norm=common.head_norms(head_size) if has_norms else (),
                ),
                *feed,
                *(module for each in norms for module in common.norm(each, hidden)),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    normalizer: Module = Tensor(name="normalizer", shape=(), buffer=True)
    return decoder(
        config,
        name=name,
        family=family,
        tied=tied,
        norm_makes_residual=True,
        layers=common.group_layers(kinds, build),
        logits_soft_cap=config.get("final_logit_softcapping") is not None,
        outside=common.place(
            embed=common.embedding(config.vocab_size, hidden),
            head=common.lm_head(config.vocab_size, hidden) if head else None,
            tied=tied,
            final_norm=(*common.norm("norm", hidden), normalizer),
            embed_on=Placement.EVERY,
            head_on=Placement.EVERY,
            norm_on=Placement.EVERY,
            head_allocated_first=True,
            rope=caches,
        ),
    )
