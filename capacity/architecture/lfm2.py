"""LFM2 and LFM2-MoE: short convolutions with attention in between.

Source: vllm/model_executor/models/lfm2.py, lfm2_moe.py (0.26.0): the embedding on every pipeline stage, its
final norm and a tied head on the last, whatever the config says about tying; the router gets the quantisation
config.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, grouped_attention, layer_kinds, plain_head_dim
from vllm_capacity.architecture.modules import (
    Architecture,
    DenseMLP,
    FeedForward,
    LayerGroup,
    MixtureOfExperts,
    Module,
    Placement,
    StateSpace,
    StateSpaceKind,
)
from vllm_capacity.architecture.state_space import short_conv_modules
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release
from vllm_capacity.units import round_up

FULL = "full_attention"


def lfm2(config: ModelConfig, release: Release) -> Architecture:
    """Lfm2ForCausalLM. Old configs give the attention layers as `full_attn_idxs` (Lfm2Config)."""
    del release
    return _lfm2(
        config, "Lfm2ForCausalLM", conv_dim=config.size("conv_dim", config.hidden_size), dense_layers=None
    )


def lfm2_moe(config: ModelConfig, release: Release) -> Architecture:
    """Lfm2MoeForCausalLM: dense before `num_dense_layers`, sparse after."""
    del release
    return _lfm2(
        config,
        "Lfm2MoeForCausalLM",
        conv_dim=config.hidden_size,
        dense_layers=config.integer("num_dense_layers", 2),
    )


def _lfm2(config: ModelConfig, name: str, *, conv_dim: int, dense_layers: int | None) -> Architecture:
    hidden, layers = config.hidden_size, config.num_hidden_layers
    indices = config.integers("full_attn_idxs")
    default = [FULL if indices is None or i in indices else "conv" for i in range(layers)]
    kinds = layer_kinds(config, default)
    mixer = grouped_attention(config, plain_head_dim(config), qk_norm=True)
    conv = StateSpace(
        kind=StateSpaceKind.SHORT_CONV, conv_kernel=config.size("conv_L_cache", 3), inner_size=conv_dim
    )
    norms = (
        *common.norm("self_attn.q_layernorm", mixer.head_size),
        *common.norm("self_attn.k_layernorm", mixer.head_size),
    )

    def build(kind: tuple[bool, bool], indices: tuple[int, ...]) -> LayerGroup:
        full, sparse = kind
        feed, feed_forward = _feed_forward(config, sparse=sparse, moe=dense_layers is not None)
        if full:
            mixing = common.attention_modules(hidden, mixer, out="out_proj", qk_norm=norms)
        else:
            mixing = short_conv_modules(conv_dim, conv, bias=config.boolean("conv_bias", False))
        return LayerGroup(
            indices=indices,
            modules=(*mixing, *feed, *common.norm("operator_norm", hidden), *common.norm("ffn_norm", hidden)),
            mixers=(mixer if full else conv,),
            feed_forward=feed_forward,
        )

    sparse = [dense_layers is not None and i >= dense_layers for i in range(layers)]
    full = [kind == FULL for kind in kinds]
    cache = common.rope_cache(
        config, mixer.head_size, max_position=config.size("max_position_embeddings", 8192)
    )
    return decoder(
        config,
        name=name,
        family="lfm2",
        tied=True,
        layers=common.group_layers(list(zip(full, sparse, strict=True)), build),
        outside=common.place(
            embed=common.embedding(config.vocab_size, hidden),
            head=common.lm_head(config.vocab_size, hidden),
            tied=True,
            final_norm=common.norm("embedding_norm", hidden),
            embed_on=Placement.EVERY,
            head_on=Placement.LAST,
            norm_on=Placement.LAST,
            head_allocated_first=True,
            rope=common.caches_at(cache, [i for i, is_full in enumerate(full) if is_full]),
        ),
    )


def _feed_forward(config: ModelConfig, *, sparse: bool, moe: bool) -> tuple[tuple[Module, ...], FeedForward]:
    hidden = config.hidden_size
    if sparse:
        count, width = config.size("num_experts", 32), config.size("moe_intermediate_size", 1792)
        bias = (
            "feed_forward.gate.e_score_correction_bias" if config.boolean("use_expert_bias", True) else None
        )
        modules = common.router(hidden, count, name="feed_forward.gate", quantised=True, correction_bias=bias)
        return (
            *modules,
            common.experts(count, hidden, width, name="feed_forward.experts"),
        ), MixtureOfExperts(
            num_experts=count,
            top_k=config.size("num_experts_per_tok", 4),
            hidden_size=hidden,
            intermediate_size=width,
        )
    width = config.size("intermediate_size") if moe else _adjusted_width(config)
    return common.gated_mlp(hidden, width, prefix="feed_forward", up="w13", down="w2"), DenseMLP(
        intermediate_size=width
    )


def _adjusted_width(config: ModelConfig) -> int:
    """Two thirds of `block_ff_dim`, scaled and rounded up, where `block_auto_adjust_ff_dim`
    (lfm2.py:61-68).
    """
    width = (
        config.size("block_ff_dim")
        if config.get("block_ff_dim") is not None
        else config.size("intermediate_size")
    )
    if not config.boolean("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    multiplier = config.get("block_ffn_dim_multiplier", 1.0)
    if isinstance(multiplier, bool) or not isinstance(multiplier, (int, float)) or not 0 < multiplier < 1000:
        raise InputError(f"{config.name}: config key 'block_ffn_dim_multiplier' must be a positive number")
    return round_up(int(multiplier * width), config.size("block_multiple_of", 256))
