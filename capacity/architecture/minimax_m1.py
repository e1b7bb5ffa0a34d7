"""MiniMax-Text-01 and MiniMax-M1: linear attention with a softmax layer in between, experts in every layer.

Source: vllm/model_executor/models/minimax_text_01.py, layers/mamba/linear/minimax_linear_attn.py (0.23.0, the last release
that has them). The head is made fp32 after it is built; pipeline parallelism is not supported.
"""

from __future__ import annotations

from dataclasses import replace

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import config_head_dim, decoder, grouped_attention, moe_feed_forward
from vllm_capacity.architecture.hunyuan import per_layer
from vllm_capacity.architecture.modules import (
    Architecture,
    LayerGroup,
    Linear,
    Mixer,
    Module,
    Shard,
    StateSpace,
    StateSpaceKind,
    Tensor,
)
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def minimax_m1(config: ModelConfig, release: Release) -> Architecture:
    """MiniMaxText01ForCausalLM, MiniMaxM1ForCausalLM."""
    del release
    hidden, layers, size = config.hidden_size, config.num_hidden_layers, config_head_dim(config)
    kinds = config.integers("attn_type_list")
    if kinds is None or len(kinds) < layers or any(kind not in (0, 1) for kind in kinds):
        raise InputError(
            f"{config.name}: config key 'attn_type_list' must be 0 or 1 for each of {layers} layers"
        )
    if config.integer("shared_intermediate_size", 0):
        raise InputError(f"{config.name}: MiniMax with shared_intermediate_size is not modelled")
    softmax = grouped_attention(config, size, sliding_window=config.integer("sliding_window", 0) or None)
    heads = config.num_attention_heads
    linear = StateSpace(kind=StateSpaceKind.LINEAR_ATTENTION, num_heads=heads, head_dim=size)

    def build(kind: tuple[int, int], indices: tuple[int, ...]) -> LayerGroup:
        is_softmax, count = kind
        mixer: Mixer = softmax if is_softmax else linear
        if count < 2:
            raise InputError(f"{config.name}: MiniMax without experts is not modelled")
        experts, feed_forward = moe_feed_forward(
            config, num_experts=count, top_k=config.size("num_experts_per_tok"),
            intermediate_size=config.size("intermediate_size"), prefix="block_sparse_moe", gate_dtype="float32",
        )  # fmt: skip
        return LayerGroup(
            indices=indices,
            modules=(
                *(
                    common.attention_modules(hidden, softmax)
                    if is_softmax
                    else _linear_attention(hidden, heads, size)
                ),
                *experts,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    outside = common.llama_placement(
        config.vocab_size, hidden, tied=False, head_allocated_first=False,
        rope=(common.rope_cache(config, size, rotary_dim=config.size("rotary_dim", size)),),
    )  # fmt: skip
    head = replace(outside[-1], module=replace(common.lm_head(config.vocab_size, hidden), dtype="float32"))
    each = [(kinds[i], per_layer(config, "num_local_experts", i, 1)) for i in range(layers)]
    return decoder(
        config,
        name="MiniMaxText01ForCausalLM",
        family="minimax_m1",
        layers=common.group_layers(each, build),
        outside=(*outside[:-1], head),
        supports_pp=False,
        notes=(
            "the rope cache is counted for max_position_embeddings; vLLM makes it no longer than --max-model-len",
        ),
    )


def _linear_attention(hidden: int, heads: int, size: int) -> tuple[Module, ...]:
    """MiniMaxText01LinearAttention: a gate beside q, k, v; a norm divided by tp; decay rates outside the parameters."""
    width, prefix = heads * size, "self_attn"
    return (
        Linear(name=f"{prefix}.qkv_proj", inputs=hidden, outputs=(width, width, width), shard=Shard.COLUMN),
        Linear(name=f"{prefix}.output_gate", inputs=hidden, outputs=(width,), shard=Shard.COLUMN),
        Linear(name=f"{prefix}.out_proj", inputs=width, outputs=(hidden,), shard=Shard.ROW),
        Tensor(name=f"{prefix}.norm.weight", shape=(width,), shard_dim=0),
        Tensor(name=f"{prefix}.slope_rate", shape=(heads, 1, 1), dtype="float32", buffer=True),
    )
