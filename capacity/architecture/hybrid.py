"""Mamba layers beside attention: Jamba, Falcon-H1, Granite 4 hybrid.

Source: vllm/model_executor/models/jamba.py, falcon_h1.py, granitemoehybrid.py (0.26.0). Jamba and Granite
build embedding, final norm and head on every pipeline stage; Falcon-H1 the embedding on the first, norm and
head on the last. A Falcon-H1 layer has both mixers.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    config_head_dim,
    decoder,
    dense_feed_forward,
    grouped_attention,
    layer_kinds,
    moe_feed_forward,
    plain_head_dim,
)
from vllm_capacity.architecture.modules import (
    Architecture,
    DenseMLP,
    FeedForward,
    LayerGroup,
    Mixer,
    MixtureOfExperts,
    Module,
    Placement,
    StateSpace,
    StateSpaceKind,
    Tensor,
)
from vllm_capacity.architecture.state_space import mamba1_modules, mamba2_mixer, mamba2_modules
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release
from vllm_capacity.units import cdiv


def granite_hybrid(config: ModelConfig, release: Release) -> Architecture:
    """GraniteMoeHybridForCausalLM: experts and a shared MLP, each only where the config has them."""
    del release
    hidden = config.hidden_size
    kinds = [_granite_kind(config, kind) for kind in layer_kinds(config, _granite_kinds(config))]
    mamba = _granite_mamba(config)
    attention = grouped_attention(
        config, plain_head_dim(config), rope=config.get("position_embedding_type") == "rope"
    )
    feed, feed_forward = _granite_feed_forward(config)

    def build(kind: str, indices: tuple[int, ...]) -> LayerGroup:
        mixer: Mixer = mamba if kind == "mamba" else attention
        bias = config.boolean("attention_bias", False)
        mixing: tuple[Module, ...]
        if isinstance(mixer, StateSpace):
            mixing = mamba2_modules(
                hidden,
                mixer,
                prefix="mamba",
                conv_bias=config.boolean("mamba_conv_bias", True),
                bias=config.boolean("mamba_proj_bias", False),
            )
        else:
            mixing = common.attention_modules(hidden, attention, qkv_bias=bias, o_bias=bias)
        return LayerGroup(
            indices=indices,
            modules=(
                *mixing,
                *feed,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    tied = common.tied(config)
    where = tuple(i for i, kind in enumerate(kinds) if kind != "mamba")
    caches = common.caches_at(common.rope_cache(config, attention.head_size), where) if attention.rope else ()
    return decoder(
        config,
        name="GraniteMoeHybridForCausalLM",
        family="granitemoehybrid",
        tied=tied,
        layers=common.group_layers(kinds, build),
        supports_mamba_prefix_caching=True,
        outside=common.every_stage_placement(config.vocab_size, hidden, tied=tied, rope=caches),
    )


def _granite_kind(config: ModelConfig, kind: str) -> str:
    """transformers 5.13 renamed the kinds (granitemoehybrid.py:318-325)."""
    if kind in ("mamba", "linear_attention"):
        return "mamba"
    if kind in ("attention", "full_attention"):
        return "attention"
    raise InputError(f"{config.name}: config key 'layer_types' holds {kind!r}; known: attention, mamba")


def _granite_kinds(config: ModelConfig) -> Sequence[str]:
    """`layers_block_type`, the same list under its old name, or Mamba everywhere (GraniteMoeHybridConfig)."""
    return config.strings("layers_block_type") or ("mamba",) * config.num_hidden_layers


def _granite_mamba(config: ModelConfig) -> StateSpace:
    inner = config.size("mamba_expand", 2) * config.hidden_size
    heads = config.size("mamba_n_heads", 128)
    size = config.get("mamba_d_head", "auto")
    return mamba2_mixer(
        config,
        inner_size=inner,
        state_size=config.size("mamba_d_state", 256),
        num_heads=heads,
        head_dim=inner // heads if size == "auto" else config.size("mamba_d_head"),
        n_groups=config.size("mamba_n_groups", 1),
        conv_kernel=config.size("mamba_d_conv", 4),
    )


def _granite_feed_forward(config: ModelConfig) -> tuple[tuple[Module, ...], FeedForward]:
    hidden, shared = config.hidden_size, config.integer("shared_intermediate_size", 0)
    mlp = (
        common.gated_mlp(hidden, shared, prefix="shared_mlp", up="input_linear", down="output_linear")
        if shared
        else ()
    )
    if not config.integer("num_local_experts", 0):
        return mlp, DenseMLP(intermediate_size=shared)
    modules, feed_forward = moe_feed_forward(
        config,
        num_experts=config.size("num_local_experts"),
        top_k=config.size("num_experts_per_tok"),
        intermediate_size=config.size("intermediate_size"),
        prefix="block_sparse_moe",
    )
    return (*modules, *mlp), MixtureOfExperts(
        num_experts=feed_forward.num_experts,
        top_k=feed_forward.top_k,
        hidden_size=hidden,
        intermediate_size=feed_forward.intermediate_size,
        shared_intermediate_size=shared,
    )


def jamba(config: ModelConfig, release: Release) -> Architecture:
    """JambaForCausalLM: Mamba 1 with norms, experts in every `expert_layer_period`-th layer, no rope."""
    del release
    hidden, layers = config.hidden_size, config.num_hidden_layers
    period, offset = config.size("attn_layer_period", 8), config.integer("attn_layer_offset", 4)
    kinds = config.strings("layers_block_type") or tuple(
        "attention" if i % period == offset else "mamba" for i in range(layers)
    )
    step, first, num_experts = (
        config.size("expert_layer_period", 2),
        config.integer("expert_layer_offset", 1),
        config.size("num_experts", 16),
    )
    counts = config.integers("layers_num_experts") or tuple(
        num_experts if i % step == first else 1 for i in range(layers)
    )
    inner = config.size("mamba_expand", 2) * hidden
    rank = config.get("mamba_dt_rank", "auto")
    mamba = StateSpace(
        kind=StateSpaceKind.MAMBA1,
        conv_kernel=config.size("mamba_d_conv", 4),
        inner_size=inner,
        state_size=config.size("mamba_d_state", 16),
    )
    attention = grouped_attention(
        config, plain_head_dim(config), num_kv_heads=config.size("num_key_value_heads", 8), rope=False
    )

    def build(kind: tuple[str, bool], indices: tuple[int, ...]) -> LayerGroup:
        layer_type, sparse = kind
        feed_forward: FeedForward
        if sparse:
            feed, feed_forward = moe_feed_forward(
                config,
                num_experts=num_experts,
                top_k=config.size("num_experts_per_tok", 2),
                intermediate_size=config.size("intermediate_size"),
                prefix="feed_forward",
                gate="router",
            )
        else:
            feed, feed_forward = dense_feed_forward(config, prefix="feed_forward")
        if layer_type == "attention":
            mixing = common.attention_modules(hidden, attention)
        else:
            mixing = mamba1_modules(
                hidden,
                mamba,
                prefix="mamba",
                conv_bias=config.boolean("mamba_conv_bias", True),
                norms=True,
                bias=config.boolean("mamba_proj_bias", False),
                time_step_rank=cdiv(hidden, 16) if rank == "auto" else config.size("mamba_dt_rank"),
            )
        return LayerGroup(
            indices=indices,
            modules=(
                *mixing,
                *feed,
                *common.norm("input_layernorm", hidden),
                *common.norm("pre_ff_layernorm", hidden),
            ),
            mixers=(attention if layer_type == "attention" else mamba,),
            feed_forward=feed_forward,
        )

    return decoder(
        config,
        name="JambaForCausalLM",
        family="jamba",
        supports_mamba_prefix_caching=True,
        layers=common.group_layers([(kinds[i], counts[i] > 1) for i in range(layers)], build),
        outside=common.every_stage_placement(
            config.vocab_size, hidden, tied=False, final_norm=common.norm("final_layernorm", hidden)
        ),
    )


def falcon_h1(config: ModelConfig, release: Release) -> Architecture:
    """FalconH1ForCausalLM: attention and Mamba 2 side by side in every layer."""
    del release
    hidden = config.hidden_size
    inner = (
        config.size("mamba_expand", 2) * hidden
        if config.get("mamba_d_ssm") is None
        else config.size("mamba_d_ssm")
    )
    heads, groups = config.size("mamba_n_heads", 128), config.size("mamba_n_groups", 1)
    if heads and inner % heads:
        raise InputError(f"{config.name}: mamba_n_heads {heads} does not divide mamba_d_ssm {inner}")
    size = config.get("mamba_d_head", "auto")
    mamba = mamba2_mixer(
        config,
        inner_size=inner,
        state_size=config.size("mamba_d_state", 256),
        num_heads=heads,
        head_dim=inner // heads if size == "auto" else config.size("mamba_d_head"),
        n_groups=groups,
        conv_kernel=config.size("mamba_d_conv", 4),
    )
    attention = grouped_attention(config, config_head_dim(config))
    feed, feed_forward = dense_feed_forward(config, prefix="feed_forward")
    columns = groups * mamba.state_size * 2
    mup = Tensor(
        name="mamba.mup_vector",
        shape=(1, 2 * inner + heads + (columns if groups > 1 else 0)),
        shard_dim=1,
        whole_extra=columns if groups == 1 else 0,
        buffer=True,
    )
    modules = (
        *common.attention_modules(hidden, attention),
        *mamba2_modules(
            hidden,
            mamba,
            prefix="mamba",
            conv_bias=config.boolean("mamba_conv_bias", True),
            bias=config.boolean("mamba_proj_bias", False),
            gated_norm=config.boolean("mamba_rms_norm", False),
        ),
        mup,
        *feed,
        *common.norm("input_layernorm", hidden),
        *common.norm("pre_ff_layernorm", hidden),
    )
    rotary = config.size("attn_rotary_emb", attention.head_size)
    rope = {**common.rope_parameters(config), "partial_rotary_factor": rotary / attention.head_size}
    tied = common.tied(config)
    return decoder(
        config,
        name="FalconH1ForCausalLM",
        family="falcon_h1",
        tied=tied,
        supports_mamba_prefix_caching=True,
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=modules,
                mixers=(attention, mamba),
                feed_forward=feed_forward,
            ),
        ),
        outside=common.place(
            embed=common.embedding(config.vocab_size, hidden),
            head=common.lm_head(config.vocab_size, hidden),
            tied=tied,
            final_norm=common.norm("final_layernorm", hidden),
            embed_on=Placement.FIRST,
            head_on=Placement.LAST,
            norm_on=Placement.LAST,
            head_allocated_first=True,
            rope=(
                common.rope_cache(
                    config,
                    attention.head_size,
                    parameters=rope,
                    max_position=config.size("max_position_embeddings", 8192),
                ),
            ),
        ),
    )
