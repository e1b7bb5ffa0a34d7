"""Command-R, R+, Aya (CohereForCausalLM) and Command-R7B, Command-A (Cohere2ForCausalLM): one vLLM class.

Source: vllm/model_executor/models/commandr.py (0.26.0): head size hidden // heads, `model_max_length` before
`max_position_embeddings` for the rope cache (:154-158), q and k norms [local heads, head size] (:201-204),
one norm a layer, tied embeddings asserted (:372), embedding and final norm on every pipeline stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    decoder,
    dense_feed_forward,
    grouped_attention,
    layer_kinds,
    plain_head_dim,
)
from vllm_capacity.architecture.modules import Architecture, LayerGroup, Module, Placement, Tensor
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def cohere(config: ModelConfig, release: Release) -> Architecture:
    """CohereForCausalLM: full attention everywhere."""
    del release
    return _cohere(config, ("full_attention",) * config.num_hidden_layers)


def cohere2(config: ModelConfig, release: Release) -> Architecture:
    """Cohere2ForCausalLM.

    Without `layer_types` every `sliding_window_pattern`-th layer (4th) is full (Cohere2Config).
    """
    extra = 1 if release.has("cohere_window_plus_one") else 0
    pattern = config.size("sliding_window_pattern", 4)
    layers = range(config.num_hidden_layers)
    return _cohere(
        config,
        layer_kinds(config, ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in layers]),
        extra,
    )


def _cohere(config: ModelConfig, kinds: tuple[str, ...], extra: int = 0) -> Architecture:
    """`extra` tokens more than the config's window."""
    if not common.tied(config, default=True):
        raise InputError(f"{config.name}: CohereForCausalLM needs tie_word_embeddings true (vLLM asserts it)")
    hidden, head_size = config.hidden_size, plain_head_dim(config)
    has_norms = config.boolean("use_qk_norm", False)
    window = config.integer("sliding_window", 4096) + extra or None
    elsewhere = common.cache_sliding_window(config) if len(set(kinds)) == 1 else None
    feed, feed_forward = dense_feed_forward(config)

    def build(kind: str, indices: tuple[int, ...]) -> LayerGroup:
        mixer = grouped_attention(
            config,
            head_size,
            qk_norm=has_norms,
            sliding_window=window if kind == "sliding_attention" else elsewhere,
        )
        norms: tuple[Module, ...] = (
            Tensor(name="self_attn.q_norm.weight", shape=(mixer.num_heads, head_size), shard_dim=0),
            Tensor(
                name="self_attn.k_norm.weight",
                shape=(mixer.num_kv_heads, head_size),
                shard_dim=0,
                kv_heads=mixer.num_kv_heads,
            ),
        )
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(hidden, mixer, qk_norm=norms if has_norms else ()),
                *feed,
                *common.norm("input_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    positions = config.size(
        "model_max_length" if config.get("model_max_length") else "max_position_embeddings", 8192
    )
    return decoder(
        config,
        name="CohereForCausalLM",
        family="cohere",
        tied=True,
        layers=common.group_layers(kinds, build),
        outside=common.place(
            embed=common.embedding(config.vocab_size, hidden),
            head=None,
            tied=True,
            final_norm=common.norm("norm", hidden),
            embed_on=Placement.EVERY,
            head_on=Placement.EVERY,
            norm_on=Placement.EVERY,
            rope=(common.rope_cache(config, head_size, max_position=positions),),
        ),
    )
