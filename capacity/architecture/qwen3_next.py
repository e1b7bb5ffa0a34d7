"""Qwen3-Next and the text models of Qwen3.5 and 3.6: gated delta nets with full attention in between.

Source: vllm/model_executor/models/qwen3_next.py, qwen3_5.py (0.26.0): the query projection also yields an
output gate unless `attn_output_gate` is false, q and k norms per head; Qwen3-Next: embedding and head on
every pipeline stage, final norm on the last, never tied; Qwen3.5: every layer sparse or none, embedding on
every stage, head on the last, tied by config.
"""

from __future__ import annotations

from dataclasses import replace

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    config_head_dim,
    decoder,
    dense_feed_forward,
    grouped_attention,
    layer_kinds,
    moe_feed_forward,
)
from vllm_capacity.architecture.modules import (
    Architecture,
    FeedForward,
    LayerGroup,
    Mixer,
    Module,
    Placed,
    Placement,
    QkvLinear,
    Tensor,
)
from vllm_capacity.architecture.state_space import gated_delta_modules, gated_delta_net
from vllm_capacity.architecture.vision import multimodal, positions_once, qwen3_vision
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

LINEAR, FULL = "linear_attention", "full_attention"


def qwen3_next(config: ModelConfig, release: Release) -> Architecture:
    """Qwen3NextForCausalLM."""
    del release
    num_experts, step = config.integer("num_experts", 512), config.size("decoder_sparse_step", 1)
    dense = frozenset(config.integers("mlp_only_layers") or ())
    sparse = [
        i not in dense and num_experts > 0 and (i + 1) % step == 0 for i in range(config.num_hidden_layers)
    ]
    return decoder(
        config,
        name="Qwen3NextForCausalLM",
        family="qwen3_next",
        norm_makes_residual=True,
        layers=hybrid_layers(config, sparse, interleaved=True, num_experts=num_experts),
        outside=common.every_stage_placement(
            config.vocab_size,
            config.hidden_size,
            tied=False,
            norm_on=Placement.LAST,
            rope=hybrid_rope(config),
        ),
    )


def qwen3_5(config: ModelConfig, release: Release) -> Architecture:
    """Qwen3_5ForCausalLM: the dense text model."""
    return positions_once(qwen3_5_text(config, sparse=False, name="Qwen3_5ForCausalLM"), config, release)


def qwen3_5_moe(config: ModelConfig, release: Release) -> Architecture:
    """Qwen3_5MoeForCausalLM: every layer is sparse."""
    return positions_once(qwen3_5_text(config, sparse=True, name="Qwen3_5MoeForCausalLM"), config, release)


def qwen3_5_multimodal(config: ModelConfig, release: Release) -> Architecture:
    """Qwen3_5ForConditionalGeneration: Qwen3-VL's encoder before the dense text model."""
    return multimodal(qwen3_5(config, release), "Qwen3_5ForConditionalGeneration", qwen3_vision(config))


def qwen3_5_moe_multimodal(config: ModelConfig, release: Release) -> Architecture:
    """Qwen3_5MoeForConditionalGeneration."""
    return multimodal(
        qwen3_5_moe(config, release), "Qwen3_5MoeForConditionalGeneration", qwen3_vision(config)
    )


def qwen3_5_text(config: ModelConfig, *, sparse: bool, name: str) -> Architecture:
    """The language model of Qwen3.5 and 3.6.

    `mamba_ssm_dtype` gives the state's dtype (models/config.py:740-765).
    """
    tied = common.tied(config)
    ssm_dtype = config.get("mamba_ssm_dtype")
    method = str((config.quantization or {}).get("quant_method", ""))
    return decoder(
        config,
        name=name,
        family="qwen3_5",
        tied=tied,
        norm_makes_residual=True,
        layers=hybrid_layers(
            config,
            [sparse] * config.num_hidden_layers,
            interleaved=False,
            num_experts=config.integer("num_experts", 0),
            whole_ba=_is_marlin_group(method),
            ssm_dtype=str(ssm_dtype) if ssm_dtype else None,
        ),
        outside=common.place(
            embed=common.embedding(config.vocab_size, config.hidden_size),
            head=common.lm_head(config.vocab_size, config.hidden_size),
            tied=tied,
            final_norm=common.norm("norm", config.hidden_size),
            embed_on=Placement.EVERY,
            head_on=Placement.LAST,
            norm_on=Placement.LAST,
            rope=hybrid_rope(config),
        ),
    )


