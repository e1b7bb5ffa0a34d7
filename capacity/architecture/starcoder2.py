"""StarCoder2 with vLLM's own class (to 0.24; later releases use the Transformers backend).

Source: vllm/model_executor/models/starcoder2.py (0.24.0): biases by `use_bias`, LayerNorms, an MLP without
gate, embedding and
final norm on every pipeline stage, an untied head on every stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, grouped_attention, plain_head_dim
from vllm_capacity.architecture.modules import Architecture, DenseMLP, LayerGroup
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def starcoder2(config: ModelConfig, release: Release) -> Architecture:
    """Starcoder2ForCausalLM."""
    del release
    hidden, width, bias = (
        config.hidden_size,
        config.size("intermediate_size"),
        config.boolean("use_bias", True),
    )
    mixer = grouped_attention(
        config, plain_head_dim(config), sliding_window=common.cache_sliding_window(config)
    )
    modules = (
        *common.attention_modules(hidden, mixer, qkv_bias=bias, o_bias=bias),
        *common.plain_mlp(hidden, width, bias=bias, up="c_fc", down="c_proj"),
        *common.norm("input_layernorm", hidden, bias=True),
        *common.norm("post_attention_layernorm", hidden, bias=True),
    )
    tied = common.tied(config, default=True)
    layers = (
        LayerGroup(
            indices=tuple(range(config.num_hidden_layers)),
            modules=modules,
            mixers=(mixer,),
            feed_forward=DenseMLP(intermediate_size=width, gated=False),
        ),
    )
    return decoder(
        config,
        name="Starcoder2ForCausalLM",
        family="starcoder2",
        tied=tied,
        layers=layers,
        outside=common.every_stage_placement(
            config.vocab_size,
            hidden,
            tied=tied,
            head_allocated_first=False,
            rope=(common.rope_cache(config, mixer.head_size),),
            final_norm=common.norm("norm", hidden, bias=True),
        ),
    )
