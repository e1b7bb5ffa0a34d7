"""Gemma 4 (text): two head sizes, shared KV, per-layer inputs, an optional MoE block.

Source: vllm/model_executor/models/gemma4.py (0.26.0). Full layers have `global_head_dim` and, with
`attention_k_eq_v`, `num_global_key_value_heads` (V still has its own slice, :410-419). The last
`num_kv_shared_layers` use another layer's KV cache; they hold all weights until 0.29, only the queries'
since 0.30. Embeddings, per-layer embeddings and final norm are on every stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, grouped_attention, layer_caches, layer_kinds
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    DenseMLP,
    FeedForward,
    LayerGroup,
    Linear,
    MixtureOfExperts,
    Module,
    Placed,
    Placement,
    Shard,
    Tensor,
    VocabEmbedding,
)
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

FULL = "full_attention"
_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_MOE_NORMS = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")


def gemma4(config: ModelConfig, release: Release) -> Architecture:
    """Gemma4ForCausalLM. Without `layer_types` every sixth layer is full (Gemma4TextConfig)."""
    query_only = release.has("gemma4_shared_layers_query_only")
    hidden, layers = config.hidden_size, config.num_hidden_layers
    kinds = layer_kinds(config, ["sliding_attention" if (i + 1) % 6 else FULL for i in range(layers)])
    first_shared = layers - config.integer("num_kv_shared_layers", 0)
    inputs = config.integer("hidden_size_per_layer_input", 0)
    has_experts = config.boolean("enable_moe_block", False) or config.boolean("use_second_mlp_block", False)
    bias = config.boolean("attention_bias", False)

    def build(kind: tuple[str, bool], indices: tuple[int, ...]) -> LayerGroup:
        layer_type, shared = kind
        mixer = _attention(config, layer_type, shared)
        wide = 2 if shared and config.boolean("use_double_wide_mlp", False) else 1
        width = config.size("intermediate_size") * wide
        modules: tuple[Module, ...] = (
            *_attention_modules(hidden, mixer, bias=bias, query_only=query_only and shared),
            *common.gated_mlp(hidden, width),
            *(module for name in _NORMS for module in common.norm(name, hidden)),
        )
        feed_forward: FeedForward = DenseMLP(intermediate_size=width)
        if has_experts:
            extra, feed_forward = _experts(config, width)
            modules += extra
        if inputs:
            modules += (
                Linear(name="per_layer_input_gate", inputs=hidden, outputs=(inputs,), shard=Shard.REPLICATED),
                Linear(name="per_layer_projection", inputs=inputs, outputs=(hidden,), shard=Shard.REPLICATED),
                *common.norm("post_per_layer_input_norm", hidden),
            )
        modules += (Tensor(name="layer_scalar", shape=(1,), buffer=True),)
        return LayerGroup(indices=indices, modules=modules, mixers=(mixer,), feed_forward=feed_forward)

    tied = common.tied(config, default=True)
    caches = _caches(config, kinds)
    return decoder(
        config,
        name="Gemma4ForCausalLM",
        family="gemma4",
        tied=tied,
        layers=common.group_layers([(kinds[i], 0 < first_shared <= i) for i in range(layers)], build),
        logits_soft_cap=config.get("final_logit_softcapping") is not None,
        outside=common.place(
            embed=common.embedding(config.vocab_size, hidden),
            head=common.lm_head(config.vocab_size, hidden),
            tied=tied,
            final_norm=(*common.norm("norm", hidden), Tensor(name="normalizer", shape=(), buffer=True)),
            embed_on=Placement.EVERY,
            head_on=Placement.EVERY,
            norm_on=Placement.EVERY,
            head_allocated_first=True,
            rope=caches,
            extra=_per_layer_inputs(config, inputs),
        ),
    )


def _attention(config: ModelConfig, layer_type: str, shared: bool) -> Attention:
    full = layer_type == FULL
    kv_heads = config.num_key_value_heads
    if full and config.boolean("attention_k_eq_v", False):
        kv_heads = config.size("num_global_key_value_heads", kv_heads)
    return grouped_attention(
        config,
        _head_size(config, layer_type),
        num_kv_heads=kv_heads,
        qk_norm=True,
        shares_kv=shared,
        sliding_window=None if full else config.integer("sliding_window", 512) or None,
    )


def _attention_modules(hidden: int, mixer: Attention, *, bias: bool, query_only: bool) -> tuple[Module, ...]:
    size = mixer.head_size
    if query_only:
        width = mixer.num_heads * size
        return (
            Linear(name="self_attn.q_proj", inputs=hidden, outputs=(width,), shard=Shard.COLUMN, bias=bias),
            Linear(name="self_attn.o_proj", inputs=width, outputs=(hidden,), shard=Shard.ROW, bias=bias),
            *common.attention_scales(),
            *common.norm("self_attn.q_norm", size),
        )
    return (
        *common.attention_modules(hidden, mixer, qkv_bias=bias, o_bias=bias, qk_norm=common.head_norms(size)),
        # v_norm has no weight: its ones are a plain tensor (RMSNorm with has_weight=False)
        Tensor(name="self_attn.v_norm.weight", shape=(size,), buffer=True),
    )


def _head_size(config: ModelConfig, layer_type: str) -> int:
    size = config.size("head_dim", 256)
    return config.size("global_head_dim", size) if layer_type == FULL else size


def _caches(config: ModelConfig, kinds: tuple[str, ...]) -> tuple[Placed, ...]:
    """One cache per layer kind; each kind has its own head size."""
    placed: tuple[Placed, ...] = ()
    for kind in dict.fromkeys(kinds):
        where = tuple(i for i, other in enumerate(kinds) if other == kind)
        (cache,) = layer_caches(
            config, _head_size(config, kind), [kind], {kind: common.rope_parameters(config, kind)}
        )
        placed += (Placed(module=cache.module, placement=Placement.EVERY, layers=where),)
    return placed


def _experts(config: ModelConfig, width: int) -> tuple[tuple[Module, ...], FeedForward]:
    hidden, count = config.hidden_size, config.size("num_experts")
    key = (
        "moe_intermediate_size"
        if config.get("moe_intermediate_size") is not None
        else "expert_intermediate_size"
    )
    size = config.size(key)
    modules: tuple[Module, ...] = (
        # the router's norm has no weight either
        Tensor(name="router.norm.weight", shape=(hidden,), buffer=True),
        Tensor(name="router.scale", shape=(hidden,)),
        Tensor(name="router.root_size", shape=(), buffer=True),
        *common.router(hidden, count, name="router.proj"),
        Tensor(name="moe.per_expert_scale", shape=(count,)),
        common.experts(count, hidden, size, name="moe.experts"),
        *(module for name in _MOE_NORMS for module in common.norm(name, hidden)),
    )
    return modules, MixtureOfExperts(
        num_experts=count,
        top_k=config.size("top_k_experts"),
        hidden_size=hidden,
        intermediate_size=size,
        shared_intermediate_size=width,
    )


def _per_layer_inputs(config: ModelConfig, inputs: int) -> tuple[Placed, ...]:
    if not inputs:
        return ()
    total = inputs * config.num_hidden_layers
    modules: tuple[Module, ...] = (
        VocabEmbedding(
            name="embed_tokens_per_layer",
            rows=config.size("vocab_size_per_layer_input", config.vocab_size),
            columns=total,
        ),
        Linear(
            name="per_layer_model_projection", inputs=config.hidden_size, outputs=(total,), shard=Shard.COLUMN
        ),
        *common.norm("per_layer_projection_norm", inputs),
        *(
            Tensor(name=name, shape=(), buffer=True)
            for name in ("embed_scale_per_layer", "per_layer_input_scale", "per_layer_projection_scale")
        ),
    )
    return tuple(Placed(module=module, placement=Placement.EVERY) for module in modules)
