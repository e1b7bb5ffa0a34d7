"""The KV cache of every layer: architecture and engine configuration to ordered specs.

Source: `get_kv_cache_spec` of
vllm/model_executor/layers/attention/{attention,mla_attention,chunked_local_attention}.py, mamba/abstract.py
and models/deepseek_v2.py (0.26.0); `get_kv_cache_spec` of the model runners, which asks every attention layer
in the order of construction; `resolve_kv_cache_layout` (v1/attention/backends/utils.py, 0.29.0 on).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import lcm

from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    AttentionKind,
    Mixer,
    MultiHeadLatentAttention,
    StateSpace,
)
from vllm_capacity.attention_backends import AttentionBackend, is_mm_prefix, kv_heads_per_rank, layer_backends
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineConfig
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.kv_cache.block_size import (
    DEFAULT_BLOCK_SIZE,
    BlockSizes,
    HybridState,
    align_hybrid,
    align_skipped_layers,
    default_block_size,
)
from vllm_capacity.kv_cache.cache_dtypes import packing, storage_dtype
from vllm_capacity.kv_cache.compressed_latent import cache_parts
from vllm_capacity.kv_cache.drafts import draft_mixers
from vllm_capacity.kv_cache.layer_specs import (
    GDN_CHECKPOINT_ALIGNMENT,
    Setting,
    Slot,
    attention_spec,
    exports_gdn_states,
    layer_spec,
    layer_state_dtypes,
    layer_state_shapes,
)
from vllm_capacity.kv_cache.layout import resolve_layout
from vllm_capacity.kv_cache.specs import FullAttentionSpec, KVCacheSpec, KVLayers, LayerRun, kv_quant_mode
from vllm_capacity.kv_cache.state_shapes import state_bytes
from vllm_capacity.releases.release import Release


def layer_specs(
    config: ModelConfig, architecture: Architecture, engine: EngineConfig, device: Device, release: Release
) -> KVLayers:
    """Specs of all layers with a KV cache, in vLLM's order, with block size, backends and layout.

    Raises RefusedError where vLLM finds no backend or block size, InputError for layers that are not
    modelled.
    """
    drafts, notes = draft_mixers(config, architecture, engine, release)
    setting = Setting(
        config=config, architecture=architecture, engine=engine, device=device, release=release,
        skipped=_skipped_layers(architecture, engine),
    )  # fmt: skip
    caches = _caches(architecture, drafts, setting.skipped)
    slots = caches.slots
    kinds = [(slot.mixer, setting.cache_dtype(slot)) for slot in slots]
    backends: dict[tuple[Mixer, str], tuple[AttentionBackend, ...]] = {}
    for kind in kinds:
        if kind not in backends:
            backends[kind] = _backends(*kind, setting)
    ordered = tuple({b.name: b for found in backends.values() for b in found}.values())
    sizes = _block_sizes(slots, ordered, backends, setting)
    runs: dict[KVCacheSpec, list[int]] = {}
    for slot, kind, keys in zip(slots, kinds, caches.keys, strict=True):
        runs.setdefault(layer_spec(slot, kind[1], backends[kind][-1], sizes, setting), []).extend(keys)
    return KVLayers(
        runs=tuple(LayerRun(spec, tuple(sorted(keys))) for spec, keys in runs.items()),
        layer_index=caches.layer_index,
        block_size=sizes.block_size,
        mamba_block_size=sizes.mamba_block_size,
        backends=tuple(b.name for b in ordered),
        layout=resolve_layout(tuple(runs), ordered, engine, release),
        encoder_tokens=_encoder_tokens(config, architecture),
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class _Caches:
    """The caches of a model, in the order of their first layers. `keys` are each slot's places in vLLM's order over
    all caches, `layer_index` the decoder layer of each such place.
    """

    slots: tuple[Slot, ...]
    keys: tuple[tuple[int, ...], ...]
    layer_index: tuple[int, ...]


@lru_cache(maxsize=64)
def _caches(architecture: Architecture, drafts: tuple[Mixer, ...], skipped: frozenset[str]) -> _Caches:
    """Every cache in the order in which vLLM builds the layers, drafts last; layers alike in one slot."""
    found: dict[tuple[int, int, bool], list[int]] = {}
    order: list[tuple[int, tuple[int, int, bool]]] = []
    mixers = [group.mixers for group in architecture.layers] + [(mixer,) for mixer in drafts]
    slots_of = [tuple(slot for mixer in own for slot in _mixer_slots(mixer)) for own in mixers]
    layers = [(index, n) for n, group in enumerate(architecture.layers) for index in group.indices]
    layers.sort(key=lambda pair: pair[0])
    first_draft = len(architecture.layers)
    layers += [(architecture.num_hidden_layers + n, first_draft + n) for n in range(len(drafts))]
    for layer, n in layers:
        for place in range(len(slots_of[n])):
            kind = (n, place, str(layer) in skipped)
            found.setdefault(kind, []).append(len(order))
            order.append((layer, kind))
    return _Caches(
        slots=tuple(replace(slots_of[n][place], skipped=skip) for n, place, skip in found),
        keys=tuple(tuple(keys) for keys in found.values()),
        layer_index=tuple(layer for layer, _ in order),
    )


def _mixer_slots(mixer: Mixer) -> Iterator[Slot]:
    if isinstance(mixer, Attention) and (mixer.shares_kv or mixer.kind is AttentionKind.ENCODER_ONLY):
        return
    if isinstance(mixer, MultiHeadLatentAttention) and mixer.compression is not None:
        for part in cache_parts(mixer):
            yield Slot(mixer, part=part)
        return
    if isinstance(mixer, (Attention, MultiHeadLatentAttention)) and mixer.indexer is not None:
        yield Slot(mixer, mixer.indexer)
    yield Slot(mixer)


def _skipped_layers(architecture: Architecture, engine: EngineConfig) -> frozenset[str]:
    """The user's, and with TurboQuant the first and last two layers of a model without state-space layers
    (layers/quantization/turboquant/config.py:177-212)."""
    given = engine.args.other("kv_cache_dtype_skip_layers", ())
    skipped = {str(entry) for entry in (given.split(",") if isinstance(given, str) else given)}
    if engine.kv_cache_dtype.startswith("turboquant_") and not architecture.is_hybrid:
        layers = architecture.num_hidden_layers
        edge = min(2, layers // 2)
        skipped |= {str(i) for i in (*range(edge), *range(layers - edge, layers))}
    return frozenset(skipped)


def _backends(mixer: Mixer, cache_dtype: str, setting: Setting) -> tuple[AttentionBackend, ...]:
    engine = setting.engine
    mm_prefix = is_mm_prefix(setting.config, engine.args, setting.release)
    return layer_backends(
        mixer, cache_dtype, engine.dtype, setting.device, setting.release, block_size=engine.block_size,
        requested=_requested(setting), parallel=engine.parallel, mm_prefix=mm_prefix,
        softcap=setting.architecture.logits_soft_cap, float32_state=_float32_state(setting),
    )  # fmt: skip


def _requested(setting: Setting) -> str | None:
    from vllm_capacity.engine_defaults.backends import requested_backend

    return requested_backend(setting.engine.args, setting.config, setting.device, setting.release)


def _float32_state(setting: Setting) -> bool:
    mixers = (mixer for group in setting.architecture.layers for mixer in group.mixers)
    return any(
        "float32" in layer_state_dtypes(mixer, setting) for mixer in mixers if isinstance(mixer, StateSpace)
    )


# -- block sizes --------------------------------------------------------------------------------
def _block_sizes(
    slots: Sequence[Slot],
    ordered: Sequence[AttentionBackend],
    backends: dict[tuple[Mixer, str], tuple[AttentionBackend, ...]],
    setting: Setting,
) -> BlockSizes:
    architecture, engine, release = setting.architecture, setting.engine, setting.release
    user = engine.block_size
    if user is None and architecture.is_hybrid and not release.has("hybrid_block_by_backend"):
        user = DEFAULT_BLOCK_SIZE
    block_size = default_block_size(ordered, user, release)
    sizes = BlockSizes(block_size=block_size)
    states = [slot.mixer for slot in slots if isinstance(slot.mixer, StateSpace)]
    attention = [slot for slot in slots if not isinstance(slot.mixer, StateSpace) and slot.indexer is None]
    asked = engine.args.other("mamba_block_size")
    if states and not attention:
        mamba = asked or (block_size if engine.mamba_cache_mode != "none" else engine.max_model_len)
        return BlockSizes(block_size=block_size, mamba_block_size=mamba)
    if states:
        hybrid = _hybrid_state(states, attention[0], backends, setting)
        sizes = align_hybrid(
            block_size, hybrid, ordered, release, mamba_mode=engine.mamba_cache_mode,
            max_model_len=engine.max_model_len, user_mamba_block_size=asked,
        )  # fmt: skip
    if setting.skipped and attention and release.has("heterogeneous_block_size"):
        first = next((slot for slot in attention if isinstance(slot.mixer, Attention)), None)
        if first is not None:
            sizes = _align_skipped(sizes, first, backends, setting)
    return sizes


def _hybrid_state(
    states: Sequence[StateSpace],
    attention: Slot,
    backends: dict[tuple[Mixer, str], tuple[AttentionBackend, ...]],
    setting: Setting,
) -> HybridState:
    engine = setting.engine
    largest = max(
        state_bytes(layer_state_shapes(mixer, setting), layer_state_dtypes(mixer, setting))
        for mixer in dict.fromkeys(states)
    )
    dtype = engine.kv_cache_dtype
    token = attention_spec(attention, dtype, _backend_of(attention, dtype, backends, setting), 1, setting)
    token_bytes = token.page_size_bytes
    if dtype.startswith("turboquant_") and engine.args.other("kv_cache_dtype_skip_layers"):
        plain = attention_spec(
            attention, "auto", _backend_of(attention, "auto", backends, setting), 1, setting
        )
        token_bytes = lcm(token_bytes, plain.page_size_bytes)
    return HybridState(
        token_bytes=token_bytes,
        state_bytes=largest,
        chunk_size=next((mixer.chunk_size for mixer in states if mixer.chunk_size), 0),
        use_mla=setting.architecture.use_mla,
        checkpoint_alignment=GDN_CHECKPOINT_ALIGNMENT if exports_gdn_states(states, setting) else 1,
    )


def _align_skipped(
    sizes: BlockSizes,
    slot: Slot,
    backends: dict[tuple[Mixer, str], tuple[AttentionBackend, ...]],
    setting: Setting,
) -> BlockSizes:
    """Token pages are those of a plain full-attention layer, up to 0.27.1 without TurboQuant's packing."""
    assert isinstance(slot.mixer, Attention)
    heads = kv_heads_per_rank(slot.mixer.num_kv_heads, setting.engine.parallel.tp)
    dtype = setting.engine.kv_cache_dtype
    backend = _backend_of(slot, dtype, backends, setting)

    def token_bytes(cache_dtype: str) -> int:
        assert isinstance(slot.mixer, Attention)
        mode = kv_quant_mode(cache_dtype)
        packed = packing(
            backend.name, cache_dtype, slot.mixer.head_size, slot.mixer.head_size, heads, setting.release
        )
        return FullAttentionSpec(
            block_size=1, num_kv_heads=heads, head_size=slot.mixer.head_size,
            dtype=storage_dtype(cache_dtype, setting.engine.dtype), kv_quant_mode=mode, **packed,
        ).page_size_bytes  # fmt: skip

    return align_skipped_layers(sizes, token_bytes(dtype), token_bytes("auto"), backend)


def _backend_of(
    slot: Slot,
    dtype: str,
    backends: dict[tuple[Mixer, str], tuple[AttentionBackend, ...]],
    setting: Setting,
) -> AttentionBackend:
    found = backends.get((slot.mixer, dtype)) or _backends(slot.mixer, dtype, setting)
    return found[-1]


def _encoder_tokens(config: ModelConfig, architecture: Architecture) -> int:
    """Tokens of encoder states that a request's cross-attention layers may hold."""
    mixers = (mixer for group in architecture.layers for mixer in group.mixers)
    if not any(isinstance(mixer, Attention) and mixer.kind is AttentionKind.CROSS for mixer in mixers):
        return 0
    return config.size("max_source_positions")