def _is_marlin_group(method: str) -> bool:
    """Methods that vLLM serves with AutoAWQConfig, AutoGPTQConfig or INCConfig."""
    return method in (
        "awq",
        "awq_marlin",
        "auto_awq",
        "gptq",
        "gptq_marlin",
        "auto_gptq",
        "inc",
        "auto-round",
        "auto_round",
    )


def hybrid_rope(config: ModelConfig) -> tuple[Placed, ...]:
    """One cache where full attention is; partial rotation, M-RoPE rows with `mrope_section`."""
    where = [i for i, kind in enumerate(hybrid_kinds(config)) if kind == FULL]
    return common.caches_at(common.rope_cache(config, config_head_dim(config)), where)


def hybrid_kinds(config: ModelConfig) -> tuple[str, ...]:
    """`layer_types`, or full attention in every `full_attention_interval`-th layer (4th; Qwen3NextConfig)."""
    interval = config.size("full_attention_interval", 4)
    return layer_kinds(
        config, [LINEAR if (i + 1) % interval else FULL for i in range(config.num_hidden_layers)]
    )


def hybrid_layers(
    config: ModelConfig,
    sparse: list[bool],
    *,
    interleaved: bool,
    num_experts: int,
    whole_ba: bool = False,
    ssm_dtype: str | None = None,
) -> tuple[LayerGroup, ...]:
    """Linear and full attention by layer, each with a sparse or a dense feed-forward."""
    hidden, kinds = config.hidden_size, hybrid_kinds(config)
    gate = config.boolean("attn_output_gate", True)
    scale = config.boolean("layer_scale", False)

    def build(kind: tuple[str, bool], indices: tuple[int, ...]) -> LayerGroup:
        layer_type, is_sparse = kind
        feed, feed_forward = _feed_forward(config, is_sparse, num_experts)
        mixer: Mixer
        mixing: tuple[Module, ...]
        if layer_type == LINEAR:
            mixer = gated_delta_net(config, ssm_dtype=ssm_dtype)
            mixing = gated_delta_modules(hidden, mixer, interleaved=interleaved, whole_ba=whole_ba)
        elif layer_type == FULL:
            mixer = grouped_attention(config, config_head_dim(config), qk_norm=True)
            qkv, *rest = common.attention_modules(
                hidden,
                mixer,
                qkv_bias=config.boolean("qkv_bias", False),
                qk_norm=common.head_norms(mixer.head_size),
            )
            assert isinstance(qkv, QkvLinear)
            mixing = (replace(qkv, num_heads=qkv.num_heads * (1 + gate)), *rest)
        else:
            raise InputError(f"{config.name}: Invalid layer_type {layer_type}")
        scales = (
            tuple(Tensor(name=f"{name}_layer_scale", shape=(1, 1, hidden)) for name in ("attn", "ffn"))
            if scale
            else ()
        )
        return LayerGroup(
            indices=indices,
            modules=(
                *mixing,
                *feed,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
                *scales,
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    return common.group_layers(list(zip(kinds, sparse, strict=True)), build)


def _feed_forward(
    config: ModelConfig, sparse: bool, num_experts: int
) -> tuple[tuple[Module, ...], FeedForward]:
    if not sparse:
        return dense_feed_forward(config)
    return moe_feed_forward(
        config,
        num_experts=num_experts,
        top_k=config.size("num_experts_per_tok"),
        intermediate_size=config.size("moe_intermediate_size"),
        shared=config.integer("shared_expert_intermediate_size", 0),
        shared_name="shared_expert",
        shared_gate="shared_expert_gate",
        shared_whole=True,
    )
