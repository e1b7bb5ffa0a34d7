"""gpt-oss.

Source: vllm/model_executor/models/gpt_oss.py (0.26.0): biases on every projection, router and expert, one
attention sink per query head, an fp32 YaRN cache (:91), windows by `layer_types`, embedding, final norm and
head on every pipeline stage, never tied.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, grouped_attention, layer_kinds, moe_feed_forward
from vllm_capacity.architecture.modules import Architecture, LayerGroup, Tensor
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def gpt_oss(config: ModelConfig, release: Release) -> Architecture:
    """GptOssForCausalLM. Without `layer_types`, even layers slide (GptOssConfig, transformers)."""
    del release
    hidden, heads, layers = config.hidden_size, config.num_attention_heads, config.num_hidden_layers
    head_size = config.size("head_dim", 64)
    experts, feed_forward = moe_feed_forward(
        config,
        num_experts=config.size("num_local_experts"),
        top_k=config.size("num_experts_per_tok", 4),
        intermediate_size=config.size("intermediate_size"),
        gate="router",
        gate_bias=True,
        expert_bias=True,
    )
    window = config.integer("sliding_window", 128) or None
    kinds = layer_kinds(config, ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)])

    def build(kind: str, indices: tuple[int, ...]) -> LayerGroup:
        mixer = grouped_attention(
            config,
            head_size,
            num_kv_heads=config.size("num_key_value_heads", 8),
            has_sinks=True,
            sliding_window=window if kind == "sliding_attention" else None,
        )
        return LayerGroup(
            indices=indices,
            modules=(
                Tensor(name="attn.sinks", shape=(heads,), shard_dim=0),
                *common.attention_modules(hidden, mixer, prefix="attn", qkv_bias=True, o_bias=True),
                *experts,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    rope = {**common.rope_parameters(config), "rope_type": "yarn"}
    return decoder(
        config,
        name="GptOssForCausalLM",
        family="gpt_oss",
        layers=common.group_layers(kinds, build),
        outside=common.every_stage_placement(
            config.vocab_size,
            hidden,
            tied=False,
            rope=(common.rope_cache(config, head_size, parameters=rope, dtype="float32"),),
        ),
    )
