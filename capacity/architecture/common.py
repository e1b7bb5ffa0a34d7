"""Pieces that many families share: attention, MLP and MoE modules, norms, rope caches, embeddings and heads.

Names follow vLLM's module paths inside a layer, and modules stand in the order in which vLLM constructs them:
the role of a tensor comes from its name (`weights/groups.py`), the allocator's behaviour from the order
(`weights/allocator.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from vllm_capacity.architecture.modules import (
    Attention,
    Experts,
    LayerGroup,
    Linear,
    Module,
    Placed,
    Placement,
    QkvLinear,
    Shard,
    Tensor,
    VocabEmbedding,
)
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

K = TypeVar("K", bound=Hashable)

# -- norms, MLP, MoE -----------------------------------------------------------------------------------------


def norm(name: str, size: int, *, bias: bool = False, dtype: str | None = None) -> tuple[Module, ...]:
    """RMSNorm (or LayerNorm with `bias`): replicated [size]."""
    weight = Tensor(name=f"{name}.weight", shape=(size,), dtype=dtype)
    return (weight, Tensor(name=f"{name}.bias", shape=(size,), dtype=dtype)) if bias else (weight,)


def gated_mlp(
    hidden_size: int,
    intermediate_size: int,
    *,
    prefix: str = "mlp",
    bias: bool = False,
    down_bias: bool | None = None,
    quantised: bool = True,
    replicated: bool = False,
    up: str = "gate_up_proj",
    down: str = "down_proj",
    whole_if_sequence_parallel: bool = False,
) -> tuple[Module, ...]:
    """gate_up_proj (MergedColumnParallelLinear) and down_proj (RowParallelLinear).

    `replicated` is `disable_tp=True`; `whole_if_sequence_parallel` is `disable_tp=is_sequence_parallel`
    (shared experts).
    """
    column, row = (Shard.REPLICATED, Shard.REPLICATED) if replicated else (Shard.COLUMN, Shard.ROW)
    return (
        Linear(
            name=f"{prefix}.{up}",
            inputs=hidden_size,
            outputs=(intermediate_size, intermediate_size),
            shard=column,
            bias=bias,
            quantised=quantised,
            whole_if_sequence_parallel=whole_if_sequence_parallel,
        ),
        Linear(
            name=f"{prefix}.{down}",
            inputs=intermediate_size,
            outputs=(hidden_size,),
            shard=row,
            bias=bias if down_bias is None else down_bias,
            quantised=quantised,
            whole_if_sequence_parallel=whole_if_sequence_parallel,
        ),
    )


def plain_mlp(
    hidden_size: int,
    intermediate_size: int,
    *,
    prefix: str = "mlp",
    bias: bool = False,
    quantised: bool = True,
    up: str = "up_proj",
    down: str = "down_proj",
    whole_if_sequence_parallel: bool = False,
) -> tuple[Module, ...]:
    """An MLP without gate: up (column) and down (row)."""
    return (
        Linear(
            name=f"{prefix}.{up}",
            inputs=hidden_size,
            outputs=(intermediate_size,),
            shard=Shard.COLUMN,
            bias=bias,
            quantised=quantised,
            whole_if_sequence_parallel=whole_if_sequence_parallel,
        ),
        Linear(
            name=f"{prefix}.{down}",
            inputs=intermediate_size,
            outputs=(hidden_size,),
            shard=Shard.ROW,
            bias=bias,
            quantised=quantised,
            whole_if_sequence_parallel=whole_if_sequence_parallel,
        ),
    )


def router(
    hidden_size: int,
    num_experts: int,
    *,
    name: str = "mlp.gate",
    bias: bool = False,
    quantised: bool = False,
    dtype: str | None = None,
    correction_bias: str | None = None,
) -> tuple[Module, ...]:
    """The replicated router; `correction_bias` names an fp32 e_score_correction_bias [E]."""
    gate = Linear(name=name, inputs=hidden_size, outputs=(num_experts,), shard=Shard.REPLICATED, bias=bias,
                  quantised=quantised, dtype=dtype)  # fmt: skip
    if correction_bias is None:
        return (gate,)
    return (gate, Tensor(name=correction_bias, shape=(num_experts,), dtype="float32"))


def experts(
    num_experts: int,
    hidden_size: int,
    intermediate_size: int,
    *,
    name: str = "mlp.experts",
    gated: bool = True,
    bias: bool = False,
    quantised: bool = True,
) -> Experts:
    """FusedMoE's routed experts."""
    return Experts(
        name=name,
        num_experts=num_experts,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        gated=gated,
        bias=bias,
        quantised=quantised,
    )


# -- attention -----------------------------------------------------------------------------------------------


