"""Qwen3-MoE (Qwen3-30B-A3B, 235B-A22B, Coder-480B).

Source: vllm/model_executor/models/qwen3_moe.py (0.26.0): embedding, final norm and head on every pipeline
stage (:466-481, :578-585), the router gets the quantisation config (:172-177), a layer is sparse unless in
`mlp_only_layers` or skipped by `decoder_sparse_step` (:387-391).
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.modules import (
    Architecture,
    DenseMLP,
    FeedForward,
    LayerGroup,
    Linear,
    MixtureOfExperts,
    Module,
    Shard,
)
from vllm_capacity.architecture.qwen2 import qwen_attention
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def qwen3_moe(config: ModelConfig, release: Release) -> Architecture:
    """Qwen3MoeForCausalLM."""
    del release
    hidden, layers = config.hidden_size, config.num_hidden_layers
    head_size = config.size("head_dim") if config.get("head_dim") else hidden // config.num_attention_heads
    mixer = qwen_attention(config, head_size, head_norms=True)
    num_experts, step = config.integer("num_experts", 128), config.size("decoder_sparse_step", 1)
    dense = frozenset(config.integers("mlp_only_layers") or ())
    sparse = [i not in dense and num_experts > 0 and (i + 1) % step == 0 for i in range(layers)]
    if not any(sparse):
        raise InputError(f"{config.name}: No Qwen3MoE layer found in the model.layers.")

    def build(is_sparse: bool, indices: tuple[int, ...]) -> LayerGroup:
        modules, feed_forward = _sparse(config, num_experts) if is_sparse else _dense(config)
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(hidden, mixer, qkv_bias=config.boolean("attention_bias", False),
                                          qk_norm=common.head_norms(head_size)),
                *modules,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )  # fmt: skip

    tied = common.tied(config)
    return Architecture(
        name="Qwen3MoeForCausalLM",
        family="qwen3_moe",
        hidden_size=hidden,
        vocab_size=config.vocab_size,
        num_hidden_layers=layers,
        layers=common.group_layers(sparse, build),
        outside=common.every_stage_placement(
            config.vocab_size,
            hidden,
            tied=tied,
            rope=(
                common.rope_cache(
                    config, head_size, max_position=config.size("max_position_embeddings", 32768)
                ),
            ),
        ),
        dtype=common.checkpoint_dtype(config),
        tie_word_embeddings=tied,
    )


def _dense(config: ModelConfig) -> tuple[tuple[Module, ...], FeedForward]:
    intermediate = config.size("intermediate_size")
    return common.gated_mlp(config.hidden_size, intermediate), DenseMLP(intermediate_size=intermediate)


def _sparse(config: ModelConfig, num_experts: int) -> tuple[tuple[Module, ...], FeedForward]:
    hidden, intermediate = config.hidden_size, config.size("moe_intermediate_size", 768)
    shared = config.integer("shared_expert_intermediate_size", 0)
    modules: tuple[Module, ...] = common.router(hidden, num_experts, quantised=True)
    if shared:
        modules += (
            Linear(
                name="mlp.shared_expert_gate",
                inputs=hidden,
                outputs=(1,),
                shard=Shard.REPLICATED,
                quantised=False,
            ),
            *common.gated_mlp(hidden, shared, prefix="mlp.shared_expert"),
        )
    modules += (common.experts(num_experts, hidden, intermediate),)
    return modules, MixtureOfExperts(
        num_experts=num_experts, top_k=config.size("num_experts_per_tok", 8), hidden_size=hidden,
        intermediate_size=intermediate, shared_intermediate_size=shared,
    )  # fmt: skip
