"""Llama and the many models that vLLM runs with its class (Llama 2/3, Yi, InternLM3, TeleChat3, Xverse,
Aquila, CWM).

Source: vllm/model_executor/models/llama.py (0.26.0; the same modules in all releases read).
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    AttentionKind,
    DenseMLP,
    LayerGroup,
    Module,
)
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def llama(config: ModelConfig, release: Release) -> Architecture:
    """LlamaForCausalLM."""
    del release
    return llama_like(config, name="LlamaForCausalLM", family="llama")


def llama_like(
    config: ModelConfig,
    *,
    name: str,
    family: str,
    default_window: int | None = None,
    head_norms: bool = False,
    default_head_dim: int | None = None,
    default_kv_heads: int | None = None,
    extra_layer_modules: tuple[Module, ...] = (),
) -> Architecture:
    """The pattern of models/llama.py; arguments give what other classes and HF defaults change."""
    hidden, heads, layers = config.hidden_size, config.num_attention_heads, config.num_hidden_layers
    kv_heads = _kv_heads(config, default_kv_heads)
    head_size = config.size("head_dim") if config.get("head_dim") else default_head_dim or hidden // heads
    intermediate = config.size("intermediate_size")
    # llama.py:265-275: `qkv_bias` overrides `attention_bias` for q, k, v but not for the output
    bias = config.boolean("attention_bias", False) or config.boolean("bias", False)
    qkv_bias = config.boolean("qkv_bias", False) if "qkv_bias" in config.text else bias
    mlp_bias = config.boolean("mlp_bias", False)
    window = common.cache_sliding_window(config, default=default_window)
    kinds = common.layer_windows(config, window)
    kind = AttentionKind.DECODER if config.boolean("is_causal", True) else AttentionKind.ENCODER_ONLY

    def build(layer_window: int | None, indices: tuple[int, ...]) -> LayerGroup:
        mixer = Attention(num_heads=heads, num_kv_heads=kv_heads, head_size=head_size, head_size_v=head_size,
                          sliding_window=layer_window, kind=kind, qk_norm=head_norms)  # fmt: skip
        modules = (
            *common.attention_modules(hidden, mixer, qkv_bias=qkv_bias, o_bias=bias,
                                      qk_norm=common.head_norms(head_size) if head_norms else ()),
            *common.gated_mlp(hidden, intermediate, bias=mlp_bias),
            *common.norm("input_layernorm", hidden),
            *common.norm("post_attention_layernorm", hidden),
            *extra_layer_modules,
        )  # fmt: skip
        return LayerGroup(indices=indices, modules=modules, mixers=(mixer,),
                          # models/llama.py: LlamaMLP.forward (0.26.0) overwrites x three times
                          feed_forward=DenseMLP(intermediate_size=intermediate, frees_gate_up=True))  # fmt: skip

    tied = common.tied(config)
    return Architecture(
        name=name,
        family=family,
        hidden_size=hidden,
        vocab_size=config.vocab_size,
        num_hidden_layers=layers,
        layers=common.group_layers(kinds, build),
        outside=common.llama_placement(
            config.vocab_size,
            hidden,
            tied=tied,
            head_allocated_first=True,
            rope=(
                common.rope_cache(
                    config, head_size, max_position=config.size("max_position_embeddings", 8192)
                ),
            ),
        ),
        dtype=common.checkpoint_dtype(config),
        tie_word_embeddings=tied,
    )


def _kv_heads(config: ModelConfig, default: int | None) -> int:
    if default is not None and "num_key_value_heads" not in config.text:
        return default
    kv_heads = config.num_key_value_heads
    if config.num_attention_heads % kv_heads:
        raise InputError(
            f"{config.name}: num_attention_heads {config.num_attention_heads} is not a multiple of"
            f" num_key_value_heads {kv_heads}"
        )
    return kv_heads