def attention_modules(
    hidden_size: int,
    mixer: Attention,
    *,
    prefix: str = "self_attn",
    qkv_bias: bool = False,
    o_bias: bool = False,
    quantised: bool = True,
    qk_norm: tuple[Module, ...] = (),
    qkv: str = "qkv_proj",
    out: str = "o_proj",
) -> tuple[Module, ...]:
    """qkv_proj, o_proj, the attention layer's scale buffers and, last, the family's own q/k norms."""
    return (
        QkvLinear(name=f"{prefix}.{qkv}", inputs=hidden_size, num_heads=mixer.num_heads,
                  num_kv_heads=mixer.num_kv_heads, head_size=mixer.head_size, head_size_v=mixer.head_size_v,
                  bias=qkv_bias, quantised=quantised),
        Linear(name=f"{prefix}.{out}", inputs=mixer.num_heads * mixer.head_size_v, outputs=(hidden_size,),
               shard=Shard.ROW, bias=o_bias, quantised=quantised),
        *attention_scales(prefix),
        *qk_norm,
    )  # fmt: skip


def attention_scales(prefix: str = "self_attn") -> tuple[Module, ...]:
    """The four fp32 scalar buffers of vLLM's Attention and MLAAttention, whatever the KV dtype.

    Source: `set_default_quant_scales`, model_executor/layers/attention/attention.py:124-150 (0.26.0).
    """
    return tuple(
        Tensor(name=f"{prefix}.attn._{scale}_scale", shape=(), dtype="float32", buffer=True)
        for scale in ("k", "v", "q", "prob")
    )


def unmoved_scales(release: Release, prefix: str = "self_attn") -> tuple[Module, ...]:
    """Scalars that post-load processing moves to the host for vLLM's own attention layers, left on the GPU where the layer
    is none of them (layers/attention/attention.py:124-150, 601-617).
    """
    kept: tuple[str, ...] = ()
    kept += ("k_scale_cpu", "v_scale_cpu") if release.has("kv_scale_cpu_copies") else ()
    kept += ("q_range", "k_range", "v_range") if release.has("kv_scale_ranges") else ()
    return tuple(
        Tensor(name=f"{prefix}.attn._{name}", shape=(), dtype="float32", buffer=True) for name in kept
    )


def head_norms(head_size: int, *, prefix: str = "self_attn") -> tuple[Module, ...]:
    """q_norm and k_norm over one head, replicated (Qwen3, Gemma 3)."""
    return (*norm(f"{prefix}.q_norm", head_size), *norm(f"{prefix}.k_norm", head_size))


def cache_sliding_window(config: ModelConfig, *, default: int | None = None) -> int | None:
    """The window that `cache_config.sliding_window` gives to every layer without a window of its own.

    None when layer types are mixed, when absent (then `default`, the HF class's), null or 0. Source:
    engine/arg_utils.py:1888-1893, config/model.py:689-691, layers/attention/attention.py:261-268 (0.26.0).
    """
    if len(set(config.strings("layer_types") or ())) > 1:
        return None
    if "sliding_window" not in config.text:
        return default
    return config.integer("sliding_window", 0) or None


def layer_windows(config: ModelConfig, window: int | None) -> list[int | None]:
    """Per layer the sliding window: `layer_types` where given, else `window` everywhere
    (models/llama.py:184-207).
    """
    kinds, layers = config.strings("layer_types"), config.num_hidden_layers
    if kinds is None:
        return [window] * layers
    if len(kinds) < layers:
        raise InputError(
            f"{config.name}: config key 'layer_types' has {len(kinds)} entries for {layers} layers"
        )
    sliding = config.integer("sliding_window", 0) or None
    return [sliding if kind == "sliding_attention" else window for kind in kinds[:layers]]


# -- rope ----------------------------------------------------------------------------------------------------

M_ROPE_FACTOR = 4
"""Rows of an M-RoPE cache per position (rotary_embedding/mrope.py:235-238, 0.26.0)."""

