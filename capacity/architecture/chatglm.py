"""ChatGLM2, ChatGLM3 and glm-4-9b in their original format.

Source: vllm/model_executor/models/chatglm.py (0.26.0): `multi_query_group_num` KV heads with
`multi_query_attention`, half of each head rotated, a rope cache of `seq_length` rows (:103-118),
`padded_vocab_size` rows, embedding, final norm and head on every pipeline stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, grouped_attention, plain_head_dim
from vllm_capacity.architecture.modules import Architecture, DenseMLP, LayerGroup
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def chatglm(config: ModelConfig, release: Release) -> Architecture:
    """ChatGLMForCausalLM."""
    del release
    hidden, heads, layers = config.hidden_size, config.num_attention_heads, config.size("num_layers", 28)
    width = config.size("ffn_hidden_size", 13696)
    bias = config.boolean("add_bias_linear", False)
    grouped = config.boolean("multi_query_attention", False)
    mixer = grouped_attention(
        config,
        plain_head_dim(config),
        num_kv_heads=config.size("multi_query_group_num", 1) if grouped else heads,
    )
    norm_bias = not config.boolean("rmsnorm", True)
    modules = (
        *common.norm("input_layernorm", hidden, bias=norm_bias),
        *common.attention_modules(
            hidden,
            mixer,
            prefix="self_attention",
            qkv="query_key_value",
            out="dense",
            qkv_bias=bias or config.boolean("add_qkv_bias", False),
            o_bias=bias,
        ),
        *common.norm("post_attention_layernorm", hidden, bias=norm_bias),
        *common.gated_mlp(hidden, width, bias=bias, up="dense_h_to_4h", down="dense_4h_to_h"),
    )
    rows = config.size("padded_vocab_size", 65024)
    rope = common.rope_cache(
        config,
        mixer.head_size,
        max_position=config.size("seq_length", 8192),
        parameters={"rope_type": "default", "partial_rotary_factor": 0.5},
    )
    tied = common.tied(config)
    final = (
        common.norm("final_layernorm", hidden, bias=norm_bias)
        if config.boolean("post_layer_norm", True)
        else ()
    )
    return decoder(
        config,
        name="ChatGLMForCausalLM",
        family="chatglm",
        tied=tied,
        num_layers=layers,
        vocab_size=rows,
        layers=(
            LayerGroup(
                indices=tuple(range(layers)),
                modules=modules,
                mixers=(mixer,),
                feed_forward=DenseMLP(intermediate_size=width),
            ),
        ),
        outside=common.every_stage_placement(rows, hidden, tied=tied, rope=(rope,), final_norm=final),
    )
