"""The cache spec of one layer, by its mixer, cache dtype, backend and block size.

Source: `get_kv_cache_spec` of
vllm/model_executor/layers/attention/{attention,mla_attention,chunked_local_attention}.py, mamba/abstract.py
and models/deepseek_v2.py (0.26.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

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
from vllm_capacity.attention_backends import AttentionBackend, kv_heads_per_rank
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineConfig
from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.kv_cache.block_size import BlockSizes, window_block_size
from vllm_capacity.kv_cache.cache_dtypes import packing, storage_dtype, turboquant_slot
from vllm_capacity.kv_cache.compressed_latent import compressed_latent_spec, uses_fp4_indexer
from vllm_capacity.kv_cache.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
    kv_quant_mode,
)
from vllm_capacity.kv_cache.state_shapes import state_dtypes, state_shapes
from vllm_capacity.releases.release import Release

GDN_CHECKPOINT_ALIGNMENT = 64
"""Tokens between states that FlashInfer's gated-delta prefill can export
(v1/attention/backends/gdn_attn.py, 0.33.0).
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """One cache that decoder layers register. `indexer` is set for the key cache of sparse attention, `skipped`
    where `--kv-cache-dtype-skip-layers` names the layer.
    """

    mixer: Mixer
    indexer: Indexer | None = None
    part: str = ""
    """Which of the caches of a compressed latent layer (compressed_latent.py); empty for other layers."""
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    config: ModelConfig
    architecture: Architecture
    engine: EngineConfig
    device: Device
    release: Release
    skipped: frozenset[str]

    def cache_dtype(self, slot: Slot) -> str:
        """The layer's cache dtype: 'auto' where `--kv-cache-dtype-skip-layers` names it
        (attention.py:299-315).
        """
        windowed = isinstance(slot.mixer, Attention) and slot.mixer.sliding_window is not None
        if slot.skipped or (windowed and "sliding_window" in self.skipped):
            return "auto"
        return self.engine.kv_cache_dtype


def layer_spec(
    slot: Slot, dtype: str, backend: AttentionBackend, sizes: BlockSizes, setting: Setting
) -> KVCacheSpec:
    mixer = slot.mixer
    if isinstance(mixer, StateSpace):
        return _state_spec(mixer, sizes, setting)
    if slot.part and isinstance(mixer, MultiHeadLatentAttention):
        return compressed_latent_spec(
            mixer,
            slot.part,
            dtype,
            sizes.block_size,
            setting.release,
            fp4_indexer=uses_fp4_indexer(setting.engine),
        )
    if slot.indexer is not None and isinstance(mixer, Attention):
        return _block_indexer_spec(slot.indexer, sizes, setting)
    if slot.indexer is not None:
        return _indexer_spec(slot.indexer, sizes, setting)
    if isinstance(mixer, Attention) and mixer.sliding_window is not None:
        token = _window_spec(mixer, dtype, backend, 1, None, setting)
        block_size = window_block_size(backend, token.unpadded_page_size_bytes, sizes, setting.release)
        return _window_spec(mixer, dtype, backend, block_size, sizes.skip_page_padded, setting)
    return attention_spec(slot, dtype, backend, sizes.block_size, setting)


def _state_spec(mixer: StateSpace, sizes: BlockSizes, setting: Setting) -> MambaSpec:
    engine, release = setting.engine, setting.release
    checkpoints = 0
    if (
        mixer.kind is StateSpaceKind.MAMBA2 and release.has("mamba2_prefill_checkpoints")
    ) or exports_gdn_states([mixer], setting):
        checkpoints = 1
    assert sizes.mamba_block_size is not None
    return MambaSpec(
        block_size=sizes.mamba_block_size,
        shapes=layer_state_shapes(mixer, setting),
        dtypes=layer_state_dtypes(mixer, setting),
        page_size_padded=sizes.mamba_page_padded,
        mamba_type=mixer.kind.value,
        mamba_cache_mode=engine.mamba_cache_mode,
        num_speculative_blocks=engine.num_speculative_tokens,
        num_prefill_checkpoint_blocks=checkpoints,
    )


def layer_state_shapes(mixer: StateSpace, setting: Setting) -> tuple[tuple[int, ...], ...]:
    engine = setting.engine
    if engine.args.other("use_replayssm") or engine.args.other("use_kda_recoverssm"):
        raise InputError(
            "state layouts of --use-replayssm and --use-kda-recoverssm are not modelled; plan without them"
        )
    return state_shapes(
        mixer, engine.parallel.tp, setting.release, speculative_tokens=engine.num_speculative_tokens
    )


