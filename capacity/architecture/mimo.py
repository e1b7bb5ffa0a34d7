"""MiMo-7B (Qwen2's layers) and MiMo-V2: two kinds of attention with their own head counts.

Source: vllm/model_executor/models/mimo.py, mimo_v2.py (0.26.0): V2's sliding layers (`hybrid_layer_pattern`
1) take the `swa_*` fields and, with `add_swa_attention_sink_bias`, a sink per head; V heads are narrower than
K heads; sparse layers are the true entries of the list `moe_layer_freq`; the router has `moe_router_dtype`
(fp32 unless given) with its bias.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    decoder,
    dense_feed_forward,
    grouped_attention,
    moe_feed_forward,
    plain_head_dim,
)
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    FeedForward,
    LayerGroup,
    Module,
    Tensor,
)
from vllm_capacity.architecture.qwen2 import qwen_dense
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def mimo(config: ModelConfig, release: Release) -> Architecture:
    """MiMoForCausalLM; its prediction layers are not built."""
    del release
    return qwen_dense(
        config,
        name="MiMoForCausalLM",
        family="mimo",
        head_size=plain_head_dim(config),
        qkv_bias=True,
        head_norms=False,
    )


def mimo_v2(config: ModelConfig, release: Release) -> Architecture:
    """MiMoV2FlashForCausalLM and MiMoV2ForCausalLM."""
    del release
    hidden, layers = config.hidden_size, config.num_hidden_layers
    pattern = config.integers("hybrid_layer_pattern")
    if pattern is None or len(pattern) < layers:
        raise InputError(f"{config.name}: config key 'hybrid_layer_pattern' must have one entry per layer")
    frequency = config.get("moe_layer_freq")
    sparse = [
        isinstance(frequency, list) and i < len(frequency) and bool(frequency[i]) for i in range(layers)
    ]

    def build(kind: tuple[bool, bool], indices: tuple[int, ...]) -> LayerGroup:
        sliding, is_sparse = kind
        mixer = _attention(config, sliding)
        sinks: tuple[Module, ...] = ()
        if mixer.has_sinks:
            sinks = (Tensor(name="self_attn.attention_sink_bias", shape=(mixer.num_heads,), shard_dim=0),)
        feed_forward: FeedForward
        feed, feed_forward = _experts(config) if is_sparse else dense_feed_forward(config)
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(hidden, mixer, qkv_bias=config.boolean("attention_bias", False)),
                *sinks,
                *feed,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    kinds = [(pattern[i] == 1, sparse[i]) for i in range(layers)]
    tied = common.tied(config)
    return decoder(
        config,
        name="MiMoV2FlashForCausalLM",
        family="mimo_v2",
        tied=tied,
        layers=common.group_layers(kinds, build),
        outside=common.llama_placement(
            config.vocab_size,
            hidden,
            tied=False,
            head_allocated_first=False,
            rope=common.caches_by_layer([_rope(config, sliding) for sliding, _ in kinds]),
        ),
    )


def _attention(config: ModelConfig, sliding: bool) -> Attention:
    if not sliding:
        return grouped_attention(
            config,
            config.size("head_dim"),
            num_kv_heads=config.size("num_key_value_heads"),
            head_size_v=config.size("v_head_dim", config.size("head_dim")),
        )
    return grouped_attention(
        config,
        config.size("swa_head_dim"),
        num_heads=config.size("swa_num_attention_heads"),
        num_kv_heads=config.size("swa_num_key_value_heads"),
        head_size_v=config.size("swa_v_head_dim", config.size("swa_head_dim")),
        sliding_window=config.size("sliding_window_size"),
        has_sinks=config.boolean("add_swa_attention_sink_bias", False),
    )


def _rope(config: ModelConfig, sliding: bool) -> Tensor:
    theta = config.get("rope_theta", 1000000)
    block = {
        "rope_type": "default",
        "rope_theta": config.get("swa_rope_theta", theta) if sliding else theta,
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
    }
    same = config.get("swa_rope_theta", theta) == theta
    kind = "sliding" if sliding and not same else "full"
    return common.rope_cache(
        config,
        config.size("swa_head_dim" if sliding else "head_dim"),
        parameters=block,
        max_position=config.size("max_position_embeddings", 32768),
        name=f"rotary_emb.{kind}.cos_sin_cache",
    )


def _experts(config: ModelConfig) -> tuple[tuple[Module, ...], FeedForward]:
    dtype, count = str(config.get("moe_router_dtype", "float32")), config.size("n_routed_experts")
    modules, feed_forward = moe_feed_forward(
        config,
        num_experts=count,
        top_k=config.size("num_experts_per_tok"),
        intermediate_size=config.size("moe_intermediate_size"),
        gate_dtype=dtype,
    )
    return (
        *modules,
        Tensor(name="mlp.gate.e_score_correction_bias", shape=(count,), dtype=dtype),
    ), feed_forward
