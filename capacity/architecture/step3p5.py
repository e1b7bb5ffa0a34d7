"""Step-3.5.

Source: vllm/model_executor/models/step3p5.py (0.26.0): sliding layers take the head counts of
`attention_other_setting`;
q and k norms per head, with `use_head_wise_attn_gate` a gate per head; sparse layers by `moe_layers_enum`, an
fp32 router
with an fp32 bias and a shared expert; Llama's stages, never tied; the config's own window reaches no other
layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    decoder,
    dense_feed_forward,
    grouped_attention,
    layer_kinds,
    moe_feed_forward,
)
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    FeedForward,
    LayerGroup,
    Linear,
    Module,
    Placed,
    Shard,
    Tensor,
)
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def step3p5(config: ModelConfig, release: Release) -> Architecture:
    """Step3p5ForCausalLM."""
    del release
    hidden, layers = config.hidden_size, config.num_hidden_layers
    kinds = layer_kinds(config, ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)])
    sparse = _sparse_layers(config)

    def build(kind: tuple[str, bool], indices: tuple[int, ...]) -> LayerGroup:
        layer_type, is_sparse = kind
        mixer = _attention(config, layer_type)
        gate: tuple[Module, ...] = ()
        if config.boolean("use_head_wise_attn_gate", False):
            gate = (
                Linear(
                    name="self_attn.g_proj", inputs=hidden, outputs=(mixer.num_heads,), shard=Shard.COLUMN
                ),
            )
        feed_forward: FeedForward
        feed, feed_forward = _experts(config) if is_sparse else dense_feed_forward(config)
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(
                    hidden,
                    mixer,
                    qkv_bias=config.boolean("attention_bias", False),
                    qk_norm=common.head_norms(mixer.head_size),
                ),
                *gate,
                *feed,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    return decoder(
        config,
        name="Step3p5ForCausalLM",
        family="step3p5",
        layers=common.group_layers([(kinds[i], i in sparse) for i in range(layers)], build),
        outside=common.llama_placement(
            config.vocab_size, hidden, tied=False, head_allocated_first=False, rope=_caches(config, kinds)
        ),
    )


def _sparse_layers(config: ModelConfig) -> frozenset[int]:
    """A comma string of layer numbers, or every layer but the first."""
    text = config.get("moe_layers_enum")
    if text is None:
        return frozenset(range(1, config.num_hidden_layers))
    try:
        return frozenset(int(part) for part in str(text).strip().split(","))
    except ValueError:
        raise InputError(
            f"{config.name}: config key 'moe_layers_enum' must be a comma-separated list"
        ) from None


def _attention(config: ModelConfig, layer_type: str) -> Attention:
    other = config.get("attention_other_setting")
    heads, kv_heads, size = config.num_attention_heads, config.size("num_attention_groups"), config.head_dim
    if isinstance(other, Mapping) and other.get("attention_type") == layer_type:
        part = config.sub("attention_other_setting")
        heads = part.size("num_attention_heads", heads)
        kv_heads = part.size("num_attention_groups", kv_heads)
        size = part.size("head_dim", size)
    window = config.integer("sliding_window", 0) or None
    return grouped_attention(
        config,
        size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        qk_norm=True,
        sliding_window=window if layer_type == "sliding_attention" else None,
    )


def _caches(config: ModelConfig, kinds: tuple[str, ...]) -> tuple[Placed, ...]:
    """One cache per rotated share, base and scaling; base and share are numbers or lists by layer
    (:300-350).
    """
    theta, shares = config.get("rope_theta", 10000), config.get("partial_rotary_factors") or []
    scaling, scaled_types = config.get("rope_scaling"), config.get("yarn_only_types")
    seen: dict[Any, Tensor] = {}
    caches = []
    for i, kind in enumerate(kinds):
        base = theta[i] if isinstance(theta, list) and i < len(theta) else theta
        share = shares[i] if isinstance(shares, list) and i < len(shares) else 1.0
        block: dict[str, Any] = {"rope_type": "default"}
        scaled = isinstance(scaling, Mapping) and not (scaled_types and kind not in scaled_types)
        if scaled and isinstance(scaling, Mapping):
            block.update(scaling)
        size = _attention(config, kind).head_size
        key = (base, share, scaled, size)
        if key not in seen:
            seen[key] = common.rope_cache(
                config,
                size,
                parameters={**block, "partial_rotary_factor": share},
                name=f"rotary_emb.{len(seen)}.cos_sin_cache",
            )
        caches.append(seen[key])
    return common.caches_by_layer(caches)


def _experts(config: ModelConfig) -> tuple[tuple[Module, ...], FeedForward]:
    count = config.size("moe_num_experts")
    modules, feed_forward = moe_feed_forward(
        config,
        num_experts=count,
        top_k=config.size("moe_top_k"),
        intermediate_size=config.size("moe_intermediate_size"),
        shared=config.size("share_expert_dim"),
        prefix="moe",
        shared_name="share_expert",
        gate_dtype="float32",
    )
    return (*modules, Tensor(name="moe.router_bias", shape=(count,), dtype="float32")), feed_forward