def _indexer_spec(indexer: Indexer, sizes: BlockSizes, setting: Setting) -> MLAAttentionSpec:
    """fp8 keys and one fp32 scale per 128 of them (models/deepseek_v2.py:629-699)."""
    return MLAAttentionSpec(
        block_size=sizes.block_size,
        num_kv_heads=1,
        head_size=indexer.head_size + indexer.head_size // 128 * 4,
        dtype="uint8",
        cache_role="indexer" if setting.release.has("sparse_cache_roles") else "sparse",
        kernel_block_alignment=64 if setting.release.has("kernel_block_stride") else None,
    )


def _block_indexer_spec(indexer: Indexer, sizes: BlockSizes, setting: Setting) -> MLAAttentionSpec:
    """One bf16 key per token (models/minimax_m3/common/indexer.py:145-156, 0.33.0)."""
    return MLAAttentionSpec(
        block_size=sizes.block_size,
        num_kv_heads=1,
        head_size=indexer.head_size,
        dtype="bfloat16",
        cache_role="indexer" if setting.release.has("sparse_cache_roles") else "sparse",
    )


class _Fields(TypedDict, total=False):
    """What every attention spec has."""

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: str
    kv_quant_mode: KVQuantMode
    pads_to_block_stride: bool
    kernel_block_alignment: int | None
    state_content_bytes: int
    num_head_slots: int


def _fields(
    mixer: Attention, dtype: str, backend: AttentionBackend, block_size: int, setting: Setting
) -> _Fields:
    release = setting.release
    heads = kv_heads_per_rank(mixer.num_kv_heads, setting.engine.parallel.tp)
    packed = packing(backend.name, dtype, mixer.head_size, mixer.head_size_v, heads, release)
    fields: _Fields = {
        "block_size": block_size,
        "num_kv_heads": heads,
        "head_size": mixer.head_size,
        "dtype": storage_dtype(dtype, setting.engine.dtype),
        "kv_quant_mode": kv_quant_mode(dtype),
        "pads_to_block_stride": _pads(backend, release),
        "kernel_block_alignment": _kernel_alignment(backend, release),
    }
    return {**fields, **packed}


def _window_spec(
    mixer: Attention,
    dtype: str,
    backend: AttentionBackend,
    block_size: int,
    padded: int | None,
    setting: Setting,
) -> SlidingWindowSpec:
    assert mixer.sliding_window is not None
    return SlidingWindowSpec(
        head_size_v=mixer.head_size_v,
        sliding_window=mixer.sliding_window,
        page_size_padded=padded,
        **_fields(mixer, dtype, backend, block_size, setting),
    )


def attention_spec(
    slot: Slot, dtype: str, backend: AttentionBackend, block_size: int, setting: Setting
) -> AttentionSpec:
    """The spec of an attention layer that is no sliding window, with blocks of `block_size` tokens."""
    mixer = slot.mixer
    if isinstance(mixer, MultiHeadLatentAttention):
        return _latent_spec(mixer, dtype, backend, block_size, setting)
    assert isinstance(mixer, Attention)
    fields = _fields(mixer, dtype, backend, block_size, setting)
    if mixer.kind is AttentionKind.CROSS:
        return CrossAttentionSpec(**fields)
    if mixer.chunk_size is not None:
        return ChunkedLocalAttentionSpec(attention_chunk_size=mixer.chunk_size, **fields)
    if dtype.startswith("turboquant_") and not setting.release.has("backend_packs_pages"):
        return TQFullAttentionSpec(tq_slot_size=turboquant_slot(dtype, mixer.head_size), **fields)
    return FullAttentionSpec(head_size_v=mixer.head_size_v, **fields)


def _latent_spec(
    mixer: MultiHeadLatentAttention, dtype: str, backend: AttentionBackend, block_size: int, setting: Setting
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


def layer_state_dtypes(mixer: StateSpace, setting: Setting) -> tuple[str, ...]:
    args = setting.engine.args
    return state_dtypes(
        mixer, setting.engine.dtype, setting.release, cache_dtype=args.other("mamba_cache_dtype", "auto"),
        ssm_cache_dtype=args.other("mamba_ssm_cache_dtype", "auto"),
    )  # fmt: skip


def exports_gdn_states(states: Sequence[StateSpace], setting: Setting) -> bool:
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
