"""The KV cache of every layer: architecture and engine configuration to ordered specs.

Source: `get_kv_cache_spec` of
vllm/model_executor/layers/attention/{attention,mla_attention,chunked_local_attention}.py, mamba/abstract.py
and models/deepseek_v2.py (0.26.0); `get_kv_cache_spec` of the model runners, which asks every attention layer
in the order of construction; `resolve_kv_cache_layout` (v1/attention/backends/utils.py, 0.29.0 on).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    AttentionKind,
    Indexer,
    Mixer,
    MultiHeadLatentAttention,
    StateSpace,
    StateSpaceKind,
)
from vllm_capacity.attention_backends import AttentionBackend, is_mm_prefix, kv_heads_per_rank, layer_backends
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineConfig
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.kv_cache.block_size import (
    DEFAULT_BLOCK_SIZE,
    BlockSizes,
    HybridState,
    align_hybrid,
    align_skipped_layers,
    default_block_size,
    window_block_size,
)
from vllm_capacity.kv_cache.cache_dtypes import packing, storage_dtype
from vllm_capacity.kv_cache.drafts import draft_mixers
from vllm_capacity.kv_cache.layout import resolve_layout
from vllm_capacity.kv_cache.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    KVLayers,
    LayerRun,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
    kv_quant_mode,
)
from vllm_capacity.kv_cache.state_shapes import state_bytes, state_dtypes, state_shapes
from vllm_capacity.releases.release import Release

GDN_CHECKPOINT_ALIGNMENT = 64
"""Tokens between states that FlashInfer's gated-delta prefill can export
(v1/attention/backends/gdn_attn.py, 0.33.0).
"""


@dataclass(frozen=True, slots=True)
class _Slot:
    """One cache that a decoder layer registers. `indexer` is set for the key cache of sparse attention."""

    layer: int
    mixer: Mixer
    indexer: Indexer | None = None
    draft: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    config: ModelConfig
    architecture: Architecture
    engine: EngineConfig
    device: Device
    release: Release
    skipped: frozenset[str]

    def cache_dtype(self, slot: _Slot) -> str:
        """The layer's cache dtype: 'auto' where `--kv-cache-dtype-skip-layers` names it
        (attention.py:299-315).
        """
        windowed = isinstance(slot.mixer, Attention) and slot.mixer.sliding_window is not None
        if str(slot.layer) in self.skipped or (windowed and "sliding_window" in self.skipped):
            return "auto"
        return self.engine.kv_cache_dtype


def layer_specs(
    config: ModelConfig, architecture: Architecture, engine: EngineConfig, device: Device, release: Release
) -> KVLayers:
    """Specs of all layers with a KV cache, in vLLM's order, with block size, backends and layout.

    Raises RefusedError where vLLM finds no backend or block size, InputError for layers that are not
    modelled.
    """
    drafts, notes = draft_mixers(config, architecture, engine)
    setting = _Setting(
        config=config, architecture=architecture, engine=engine, device=device, release=release,
        skipped=_skipped_layers(architecture, engine),
    )  # fmt: skip
    slots = list(_slots(architecture, drafts))
    backends: dict[tuple[Mixer, str], tuple[AttentionBackend, ...]] = {}
    for slot in slots:
        key = (slot.mixer, setting.cache_dtype(slot))
        if key not in backends:
            backends[key] = _backends(slot.mixer, key[1], setting)
    ordered = tuple({b.name: b for found in backends.values() for b in found}.values())
    sizes = _block_sizes(slots, ordered, backends, setting)
    specs: dict[tuple[Mixer, str, bool], KVCacheSpec] = {}
    runs: dict[KVCacheSpec, list[int]] = {}
    for number, slot in enumerate(slots):
        dtype = setting.cache_dtype(slot)
        kind = (slot.mixer, dtype, slot.indexer is not None)
        if kind not in specs:
            specs[kind] = _spec(slot, dtype, backends[slot.mixer, dtype][-1], sizes, setting)
        runs.setdefault(specs[kind], []).append(number)
    return KVLayers(
        runs=tuple(LayerRun(spec, tuple(numbers)) for spec, numbers in runs.items()),
        layer_index=tuple(slot.layer for slot in slots),
        block_size=sizes.block_size,
        mamba_block_size=sizes.mamba_block_size,
        backends=tuple(b.name for b in ordered),
        layout=resolve_layout(tuple(runs), ordered, engine, release),
        encoder_tokens=_encoder_tokens(config, architecture),
        notes=notes,
    )


def _slots(architecture: Architecture, drafts: Sequence[Mixer]) -> Iterator[_Slot]:
    """Every cache in the order in which vLLM builds the layers, drafts last."""
    groups = sorted(
        ((index, group) for group in architecture.layers for index in group.indices), key=lambda pair: pair[0]
    )
    for index, group in groups:
        for mixer in group.mixers:
            yield from _mixer_slots(index, mixer)
    for number, mixer in enumerate(drafts):
        yield from _mixer_slots(architecture.num_hidden_layers + number, mixer)


def _mixer_slots(layer: int, mixer: Mixer) -> Iterator[_Slot]:
    if isinstance(mixer, Attention) and (mixer.shares_kv or mixer.kind is AttentionKind.ENCODER_ONLY):
        return
    if isinstance(mixer, MultiHeadLatentAttention) and mixer.indexer is not None:
        yield _Slot(layer, mixer, mixer.indexer)
    yield _Slot(layer, mixer)


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


def _backends(mixer: Mixer, cache_dtype: str, setting: _Setting) -> tuple[AttentionBackend, ...]:
    engine = setting.engine
    return layer_backends(
        mixer, cache_dtype, engine.dtype, setting.device, setting.release, block_size=engine.block_size,
        requested=_requested(setting), parallel=engine.parallel, mm_prefix=is_mm_prefix(setting.config),
        softcap=setting.architecture.logits_soft_cap, float32_state=_float32_state(setting),
    )  # fmt: skip


def _requested(setting: _Setting) -> str | None:
    from vllm_capacity.engine_defaults.backends import requested_backend

    return requested_backend(setting.engine.args, setting.config, setting.device, setting.release)


def _float32_state(setting: _Setting) -> bool:
    mixers = (mixer for group in setting.architecture.layers for mixer in group.mixers)
    return any(
        "float32" in _state_dtypes(mixer, setting) for mixer in mixers if isinstance(mixer, StateSpace)
    )


def _state_dtypes(mixer: StateSpace, setting: _Setting) -> tuple[str, ...]:
    args = setting.engine.args
    return state_dtypes(
        mixer, setting.engine.dtype, setting.release, cache_dtype=args.other("mamba_cache_dtype", "auto"),
        ssm_cache_dtype=args.other("mamba_ssm_cache_dtype", "auto"),
    )  # fmt: skip


# -- block sizes ------------------------------------------------------------------------------------------------------
def _block_sizes(
    slots: Sequence[_Slot],
    ordered: Sequence[AttentionBackend],
    backends: dict[tuple[Mixer, str], tuple[AttentionBackend, ...]],
    setting: _Setting,
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
    attention: _Slot,
    backends: dict[tuple[Mixer, str], tuple[AttentionBackend, ...]],
    setting: _Setting,
) -> HybridState:
    engine, release = setting.engine, setting.release
    largest = max(
        state_bytes(_shapes(mixer, setting), _state_dtypes(mixer, setting)) for mixer in dict.fromkeys(states)
    )
    dtype = engine.kv_cache_dtype
    token = _attention_spec(attention, dtype, _backend_of(attention, dtype, backends, setting), 1, setting)
    token_bytes = token.page_size_bytes
    if dtype.startswith("turboquant_") and engine.args.other("kv_cache_dtype_skip_layers"):
        plain = _attention_spec(
            attention, "auto", _backend_of(attention, "auto", backends, setting), 1, setting
        )
        token_bytes = lcm(token_bytes, plain.page_size_bytes)
    return HybridState(
        token_bytes=token_bytes,
        state_bytes=largest,
        chunk_size=next((mixer.chunk_size for mixer in states if mixer.chunk_size), 0),
        use_mla=setting.architecture.use_mla,
        checkpoint_alignment=GDN_CHECKPOINT_ALIGNMENT if _exports_gdn_states(states, setting) else 1,
    )


def _exports_gdn_states(states: Sequence[StateSpace], setting: _Setting) -> bool:
    """Whether FlashInfer's gated-delta prefill runs on every state-space layer
    (qwen_gdn_linear_attn.py:148-275, 0.33.0).
    """
    if not setting.release.has("gdn_prefill_checkpoints") or setting.engine.mamba_cache_mode != "align":
        return False
    if any(mixer.kind is not StateSpaceKind.GATED_DELTA_NET for mixer in states):
        return False
    major = setting.device.compute_capability[0]
    return setting.device.sm == 90 or (
        major in (10, 12) and all(mixer.key_head_dim == 128 for mixer in states)
    )


def _align_skipped(
    sizes: BlockSizes,
    slot: _Slot,
    backends: dict[tuple[Mixer, str], tuple[AttentionBackend, ...]],
    setting: _Setting,
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
    slot: _Slot,
    dtype: str,
    backends: dict[tuple[Mixer, str], tuple[AttentionBackend, ...]],
    setting: _Setting,
) -> AttentionBackend:
    found = backends.get((slot.mixer, dtype)) or _backends(slot.mixer, dtype, setting)
    return found[-1]


# -- specs --------------------------------------------------------------------------------------------------------------
def _spec(
    slot: _Slot, dtype: str, backend: AttentionBackend, sizes: BlockSizes, setting: _Setting
) -> KVCacheSpec:
    mixer = slot.mixer
    if isinstance(mixer, StateSpace):
        return _state_spec(mixer, sizes, setting)
    if slot.indexer is not None:
        return _indexer_spec(slot.indexer, sizes, setting)
    if isinstance(mixer, Attention) and mixer.sliding_window is not None:
        token = _window_spec(mixer, dtype, backend, 1, None, setting)
        block_size = window_block_size(backend, token.unpadded_page_size_bytes, sizes, setting.release)
        return _window_spec(mixer, dtype, backend, block_size, sizes.skip_page_padded, setting)
    return _attention_spec(slot, dtype, backend, sizes.block_size, setting)


def _state_spec(mixer: StateSpace, sizes: BlockSizes, setting: _Setting) -> MambaSpec:
    engine, release = setting.engine, setting.release
    checkpoints = 0
    if (mixer.kind is StateSpaceKind.MAMBA2 and release.has("mamba2_prefill_checkpoints")) or _exports_gdn_states([mixer], setting):
        checkpoints = 1
    assert sizes.mamba_block_size is not None
    return MambaSpec(
        block_size=sizes.mamba_block_size,
        shapes=_shapes(mixer, setting),
        dtypes=_state_dtypes(mixer, setting),
        page_size_padded=sizes.mamba_page_padded,
        mamba_type=mixer.kind.value,
        mamba_cache_mode=engine.mamba_cache_mode,
        num_speculative_blocks=engine.num_speculative_tokens,
        num_prefill_checkpoint_blocks=checkpoints,
    )


def _shapes(mixer: StateSpace, setting: _Setting) -> tuple[tuple[int, ...], ...]:
    engine = setting.engine
    if engine.args.other("use_replayssm") or engine.args.other("use_kda_recoverssm"):
        raise InputError("ReplaySSM and RecoverSSM state layouts are not modelled; plan without these flags")
    return state_shapes(
        mixer, engine.parallel.tp, setting.release, speculative_tokens=engine.num_speculative_tokens
    )


def _indexer_spec(indexer: Indexer, sizes: BlockSizes, setting: _Setting) -> MLAAttentionSpec:
    """fp8 keys and one fp32 scale per 128 of them (models/deepseek_v2.py:629-699)."""
    return MLAAttentionSpec(
        block_size=sizes.block_size,
        num_kv_heads=1,
        head_size=indexer.head_size + indexer.head_size // 128 * 4,
        dtype="uint8",
        cache_role="indexer" if setting.release.has("sparse_cache_roles") else "sparse",
        kernel_block_alignment=64 if setting.release.has("kernel_block_stride") else None,
    )


def _window_spec(
    mixer: Attention,
    dtype: str,
    backend: AttentionBackend,
    block_size: int,
    padded: int | None,
    setting: _Setting,
) -> SlidingWindowSpec:
    assert mixer.sliding_window is not None
    heads = kv_heads_per_rank(mixer.num_kv_heads, setting.engine.parallel.tp)
    release = setting.release
    return SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=heads,
        head_size=mixer.head_size,
        head_size_v=mixer.head_size_v,
        dtype=storage_dtype(dtype, setting.engine.dtype),
        kv_quant_mode=kv_quant_mode(dtype),
        sliding_window=mixer.sliding_window,
        page_size_padded=padded,
        pads_to_block_stride=_pads(backend, release),
        kernel_block_alignment=_kernel_alignment(backend, release),
        **packing(backend.name, dtype, mixer.head_size, mixer.head_size_v, heads, release),
    )


def _attention_spec(
    slot: _Slot, dtype: str, backend: AttentionBackend, block_size: int, setting: _Setting
) -> AttentionSpec:
    mixer, release, model_dtype = slot.mixer, setting.release, setting.engine.dtype
    if isinstance(mixer, MultiHeadLatentAttention):
        return _latent_spec(mixer, dtype, backend, block_size, setting)
    assert isinstance(mixer, Attention)
    heads = kv_heads_per_rank(mixer.num_kv_heads, setting.engine.parallel.tp)
    packed = packing(backend.name, dtype, mixer.head_size, mixer.head_size_v, heads, release)
    slot_bytes = packed.pop("tq_slot_size", None)
    common = {
        "block_size": block_size,
        "num_kv_heads": heads,
        "head_size": mixer.head_size,
        "dtype": storage_dtype(dtype, model_dtype),
        "kv_quant_mode": kv_quant_mode(dtype),
        "pads_to_block_stride": _pads(backend, release),
        "kernel_block_alignment": _kernel_alignment(backend, release),
        **packed,
    }
    if slot_bytes is not None:
        return TQFullAttentionSpec(tq_slot_size=slot_bytes, **common)
    if mixer.kind is AttentionKind.CROSS:
        return CrossAttentionSpec(**common)
    if mixer.chunk_size is not None:
        return ChunkedLocalAttentionSpec(attention_chunk_size=mixer.chunk_size, **common)
    return FullAttentionSpec(head_size_v=mixer.head_size_v, **common)


def _latent_spec(
    mixer: MultiHeadLatentAttention, dtype: str, backend: AttentionBackend, block_size: int, setting: _Setting
) -> MLAAttentionSpec:
    """mla_attention.py:1075-1086. Sparse backends rewrite fp8 to fp8_ds_mla (:330-343)."""
    release = setting.release
    cache_dtype = dtype
    quantised = kv_quant_mode(dtype).value != "none"
    if backend.name == "FLASHMLA_SPARSE" and quantised and dtype != "nvfp4_ds_mla":
        cache_dtype = "fp8_ds_mla"
    if backend.name == "FLASHINFER_MLA_SPARSE_SM120" and dtype in ("auto", "fp8", "fp8_e4m3"):
        cache_dtype = "fp8_ds_mla"
    content = 352 if cache_dtype == "nvfp4_ds_mla" else None
    spec = MLAAttentionSpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=mixer.kv_lora_rank + mixer.qk_rope_head_dim,
        dtype=storage_dtype(cache_dtype, setting.engine.dtype),
        cache_dtype_str=cache_dtype,
        kv_quant_mode=kv_quant_mode(cache_dtype),
        state_content_bytes=content,
        is_index_group_leader=mixer.indexer is not None and release.has("sparse_cache_roles"),
        kernel_block_alignment=_kernel_alignment(backend, release),
    )
    return spec


def _pads(backend: AttentionBackend, release: Release) -> bool:
    """`indexes_kv_by_block_stride`: 0.24.0 to 0.28.0; TurboQuant and latent caches cannot be padded."""
    padded = release.has("page_padding_by_stride") and not release.has("page_padding_non_mla")
    return padded and backend.name != "TURBOQUANT"


def _kernel_alignment(backend: AttentionBackend, release: Release) -> int | None:
    """Backends with fixed kernel blocks keep them whole in packed blocks (v1/worker/utils.py, 0.32.0 on)."""
    if not release.has("kernel_block_stride") or backend.takes_multiples or not backend.kernel_block_sizes:
        return None
    return max(backend.kernel_block_sizes)


def _encoder_tokens(config: ModelConfig, architecture: Architecture) -> int:
    """Tokens of encoder states that a request's cross-attention layers may hold."""
    mixers = (mixer for group in architecture.layers for mixer in group.mixers)
    if not any(isinstance(mixer, Attention) and mixer.kind is AttentionKind.CROSS for mixer in mixers):
        return 0
    return config.size("max_source_positions")
