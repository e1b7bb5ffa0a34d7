"""GLM-4 dense (GlmForCausalLM: glm-4-9b-hf; Glm4ForCausalLM: GLM-4-9B/32B-0414).

Source: vllm/model_executor/models/glm.py is Llama's class with half of each head rotated and o_proj's bias
dropped after construction; glm4.py (0.26.0): q, k, v biases by `attention_bias`, none on o_proj, four norms a
layer, half of each head rotated unless the config says otherwise.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import config_head_dim, decoder, dense_feed_forward, grouped_attention
from vllm_capacity.architecture.modules import Architecture, LayerGroup
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

_NORMS = ("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")


def glm4(config: ModelConfig, release: Release) -> Architecture:
    """Glm4ForCausalLM."""
    del release
    return _glm(config, "Glm4ForCausalLM", "glm4", norms=_NORMS, head_allocated_first=False)


def glm(config: ModelConfig, release: Release) -> Architecture:
    """GlmForCausalLM."""
    del release
    return _glm(config, "GlmForCausalLM", "glm", norms=_NORMS[:2], head_allocated_first=True)


def _glm(
    config: ModelConfig, name: str, family: str, *, norms: tuple[str, ...], head_allocated_first: bool
) -> Architecture:
    hidden = config.hidden_size
    mixer = grouped_attention(
        config, config_head_dim(config), sliding_window=common.cache_sliding_window(config)
    )
    feed, feed_forward = dense_feed_forward(config)
    modules = (
        *common.attention_modules(hidden, mixer, qkv_bias=config.boolean("attention_bias", False)),
        *feed,
        *(module for each in norms for module in common.norm(each, hidden)),
    )
    rope = dict(common.rope_parameters(config))
    if family == "glm":
        rope["partial_rotary_factor"] = 0.5
    rope.setdefault("partial_rotary_factor", 0.5)
    tied = common.tied(config)
    return decoder(
        config,
        name=name,
        family=family,
        tied=tied,
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=modules,
                mixers=(mixer,),
                feed_forward=feed_forward,
            ),
        ),
        outside=common.llama_placement(
            config.vocab_size,
            hidden,
            tied=tied,
            head_allocated_first=head_allocated_first,
            rope=(common.rope_cache(config, mixer.head_size, parameters=rope),),
        ),
    )
