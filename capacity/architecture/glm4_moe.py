"""GLM-4.5, 4.6, 4.7 (Glm4MoeForCausalLM).

Source: vllm/model_executor/models/glm4_moe.py (0.26.0): the router is an fp32 nn.Linear (:141) with an fp32
correction bias, layers before `first_k_dense_replace` are dense (`moe_layer_freq` is not read, :356),
embedding on the first and head on the last pipeline stage, never tied.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    config_head_dim,
    decoder,
    dense_feed_forward,
    grouped_attention,
    moe_feed_forward,
)
from vllm_capacity.architecture.modules import Architecture, LayerGroup
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def glm4_moe(config: ModelConfig, release: Release) -> Architecture:
    """Glm4MoeForCausalLM."""
    del release
    hidden, layers = config.hidden_size, config.num_hidden_layers
    head_norms = config.boolean("use_qk_norm", False)
    mixer = grouped_attention(
        config,
        config_head_dim(config),
        num_kv_heads=config.size("num_key_value_heads", 8),
        sliding_window=common.cache_sliding_window(config),
        qk_norm=head_norms,
    )
    has_experts = config.get("n_routed_experts") is not None
    first = config.integer("first_k_dense_replace", 1)

    def build(sparse: bool, indices: tuple[int, ...]) -> LayerGroup:
        if sparse:
            modules, feed_forward = moe_feed_forward(
                config,
                num_experts=config.size("n_routed_experts"),
                top_k=config.size("num_experts_per_tok", 8),
                intermediate_size=config.size("moe_intermediate_size"),
                gate_dtype="float32",
                correction_bias=True,
                shared=config.integer("n_shared_experts", 0) * config.size("moe_intermediate_size"),
            )
        else:
            modules, feed_forward = dense_feed_forward(config)  # type: ignore[assignment]
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(
                    hidden,
                    mixer,
                    qkv_bias=config.boolean("attention_bias", False),
                    qk_norm=common.head_norms(mixer.head_size) if head_norms else (),
                ),
                *modules,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    rope = {"partial_rotary_factor": 0.5, **common.rope_parameters(config)}
    return decoder(
        config,
        name="Glm4MoeForCausalLM",
        family="glm4_moe",
        layers=common.group_layers([has_experts and i >= first for i in range(layers)], build),
        outside=common.llama_placement(
            config.vocab_size,
            hidden,
            tied=False,
            head_allocated_first=False,
            rope=(
                common.rope_cache(
                    config,
                    mixer.head_size,
                    parameters=rope,
                    max_position=config.size("max_position_embeddings", 131072),
                ),
            ),
        ),
    )
