"""Kimi-Linear: delta attention with latent attention without rope in between.

Source: vllm/model_executor/models/kimi_linear.py (0.26.0): `linear_attn_config.kda_layers` counts from 1; the
correction bias is in the model's dtype (:93); embedding on the first and head on the last pipeline stage,
never tied.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, dense_feed_forward, moe_feed_forward
from vllm_capacity.architecture.mla import mla_mixer, mla_modules
from vllm_capacity.architecture.modules import (
    Architecture,
    FeedForward,
    LayerGroup,
    Mixer,
    Module,
    StateSpace,
    StateSpaceKind,
    Tensor,
)
from vllm_capacity.architecture.state_space import kimi_delta_modules
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def kimi_linear(config: ModelConfig, release: Release) -> Architecture:
    """KimiLinearForCausalLM."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    linear = config.sub("linear_attn_config")
    listed = linear.get("kda_layers", [])
    if not isinstance(listed, (list, tuple)) or not all(type(i) is int for i in listed):
        raise InputError(
            f"{config.name}: linear_attn_config: config key 'kda_layers' must be a list of integers"
        )
    kda = [i + 1 in listed for i in range(layers)]
    delta = StateSpace(
        kind=StateSpaceKind.KIMI_DELTA,
        conv_kernel=linear.size("short_conv_kernel_size"),
        num_heads=linear.size("num_heads"),
        head_dim=linear.size("head_dim"),
        num_key_heads=linear.size("num_heads"),
        num_value_heads=linear.size("num_heads"),
        key_head_dim=linear.size("head_dim"),
        value_head_dim=linear.size("head_dim"),
        ssm_dtype="float32",
    )
    latent = mla_mixer(config)
    if latent.q_lora_rank is not None:
        raise InputError(f"{config.name}: q_lora_rank must be null in Kimi-Linear (vLLM asserts it)")
    has_experts = config.get("num_experts") is not None
    first, step = config.integer("first_k_dense_replace", 0), config.size("moe_layer_freq", 1)

    def build(kind: tuple[bool, bool], indices: tuple[int, ...]) -> LayerGroup:
        is_delta, sparse = kind
        feed_forward: FeedForward
        mixer: Mixer = delta if is_delta else latent
        mixing: tuple[Module, ...]
        mixing = kimi_delta_modules(hidden, delta) if is_delta else mla_modules(hidden, latent, release)
        if sparse:
            width = config.size("moe_intermediate_size")
            feed, feed_forward = moe_feed_forward(
                config,
                num_experts=config.size("num_experts"),
                top_k=config.size("num_experts_per_token"),
                intermediate_size=width,
                shared=config.integer("num_shared_experts", 0) * width,
                prefix="block_sparse_moe",
            )
            feed += (
                Tensor(
                    name="block_sparse_moe.gate.e_score_correction_bias", shape=(config.size("num_experts"),)
                ),
            )
        else:
            feed, feed_forward = dense_feed_forward(config)
        return LayerGroup(
            indices=indices,
            modules=(
                *mixing,
                *feed,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    kinds = [(kda[i], has_experts and i >= first and i % step == 0) for i in range(layers)]
    return decoder(
        config,
        name="KimiLinearForCausalLM",
        family="kimi_linear",
        layers=common.group_layers(kinds, build),
        outside=common.llama_placement(config.vocab_size, hidden, tied=False, head_allocated_first=False),
    )