_SAME_ROWS = frozenset({"default", "llama3", "ntk", "dynamic", "proportional", "openpangu"})
ROPE_TYPES = tuple(
    sorted({*_SAME_ROWS, "linear", "longrope", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
)


def rope_parameters(config: ModelConfig, layer_type: str | None = None) -> Mapping[str, Any]:
    """The rope block after transformers' and vLLM's clean-up: `rope_type` set, legacy names and `type`
    resolved.

    `layer_type` selects from a block that has one entry per layer type. An empty mapping: the config names no
    rope at all. Source: `patch_rope_parameters`, transformers_utils/config.py:474-544 (0.26.0); transformers
    modeling_rope_utils.py.
    """
    block = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(block, Mapping):
        raise InputError(
            f"{config.name}: config key 'rope_parameters' (or 'rope_scaling') must be an object or null"
        )
    if layer_type is not None and isinstance(block.get(layer_type), Mapping):
        block = block[layer_type]
    found = dict(block)
    for key in ("rope_theta", "rotary_emb_base"):
        if config.get(key) is not None:
            found.setdefault("rope_theta", config.get(key))
    for key in ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"):
        if config.get(key) is not None:
            found.setdefault("partial_rotary_factor", config.get(key))
    kind = found.get("rope_type") or found.get("type") or "default"
    if not isinstance(kind, str):
        raise InputError(f"{config.name}: the rope block's 'rope_type' must be a string, not {kind!r:.40}")
    found["rope_type"] = {"su": "longrope", "mrope": "default"}.get(kind, kind)
    return found


def rope_cache(
    config: ModelConfig,
    head_size: int,
    *,
    parameters: Mapping[str, Any] | None = None,
    max_position: int | None = None,
    rotary_dim: int | None = None,
    dtype: str | None = None,
    name: str = "rotary_emb.cos_sin_cache",
    m_rope_factor: int = M_ROPE_FACTOR,
) -> Tensor:
    """The cos/sin cache that all layers with the same rope settings share: a buffer [rows, rotary_dim].

    Rows are `max_position` (default: max_position_embeddings), original positions x factor for the YaRN
    kinds, short and long table together for longrope, and `m_rope_factor` times that with M-RoPE.
    `proportional` covers the whole head. `dtype` None is the model's; give it where the class says so.
    Source: `get_rope` and the classes under model_executor/layers/rotary_embedding (0.26.0).
    """
    block = rope_parameters(config) if parameters is None else parameters
    positions = config.size("max_position_embeddings") if max_position is None else max_position
    kind = str(block.get("rope_type", "default"))
    rows = positions
    if kind in ("yarn", "deepseek_yarn", "deepseek_llama_scaling"):
        rows = math.ceil(_original_positions(config, block, positions) * _factor(config, block))
    elif kind == "linear":
        rows = math.ceil(positions * _factor(config, block))
    elif kind == "longrope":
        rows = _original_positions(config, block, positions) + positions
    elif kind not in _SAME_ROWS:
        raise InputError(f"{config.name}: rope type {kind!r} is not modelled; known: {', '.join(ROPE_TYPES)}")
    if "mrope_section" in block:
        rows *= m_rope_factor
    dim = rotary_dim or rotated_size(config, block, head_size)
    if kind == "proportional":
        dim = head_size
    scaled = kind in ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
    return Tensor(name=name, shape=(rows, dim), dtype=dtype, buffer=True, scaled=scaled)


def rotated_size(config: ModelConfig, block: Mapping[str, Any], head_size: int) -> int:
    """`rope_dim` where given, else the rotated part of the head."""
    size, factor = block.get("rope_dim") or 0, block.get("partial_rotary_factor", 1.0)
    if type(size) is not int or not 0 <= size < 1 << 40:
        raise InputError(f"{config.name}: the rope block's 'rope_dim' must be an integer, not {size!r:.40}")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 <= factor <= 1e6:
        raise InputError(
            f"{config.name}: 'partial_rotary_factor' must be a number of at least 0, not {factor!r:.40}"
        )
    return size or int(head_size * factor)


def _original_positions(config: ModelConfig, block: Mapping[str, Any], positions: int) -> int:
    """Phi-3 keeps it outside the block, and then the outer one wins; absent: max_position_embeddings
    (transformers).
    """
    value = (
        config.get("original_max_position_embeddings")
        or block.get("original_max_position_embeddings")
        or positions
    )
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1 << 40:
        raise InputError(
            f"{config.name}: 'original_max_position_embeddings' must be a positive integer, not {value!r:.40}"
        )
    return int(value)


def _factor(config: ModelConfig, block: Mapping[str, Any]) -> float:
    factor = block.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < 1e6:
        raise InputError(
            f"{config.name}: the rope block's 'factor' must be a number above 0, not {factor!r:.40}"
        )
    return float(factor)


def caches_by_layer(caches: Sequence[Tensor]) -> tuple[Placed, ...]:
    """Distinct caches of `caches[i]` (layer i's), each on the stages that hold a layer with it. Equal tensors
    are one.
    """
    where: dict[Tensor, list[int]] = {}
    for i, cache in enumerate(caches):
        where.setdefault(cache, []).append(i)
    return tuple(Placed(module=c, placement=Placement.EVERY, layers=tuple(i)) for c, i in where.items())


def caches_at(cache: Tensor, layers: Sequence[int]) -> tuple[Placed, ...]:
    """One cache on the stages that hold one of `layers`."""
    return (Placed(module=cache, placement=Placement.EVERY, layers=tuple(layers)),) if layers else ()


# -- outside the layers --------------------------------------------------------------------------------------


def embedding(rows: int, columns: int, *, name: str = "embed_tokens") -> VocabEmbedding:
    """VocabParallelEmbedding."""
    return VocabEmbedding(name=name, rows=rows, columns=columns)


def lm_head(rows: int, columns: int, *, bias: bool = False) -> VocabEmbedding:
    """ParallelLMHead: quantised only where the method quantises heads."""
    return VocabEmbedding(name="lm_head", rows=rows, columns=columns, bias=bias, quantised=True)


def place(
    *, embed: VocabEmbedding, head: VocabEmbedding | None, tied: bool, final_norm: tuple[Module, ...],
    embed_on: Placement, head_on: Placement, norm_on: Placement, head_allocated_first: bool = False,
    rope: tuple[Tensor | Placed, ...] = (), extra: tuple[Placed, ...] = (),
) -> tuple[Placed, ...]:  # fmt: skip
    """Modules outside the layers in vLLM's order. `tied` heads use the embedding's storage."""
    placed = [Placed(module=embed, placement=embed_on)]
    placed += [c if isinstance(c, Placed) else Placed(module=c, placement=Placement.EVERY) for c in rope]
    placed += [Placed(module=module, placement=norm_on) for module in final_norm]
    placed += extra
    if head is not None:
        placed.append(
            Placed(module=head, placement=head_on, shares_storage_with=embed.name if tied else None,
                   allocated_first=tied and head_allocated_first)
        )  # fmt: skip
    return tuple(placed)


def llama_placement(
    rows: int,
    columns: int,
    *,
    tied: bool,
    rope: tuple[Tensor | Placed, ...] = (),
    head_allocated_first: bool,
    final_norm: tuple[Module, ...] | None = None,
    head_bias: bool = False,
) -> tuple[Placed, ...]:
    """Embedding on the first stage (and the last if tied), norm and head on the last (models/llama.py,
    qwen2.py).
    """
    return place(
        embed=embedding(rows, columns), head=lm_head(rows, columns, bias=head_bias), tied=tied,
        final_norm=norm("norm", columns) if final_norm is None else final_norm,
        embed_on=Placement.ENDS if tied else Placement.FIRST, head_on=Placement.LAST, norm_on=Placement.LAST,
        head_allocated_first=head_allocated_first, rope=rope,
    )  # fmt: skip


def every_stage_placement(
    rows: int,
    columns: int,
    *,
    tied: bool,
    rope: tuple[Tensor | Placed, ...] = (),
    head_allocated_first: bool = True,
    final_norm: tuple[Module, ...] | None = None,
    norm_on: Placement = Placement.EVERY,
    head_bias: bool = False,
) -> tuple[Placed, ...]:
    """Embedding and head on every stage (models/qwen3_moe.py, mixtral.py, ...: no first/last-rank guard)."""
    return place(
        embed=embedding(rows, columns), head=lm_head(rows, columns, bias=head_bias), tied=tied,
        final_norm=norm("norm", columns) if final_norm is None else final_norm,
        embed_on=Placement.EVERY, head_on=Placement.EVERY, norm_on=norm_on,
        head_allocated_first=head_allocated_first, rope=rope,
    )  # fmt: skip


# -- whole models --------------------------------------------------------------------------------------------


def checkpoint_dtype(config: ModelConfig, *, pooling: bool = False) -> str:
    """vLLM's `auto` dtype: the config's, with fp32 lowered to bf16 (generate) or fp16 (pooling).

    Where neither part of the config says, the checkpoint's own dtype decides (facts), else fp32 -> as above.
    A device without bf16 lowers it further (engine defaults). Source: `_find_dtype`, `_resolve_auto_dtype`,
    config/model.py:1985-2105 (0.26.0).
    """
    for part in (config.root, config.text, config.facts):
        for key in ("dtype", "torch_dtype", "dtype_of_tensors"):
            value = part.get(key)
            if isinstance(value, str):
                name = value.removeprefix("torch.")
                if name in ("float16", "bfloat16"):
                    return name
                if name == "half":
                    return "float16"
    return "float16" if pooling else "bfloat16"


def tied(config: ModelConfig, default: bool = False) -> bool:
    """tie_word_embeddings, or the HF class's default when no part of the config says."""
    value = config.tie_word_embeddings
    return default if value is None else value


def group_layers(
    kinds: Sequence[K], build: Callable[[K, tuple[int, ...]], LayerGroup]
) -> tuple[LayerGroup, ...]:
    """Groups of equal layers in order of first appearance: `kinds[i]` says what layer i is, `build(kind,
    indices)` makes one.
    """
    indices: dict[K, list[int]] = {}
    for i, kind in enumerate(kinds):
        indices.setdefault(kind, []).append(i)
    return tuple(build(kind, tuple(where)) for kind, where in indices.items())
