"""What nearly every decoder-only family repeats: head counts with checks, feed-forwards, the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_capacity.architecture import common
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    DenseMLP,
    LayerGroup,
    Linear,
    MixtureOfExperts,
    Module,
    Placed,
    Shard,
    Tensor,
)
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig


def decoder(
    config: ModelConfig,
    *,
    name: str,
    family: str,
    layers: tuple[LayerGroup, ...],
    outside: tuple[Placed, ...],
    tied: bool = False,
    num_layers: int | None = None,
    **facts: Any,
) -> Architecture:
    """An `Architecture` with the fields that come straight from the config; `facts` are its other fields."""
    facts.setdefault("vocab_size", config.get("vocab_size"))
    if facts["vocab_size"] is None:
        facts["vocab_size"] = config.vocab_size
    return Architecture(
        name=name,
        family=family,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers if num_layers is None else num_layers,
        layers=layers,
        outside=outside,
        dtype=common.checkpoint_dtype(config),
        tie_word_embeddings=tied,
        **facts,
    )


def grouped_attention(
    config: ModelConfig,
    head_size: int | None = None,
    *,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_size_v: int | None = None,
    sliding_window: int | None = None,
    **facts: Any,
) -> Attention:
    """Attention with the config's head counts unless given.

    InputError where query heads do not divide into KV groups.
    """
    heads = config.num_attention_heads if num_heads is None else num_heads
    kv_heads = config.num_key_value_heads if num_kv_heads is None else num_kv_heads
    size = config.head_dim if head_size is None else head_size
    if size < 1:
        raise InputError(
            f"{config.name}: hidden_size {config.hidden_size} gives heads of size {size} with {heads} heads"
        )
    if heads % kv_heads:
        raise InputError(f"{config.name}: {heads} attention heads do not divide into {kv_heads} KV heads")
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=size,
        head_size_v=head_size_v or size,
        sliding_window=sliding_window,
        **facts,
    )


def config_head_dim(config: ModelConfig) -> int:
    """`config.head_dim` where present and not null, else hidden_size // heads: `getattr(config, "head_dim",
    None)`.
    """
    return config.size("head_dim") if config.get("head_dim") else plain_head_dim(config)


def plain_head_dim(config: ModelConfig) -> int:
    """hidden_size // heads, for the classes that never look at `head_dim`."""
    return config.hidden_size // config.num_attention_heads


def moe_feed_forward(
    config: ModelConfig,
    *,
    num_experts: int,
    top_k: int,
    intermediate_size: int,
    shared: int = 0,
    prefix: str = "mlp",
    gate: str = "gate",
    gate_dtype: str | None = None,
    gate_bias: bool = False,
    correction_bias: bool = False,
    shared_name: str = "shared_experts",
    shared_gate: str | None = None,
    expert_bias: bool = False,
    hidden_size: int | None = None,
    shared_whole: bool = False,
) -> tuple[tuple[Module, ...], MixtureOfExperts]:
    """Router, optional shared experts [`shared` wide in all], routed experts: modules under `prefix`, facts.

    `shared_whole`: the shared experts are whole where the MoE runs sequence-parallel. `shared_gate` names a
    replicated [1, hidden] gate; `correction_bias` adds the fp32 e_score_correction_bias [E].
    """
    hidden = config.hidden_size if hidden_size is None else hidden_size
    if top_k > num_experts:
        raise InputError(f"{config.name}: {top_k} experts per token, but the model has {num_experts}")
    bias_name = f"{prefix}.{gate}.e_score_correction_bias" if correction_bias else None
    modules = common.router(
        hidden,
        num_experts,
        name=f"{prefix}.{gate}",
        dtype=gate_dtype,
        bias=gate_bias,
        correction_bias=bias_name,
    )
    if shared_gate is not None:
        modules += (
            Linear(
                name=f"{prefix}.{shared_gate}",
                inputs=hidden,
                outputs=(1,),
                shard=Shard.REPLICATED,
                quantised=False,
            ),
        )
    if shared:
        modules += common.gated_mlp(
            hidden, shared, prefix=f"{prefix}.{shared_name}", whole_if_sequence_parallel=shared_whole
        )
    modules += (
        common.experts(num_experts, hidden, intermediate_size, name=f"{prefix}.experts", bias=expert_bias),
    )
    return modules, MixtureOfExperts(
        num_experts=num_experts,
        top_k=top_k,
        hidden_size=hidden,
        intermediate_size=intermediate_size,
        shared_intermediate_size=shared,
    )


def dense_feed_forward(
    config: ModelConfig, intermediate_size: int | None = None, *, prefix: str = "mlp", bias: bool = False
) -> tuple[tuple[Module, ...], DenseMLP]:
    """gate_up_proj and down_proj."""
    size = config.size("intermediate_size") if intermediate_size is None else intermediate_size
    return common.gated_mlp(config.hidden_size, size, prefix=prefix, bias=bias), DenseMLP(
        intermediate_size=size
    )


def layer_kinds(config: ModelConfig, default: Sequence[str], *, key: str = "layer_types") -> tuple[str, ...]:
    """One kind per layer: the config's list, or `default` (the HF class derives it); InputError if it is too
    short.
    """
    kinds = config.strings(key)
    if kinds is None:
        return tuple(default)
    layers = config.num_hidden_layers
    if len(kinds) < layers:
        raise InputError(f"{config.name}: config key {key!r} has {len(kinds)} entries for {layers} layers")
    return kinds[:layers]


def layer_caches(
    config: ModelConfig,
    head_size: int,
    kinds: Sequence[str],
    blocks: Mapping[str, Mapping[str, Any]],
    **arguments: Any,
) -> tuple[Placed, ...]:
    """Rope caches of layers of several kinds: one per distinct block, as vLLM's `_ROPE_DICT` keeps them.

    `blocks[kind]` is the block of a layer kind. Source: `get_rope`, rotary_embedding/__init__.py:30-85
    (0.26.0).
    """
    first: list[tuple[Mapping[str, Any], Tensor]] = []
    by_kind: dict[str, Tensor] = {}
    for kind in dict.fromkeys(kinds):
        block = blocks[kind]
        known = next((cache for other, cache in first if other == block), None)
        if known is None:
            known = common.rope_cache(
                config, head_size, parameters=block, name=f"rotary_emb.{kind}.cos_sin_cache", **arguments
            )
            first.append((block, known))
        by_kind[kind] = known
    return common.caches_by_layer([by_kind[kind] for kind in kinds])
