"""Nemotron-H and Nemotron-3 (Nano, Super, Ultra): one mixer or one feed-forward per layer.

Source: vllm/model_executor/models/nemotron_h.py (0.26.0): `hybrid_override_pattern` has M (Mamba 2), *
(attention, no rope), - (MLP without gate) and E (experts without gate, on a latent where `moe_latent_size` is
set); embedding, final norm and an untied head on every pipeline stage; the state is fp32 unless
`mamba_ssm_cache_dtype` says otherwise (models/config.py:605-626).
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import config_head_dim, decoder, grouped_attention
from vllm_capacity.architecture.modules import (
    Architecture,
    DenseMLP,
    FeedForward,
    LayerGroup,
    Linear,
    Mixer,
    MixtureOfExperts,
    Module,
    Shard,
    StateSpace,
)
from vllm_capacity.architecture.state_space import mamba2_mixer, mamba2_modules
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

_LETTERS = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}
"""Names of layer kinds; transformers renamed two of them in 5.13."""


def nemotron_h(config: ModelConfig, release: Release) -> Architecture:
    """NemotronHForCausalLM."""
    del release
    if config.get("block_configs") is not None:
        raise InputError(f"{config.name}: block_configs with NemotronHForCausalLM are not modelled")
    hidden, pattern = config.hidden_size, layer_pattern(config)
    mamba = _mamba(config)
    attention = grouped_attention(
        config,
        config_head_dim(config),
        num_kv_heads=config.size("num_key_value_heads", 8),
        sliding_window=config.integer("sliding_window", 0) or None,
        rope=False,
    )
    widths = _mlp_widths(config, pattern)

    def build(kind: tuple[str, int], indices: tuple[int, ...]) -> LayerGroup:
        letter, width = kind
        mixers: tuple[Mixer, ...] = ()
        feed_forward: FeedForward | None = None
        modules: tuple[Module, ...]
        if letter == "M":
            mixers = (mamba,)
            modules = mamba2_modules(
                hidden,
                mamba,
                conv_bias=config.boolean("use_conv_bias", True),
                bias=config.boolean("use_bias", False),
            )
        elif letter == "*":
            mixers, modules = (attention,), common.attention_modules(hidden, attention, prefix="mixer")
        elif letter == "-":
            feed_forward = DenseMLP(intermediate_size=width, gated=False)
            modules = common.plain_mlp(hidden, width, prefix="mixer", bias=config.boolean("mlp_bias", False))
        else:
            modules, feed_forward = _experts(config)
        return LayerGroup(
            indices=indices,
            modules=(*modules, *common.norm("norm", hidden)),
            mixers=mixers,
            feed_forward=feed_forward,
        )

    return decoder(
        config,
        name="NemotronHForCausalLM",
        family="nemotron_h",
        num_layers=len(pattern),
        supports_mamba_prefix_caching=True,
        layers=common.group_layers([(letter, widths.get(i, 0)) for i, letter in enumerate(pattern)], build),
        outside=common.every_stage_placement(
            config.vocab_size, hidden, tied=False, final_norm=common.norm("norm_f", hidden)
        ),
    )


def layer_pattern(config: ModelConfig) -> str:
    """One letter per layer: `hybrid_override_pattern`, or `layers_block_type` in letters."""
    pattern = config.get("hybrid_override_pattern")
    if pattern is None:
        names = config.strings("layers_block_type")
        if names is None:
            raise InputError(f"{config.name}: config key 'hybrid_override_pattern' is missing")
        pattern = "".join(_LETTERS.get(name, "?") for name in names)
    if not isinstance(pattern, str) or not pattern or len(pattern) > 10_000:
        raise InputError(
            f"{config.name}: config key 'hybrid_override_pattern' must be a string with one letter per layer"
        )
    unknown = set(pattern) - set("M*-E")
    if unknown:
        raise InputError(
            f"{config.name}: Unsupported layer type {sorted(unknown)[0]!r} in hybrid_override_pattern"
        )
    return pattern


def _mlp_widths(config: ModelConfig, pattern: str) -> dict[int, int]:
    """`intermediate_size` is one number, or a list with one entry (for all) or one per MLP layer."""
    layers = [i for i, letter in enumerate(pattern) if letter == "-"]
    if not layers:
        return {}
    value = config.get("intermediate_size")
    if not isinstance(value, list):
        return dict.fromkeys(layers, config.size("intermediate_size"))
    sizes = config.integers("intermediate_size") or ()
    if len(sizes) == 1:
        return dict.fromkeys(layers, sizes[0])
    if len(sizes) < len(layers):
        raise InputError(
            f"{config.name}: intermediate_size has {len(sizes)} entries, there are {len(layers)} MLP layers"
        )
    return dict(zip(layers, sizes, strict=False))


def _mamba(config: ModelConfig) -> StateSpace:
    heads, size = config.size("mamba_num_heads", 128), config.size("mamba_head_dim", 64)
    return mamba2_mixer(
        config,
        inner_size=heads * size,
        state_size=config.size("ssm_state_size", 128),
        num_heads=heads,
        head_dim=size,
        n_groups=config.size("n_groups", 8),
        conv_kernel=config.size("conv_kernel", 4),
        ssm_dtype=str(config.get("mamba_ssm_cache_dtype", "float32")).removeprefix("torch."),
    )


def _experts(config: ModelConfig) -> tuple[tuple[Module, ...], MixtureOfExperts]:
    hidden, count = config.hidden_size, config.size("n_routed_experts", 8)
    latent = config.size("moe_latent_size") if config.get("moe_latent_size") is not None else None
    width, inner = config.size("moe_intermediate_size"), latent or hidden
    shared = config.integer("moe_shared_expert_intermediate_size", 0) * config.integer("n_shared_experts", 0)
    bias = config.boolean("mlp_bias", False)
    modules = common.router(
        hidden, count, name="mixer.gate", correction_bias="mixer.gate.e_score_correction_bias"
    )
    if shared:
        modules += common.plain_mlp(
            hidden, shared, prefix="mixer.shared_experts", whole_if_sequence_parallel=True
        )
    if latent:
        modules += (
            Linear(
                name="mixer.fc1_latent_proj",
                inputs=hidden,
                outputs=(latent,),
                shard=Shard.REPLICATED,
                bias=bias,
            ),
            Linear(
                name="mixer.fc2_latent_proj",
                inputs=latent,
                outputs=(hidden,),
                shard=Shard.REPLICATED,
                bias=bias,
            ),
        )
    modules += (common.experts(count, inner, width, name="mixer.experts", gated=False),)
    return modules, MixtureOfExperts(
        num_experts=count,
        top_k=config.size("num_experts_per_tok", 2),
        hidden_size=inner,
        intermediate_size=width,
        shared_intermediate_size=shared,
        gated=False,
    )
