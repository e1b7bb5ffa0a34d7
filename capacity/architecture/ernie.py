"""ERNIE 4.5, dense and MoE.

Source: vllm/model_executor/models/ernie45.py is Llama's class; ernie45_moe.py (0.26.0): an fp32 router with
an fp32 correction bias (:158-167), sparse layers by interval between a start and an end (:338-350), embedding
on the first and head on the last pipeline stage.
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
from vllm_capacity.architecture.llama import llama_like
from vllm_capacity.architecture.modules import Architecture, FeedForward, LayerGroup, Placement
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def ernie45(config: ModelConfig, release: Release) -> Architecture:
    """Ernie4_5ForCausalLM."""
    del release
    return llama_like(config, name="Ernie4_5ForCausalLM", family="ernie4_5", default_head_dim=128)


def ernie45_moe(config: ModelConfig, release: Release) -> Architecture:
    """Ernie4_5_MoeForCausalLM. Tied heads are taken from a stage that has no embedding (ernie45_moe.py:550)."""
    del release
    hidden, layers = config.hidden_size, config.num_hidden_layers
    bias = config.boolean("use_bias", False)
    mixer = grouped_attention(
        config, config_head_dim(config), sliding_window=common.cache_sliding_window(config)
    )
    num_experts = config.integer("moe_num_experts", 64)
    start, end = config.integer("moe_layer_start_index", 0), layers - 1
    if config.get("moe_layer_end_index", -1) != -1:
        end = config.integer("moe_layer_end_index")
    interval = config.size("moe_layer_interval", 1)
    uses = config.boolean("use_moe", num_experts > 0)
    sparse = [uses and (i + 1) % interval == 0 and start <= i <= end for i in range(layers)]

    def build(is_sparse: bool, indices: tuple[int, ...]) -> LayerGroup:
        feed_forward: FeedForward
        if is_sparse:
            width = config.size("moe_intermediate_size")
            feed, feed_forward = moe_feed_forward(
                config,
                num_experts=num_experts,
                top_k=config.size("moe_k", 6),
                intermediate_size=width,
                shared=config.integer("moe_num_shared_experts", 0) * width,
                gate_dtype="float32",
                correction_bias=True,
            )
        else:
            feed, feed_forward = dense_feed_forward(config, bias=bias)
        return LayerGroup(
            indices=indices,
            modules=(
                *common.attention_modules(hidden, mixer, qkv_bias=bias),
                *feed,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    tied = common.tied(config, default=True)
    rope = common.rope_cache(
        config, mixer.head_size, max_position=config.size("max_position_embeddings", 131072)
    )
    return decoder(
        config,
        name="Ernie4_5_MoeForCausalLM",
        family="ernie4_5_moe",
        tied=tied,
        # 0.28 and later say 'tie_weights'
        pp_error="AttributeError: 'PPMissingLayer' object has no attribute 'weight'" if tied else "",
        layers=common.group_layers(sparse, build),
        outside=common.place(
            embed=common.embedding(config.vocab_size, hidden),
            head=common.lm_head(config.vocab_size, hidden),
            tied=tied,
            final_norm=common.norm("norm", hidden),
            embed_on=Placement.FIRST,
            head_on=Placement.LAST,
            norm_on=Placement.LAST,
            head_allocated_first=True,
            rope=(rope,),
        ),
    )
