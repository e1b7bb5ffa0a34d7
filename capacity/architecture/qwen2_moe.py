"""Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B).

Source: vllm/model_executor/models/qwen2_moe.py (0.26.0): head size hidden // heads (:214), q, k, v biases
always, a layer is sparse unless in `mlp_only_layers` or skipped by `decoder_sparse_step` (:298-310), the
shared expert's gate is unquantised and there even without a shared expert (:131-151), embedding and head on
every pipeline stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    decoder,
    dense_feed_forward,
    moe_feed_forward,
    plain_head_dim,
)
from vllm_capacity.architecture.modules import Architecture, LayerGroup
from vllm_capacity.architecture.qwen2 import qwen_attention
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def qwen2_moe(config: ModelConfig, release: Release) -> Architecture:
    """Qwen2MoeForCausalLM."""
    del release
    if config.get("dual_chunk_attention_config") is not None:
        raise InputError(
            f"{config.name}: dual_chunk_attention_config is not modelled; remove it with --hf-overrides"
        )
    hidden, layers = config.hidden_size, config.num_hidden_layers
    mixer = qwen_attention(config, plain_head_dim(config), head_norms=False)
    num_experts, step = config.integer("num_experts", 60), config.size("decoder_sparse_step", 1)
    dense_layers = frozenset(config.integers("mlp_only_layers") or ())
    sparse = [i not in dense_layers and num_experts > 0 and (i + 1) % step == 0 for i in range(layers)]

    def build(is_sparse: bool, indices: tuple[int, ...]) -> LayerGroup:
        if is_sparse:
            modules, feed_forward = moe_feed_forward(
                config,
                num_experts=num_experts,
                top_k=config.size("num_experts_per_tok", 4),
                intermediate_size=config.size("moe_intermediate_size", 1408),
                shared=config.integer("shared_expert_intermediate_size", 5632),
                shared_name="shared_expert",
                shared_gate="shared_expert_gate",
            )
        else:
            modules, feed_forward = dense_feed_forward(config)  # type: ignore[assignment]
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(hidden, mixer, qkv_bias=True),
                *modules,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    tied = common.tied(config)
    return decoder(
        config,
        name="Qwen2MoeForCausalLM",
        family="qwen2_moe",
        tied=tied,
        layers=common.group_layers(sparse, build),
        outside=common.every_stage_placement(
            config.vocab_size,
            hidden,
            tied=tied,
            rope=(
                common.rope_cache(
                    config, mixer.head_size, max_position=config.size("max_position_embeddings", 8192)
                ),
            ),
        ),
    )
