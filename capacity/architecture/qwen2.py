"""Qwen2 and Qwen2.5 (dense text).

Source: vllm/model_executor/models/qwen2.py (0.26.0): q, k, v biases always, head size hidden // heads
whatever `head_dim` says (:149), a tied head is the embedding itself (:462-466).
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.modules import Architecture, Attention, AttentionKind, DenseMLP, LayerGroup
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def qwen2(config: ModelConfig, release: Release) -> Architecture:
    """Qwen2ForCausalLM."""
    del release
    head_size = config.hidden_size // config.num_attention_heads
    return qwen_dense(config, name="Qwen2ForCausalLM", family="qwen2", head_size=head_size, qkv_bias=True,
                      head_norms=config.boolean("qk_norm", False))  # fmt: skip


def qwen_dense(
    config: ModelConfig, *, name: str, family: str, head_size: int, qkv_bias: bool, head_norms: bool
) -> Architecture:
    """Qwen2Model with either attention (qwen2.py, qwen3.py)."""
    if config.get("dual_chunk_attention_config") is not None:
        raise InputError(
            f"{config.name}: dual_chunk_attention_config is not modelled; remove it with --hf-overrides"
        )
    hidden, intermediate = config.hidden_size, config.size("intermediate_size")
    mixer = qwen_attention(config, head_size, head_norms=head_norms)
    group = LayerGroup(
        indices=tuple(range(config.num_hidden_layers)),
        modules=(
            *common.attention_modules(hidden, mixer, qkv_bias=qkv_bias,
                                      qk_norm=common.head_norms(head_size) if head_norms else ()),
            *common.gated_mlp(hidden, intermediate),
            *common.norm("input_layernorm", hidden),
            *common.norm("post_attention_layernorm", hidden),
        ),
        mixers=(mixer,),
        feed_forward=DenseMLP(intermediate_size=intermediate),
    )  # fmt: skip
    tied = common.tied(config)
    return Architecture(
        name=name,
        family=family,
        hidden_size=hidden,
        vocab_size=config.vocab_size,
        num_hidden_layers=config.num_hidden_layers,
        layers=(group,),
        outside=common.llama_placement(
            config.vocab_size,
            hidden,
            tied=tied,
            head_allocated_first=False,
            rope=(
                common.rope_cache(
                    config, head_size, max_position=config.size("max_position_embeddings", 32768)
                ),
            ),
        ),
        dtype=common.checkpoint_dtype(config),
        tie_word_embeddings=tied,
    )


def qwen_attention(config: ModelConfig, head_size: int, *, head_norms: bool) -> Attention:
    """One mixer for all layers: transformers drops the window unless `use_sliding_window`, and vLLM refuses a
    mix.
    """
    window = None
    if config.boolean("use_sliding_window", False):
        window = config.integer("sliding_window", 4096) or None
        layers, first_sliding = config.num_hidden_layers, config.integer("max_window_layers", 28)
        kinds = config.strings("layer_types") or tuple(
            "sliding_attention" if window and i >= first_sliding else "full_attention" for i in range(layers)
        )
        if len(set(kinds)) > 1 and first_sliding != layers:
            raise InputError(
                f"{config.name}: Sliding window for some but all layers is not supported. This model uses"
                " sliding window"
                f" but `max_window_layers` = {first_sliding} is less than `num_hidden_layers` = {layers}."
            )
    return Attention(
        num_heads=config.num_attention_heads, num_kv_heads=config.num_key_value_heads, head_size=head_size,
        head_size_v=head_size, sliding_window=window, qk_norm=head_norms,
        kind=AttentionKind.DECODER if config.boolean("is_causal", True) else AttentionKind.ENCODER_ONLY,
    )  # fmt: skip
