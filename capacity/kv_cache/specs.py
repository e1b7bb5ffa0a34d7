"""KV cache specs: what one layer stores per block and how many blocks one request may need of it.

The classes mirror vllm/v1/kv_cache_interface.py; line references are to 0.26.0 unless another release is
named. A *page* is one block of one layer. Specs hold plain values: which release packs which cache dtype how
is decided in `layers.py`, which sets `state_content_bytes` (and `num_head_slots`) where a backend packs its
pages (`customize_spec`, 0.28.0 on).
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import StrEnum
from math import gcd, prod

from vllm_capacity.frozen import dataclass
from vllm_capacity.units import DTYPE_BYTES, cdiv, round_up


class KVQuantMode(StrEnum):
    """`KVQuantMode` of vLLM; TurboQuant and later packed formats only choose `state_content_bytes`."""

    NONE = "none"
    FP8_PER_TENSOR = "fp8_per_tensor"
    INT8_PER_TOKEN_HEAD = "int8_per_token_head"
    FP8_PER_TOKEN_HEAD = "fp8_per_token_head"
    INT4_PER_TOKEN_HEAD = "int4_per_token_head"
    NVFP4 = "nvfp4"
    PACKED = "packed"

    @property
    def is_per_token_head(self) -> bool:
        return self.value.endswith("_per_token_head")


_QUANT_MODES = {
    mode.value: mode for mode in KVQuantMode if mode.is_per_token_head or mode is KVQuantMode.NVFP4
}


def kv_quant_mode(kv_cache_dtype: str) -> KVQuantMode:
    """The mode of a `--kv-cache-dtype` string (`get_kv_quant_mode`, :62-76)."""
    if kv_cache_dtype in _QUANT_MODES:
        return _QUANT_MODES[kv_cache_dtype]
    return KVQuantMode.FP8_PER_TENSOR if kv_cache_dtype.startswith("fp8") else KVQuantMode.NONE


def nvfp4_dim(head_size: int) -> int:
    """Bytes of one nvfp4 head: fp4 data and one fp8 scale per 16 elements (utils/torch_utils.py:414-416)."""
    return head_size // 2 + head_size // 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What the worst single request may hold: the inputs of `max_memory_usage_bytes`.

    `in_flight_tokens` is `max_in_flight_tokens` where the release counts all concurrent batches, else one
    batch. `kv_shards` is dcp, up to 0.25.1 dcp x pcp. `mamba_all_adds_speculative`: 0.22.0 on. Lengths are in
    tokens.
    """

    max_model_len: int
    in_flight_tokens: int
    kv_shards: int = 1
    mamba_cache_mode: str = "none"
    mamba_all_adds_speculative: bool = True
    encoder_tokens: int = 0

    def at(self, max_model_len: int) -> RequestLimits:
        """The same limits at another length; searches ask often, so without `dataclasses.replace`."""
        return RequestLimits(
            max_model_len=max_model_len,
            in_flight_tokens=self.in_flight_tokens,
            kv_shards=self.kv_shards,
            mamba_cache_mode=self.mamba_cache_mode,
            mamba_all_adds_speculative=self.mamba_all_adds_speculative,
            encoder_tokens=self.encoder_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """One layer's cache. `block_size` is in tokens."""

    block_size: int

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer."""
        raise NotImplementedError

    def max_pages(self, limits: RequestLimits) -> int:
        """Blocks that one request of `limits.max_model_len` tokens may need of this layer."""
        raise NotImplementedError

    def max_memory_usage_bytes(self, limits: RequestLimits) -> int:
        return self.max_pages(limits) * self.page_size_bytes

    @property
    def stride_bytes(self) -> int:
        """The page rounded up to its block stride alignment (`_get_layer_block_stride`, 0.32.0 on)."""
        return self.page_size_bytes

    @property
    def stride_alignment_bytes(self) -> int:
        """`get_block_stride_alignment` (0.32.0 on); 1 where nothing is asked."""
        return 1

    def on_layers(self, layers: frozenset[int]) -> KVCacheSpec:
        """The spec of a group of which only `layers` are on this pipeline stage."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    """:180-224. `dtype` is torch's name of the storage dtype, `num_kv_heads` is per rank.

    `pads_to_block_stride` is `indexes_kv_by_block_stride` (0.24.0 to 0.28.0: the backend can read a padded
    page). `block_stride_alignment` is in bytes; `kernel_block_alignment` (`MultipleOf(n)`, 0.32.0 on) in
    tokens.
    """

    num_kv_heads: int
    head_size: int
    head_size_v: int | None = None
    dtype: str = "bfloat16"
    kv_quant_mode: KVQuantMode = KVQuantMode.NONE
    page_size_padded: int | None = None
    pads_to_block_stride: bool = False
    num_head_slots: int | None = None
    state_content_bytes: int | None = None
    tokens_per_state: int = 1
    dcp_sharded: bool = True
    block_stride_alignment: int | None = None
    kernel_block_alignment: int | None = None

    def __post_init__(self) -> None:
        if self.head_size_v is None:
            object.__setattr__(self, "head_size_v", self.head_size)

    @property
    def value_size(self) -> int:
        return self.head_size if self.head_size_v is None else self.head_size_v

    @property
    def num_states(self) -> int:
        """Stored states per block; `block_size // compress_ratio` up to 0.28.0."""
        return self.block_size // self.tokens_per_state

    @property
    def content_bytes(self) -> int:
        """Bytes per head slot and stored state."""
        if self.state_content_bytes is not None:
            return self.state_content_bytes
        return self._unpacked_content_bytes()

    def _unpacked_content_bytes(self) -> int:
        """2 x head size, whatever `head_size_v` says (:203-218); cross, encoder-only and chunked layers."""
        scales = 8 if self.kv_quant_mode.is_per_token_head else 0
        return 2 * self._dim(self.head_size) * DTYPE_BYTES[self.dtype] + scales

    def _dim(self, head_size: int) -> int:
        if self.kv_quant_mode is KVQuantMode.NVFP4:
            return nvfp4_dim(head_size)
        if self.kv_quant_mode is KVQuantMode.INT4_PER_TOKEN_HEAD:
            return head_size // 2
        return head_size

    @property
    def num_heads(self) -> int:
        """Head slots of the page; one for each KV head unless the backend packs otherwise."""
        return self.num_kv_heads if self.num_head_slots is None else self.num_head_slots

    @property
    def unpadded_page_size_bytes(self) -> int:
        return self.num_heads * self.num_states * self.content_bytes

    @property
    def page_size_bytes(self) -> int:
        return self.unpadded_page_size_bytes if self.page_size_padded is None else self.page_size_padded

    @property
    def stride_alignment_bytes(self) -> int:
        """`get_block_stride_alignment` (0.32.0 on); 1 where nothing is asked."""
        if self.kernel_block_alignment is not None:
            kernel_block = gcd(self.kernel_block_alignment, self.block_size)
            return (
                1
                if kernel_block == self.block_size
                else replace(self, block_size=kernel_block).page_size_bytes
            )
        return self.block_stride_alignment or 1

    @property
    def stride_bytes(self) -> int:
        return round_up(self.page_size_bytes, self.stride_alignment_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """:227-342. `sliding_window` and `attention_chunk_size` are set where a local layer is kept as full
    attention.
    """

    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    non_causal: bool = False

    def _unpacked_content_bytes(self) -> int:
        scales = 8 if self.kv_quant_mode.is_per_token_head else 0
        return (self._dim(self.head_size) + self._dim(self.value_size)) * DTYPE_BYTES[self.dtype] + scales

    def max_pages(self, limits: RequestLimits) -> int:
        length = limits.max_model_len
        if self.dcp_sharded and limits.kv_shards > 1:
            length = cdiv(length, limits.kv_shards)
        return cdiv(length, self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class TQFullAttentionSpec(FullAttentionSpec):
    """:354-375, up to 0.27.1: one slot per head holds K and V."""

    tq_slot_size: int = 0

    def _unpacked_content_bytes(self) -> int:
        return self.tq_slot_size or super(TQFullAttentionSpec, self)._unpacked_content_bytes()  # noqa: UP008 (slots make a new class)


@dataclass(frozen=True, slots=True, kw_only=True)
class RSWASpec(FullAttentionSpec):
    """Reference sliding window attention (:458-495, 0.25.0 on): sized as full attention."""

    rswa_window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFullAttentionSpec(FullAttentionSpec):
    """:762-813. Its manager takes `sink_len // block_size` blocks out of the pool once."""

    sink_len: int | None = None


FP8_DS_MLA_BYTES = {None: 656, "deepseek_v4": 584}
"""Bytes per token of fp8_ds_mla: latent, rope part and scales (:399-406)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAAttentionSpec(FullAttentionSpec):
    """One latent per token, no separate V (:378-449). `alignment` pads the page (DeepSeek-V4)."""

    head_size_v: int | None = 0
    cache_dtype_str: str | None = None
    alignment: int | None = None
    model_version: str | None = None
    cache_role: str = "sparse"
    is_index_group_leader: bool = False

    def __post_init__(self) -> None:
        _apply_alignment_padding(self)

    def _unpacked_content_bytes(self) -> int:
        if self.cache_dtype_str == "fp8_ds_mla":
            return FP8_DS_MLA_BYTES[self.model_version]
        scales = 8 if self.kv_quant_mode.is_per_token_head else 0
        dim = self.head_size // 2 if self.kv_quant_mode is KVQuantMode.INT4_PER_TOKEN_HEAD else self.head_size
        return dim * DTYPE_BYTES[self.dtype] + scales


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStateCacheSpec(MLAAttentionSpec):
    """Hidden states kept for `extract_hidden_states` (:451-455, 0.22.0 on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """:529-606. vLLM has no int4 branch here up to 0.27.1: such pages are as large as int8 ones.

    `extra_retained_tokens` (0.28.0 on) widens the window for multi-module speculation.
    """

    sliding_window: int
    extra_retained_tokens: int = 0

    def _unpacked_content_bytes(self) -> int:
        scales = 8 if self.kv_quant_mode.is_per_token_head else 0
        dims = self.head_size + self.value_size
        if self.kv_quant_mode is KVQuantMode.NVFP4:
            dims = nvfp4_dim(self.head_size) + nvfp4_dim(self.value_size)
        return dims * DTYPE_BYTES[self.dtype] + scales

    def max_pages(self, limits: RequestLimits) -> int:
        kept = self.sliding_window - 1 + self.extra_retained_tokens + limits.in_flight_tokens
        return cdiv(min(kept, limits.max_model_len), self.block_size) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindowMLASpec(SlidingWindowSpec):
    """:609-691."""

    head_size_v: int | None = 0
    cache_dtype_str: str | None = None
    alignment: int | None = None
    model_version: str | None = None
    bounded_replay: bool = False

    def __post_init__(self) -> None:
        _apply_alignment_padding(self)

    def _unpacked_content_bytes(self) -> int:
        if self.cache_dtype_str == "fp8_ds_mla" and self.model_version == "deepseek_v4":
            return FP8_DS_MLA_BYTES["deepseek_v4"]
        scales = 8 if self.kv_quant_mode.is_per_token_head else 0
        return self.head_size * DTYPE_BYTES[self.dtype] + scales


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """:498-526."""

    attention_chunk_size: int

    def max_pages(self, limits: RequestLimits) -> int:
        kept = self.attention_chunk_size + limits.in_flight_tokens
        return cdiv(min(kept, limits.max_model_len), self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class CircularBufferSpec(AttentionSpec):
    """One block per request for its whole life (0.29.0 on; `KpoolTailSpec` in 0.30.0 and 0.31.0)."""

    def max_pages(self, limits: RequestLimits) -> int:
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttentionSpec(AttentionSpec):
    """:749-759: the encoder's states."""

    def max_pages(self, limits: RequestLimits) -> int:
        return cdiv(limits.encoder_tokens, self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """:741-746: needs no KV cache."""

    def max_pages(self, limits: RequestLimits) -> int:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec(KVCacheSpec):
    """A fixed-size state per sequence (:688-738). The page does not depend on `block_size`."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    page_size_padded: int | None = None
    mamba_type: str = "mamba2"
    mamba_cache_mode: str = "none"
    num_speculative_blocks: int = 0
    num_prefill_checkpoint_blocks: int = 0
    tp_replicated: bool = False

    @property
    def state_bytes(self) -> int:
        return sum(
            prod(shape) * DTYPE_BYTES[dtype] for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )

    @property
    def page_size_bytes(self) -> int:
        return self.state_bytes if self.page_size_padded is None else self.page_size_padded

    def max_pages(self, limits: RequestLimits) -> int:
        if limits.mamba_cache_mode == "all":
            extra = self.num_speculative_blocks if limits.mamba_all_adds_speculative else 0
            return cdiv(limits.max_model_len, self.block_size) + extra
        if limits.mamba_cache_mode == "align":
            return 2 + self.num_speculative_blocks + self.num_prefill_checkpoint_blocks
        return 1 + self.num_speculative_blocks


def _apply_alignment_padding(spec: MLAAttentionSpec | SlidingWindowMLASpec) -> None:
    """:345-351. A padding that is already there stays unless alignment asks for another."""
    if spec.alignment is None:
        return
    actual = spec.unpadded_page_size_bytes
    padded = round_up(actual, spec.alignment)
    if padded != actual:
        object.__setattr__(spec, "page_size_padded", padded)


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Layers with equal specs. `layers` are keys of `KVLayers`, in vLLM's order."""

    spec: KVCacheSpec
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformTypeKVCacheSpecs(KVCacheSpec):
    """Layers of one type with different page sizes (:816-900)."""

    runs: tuple[LayerRun, ...]

    @property
    def page_size_bytes(self) -> int:
        return sum(run.spec.page_size_bytes * len(run.layers) for run in self.runs)

    def max_pages(self, limits: RequestLimits) -> int:
        return max(run.spec.max_pages(limits) for run in self.runs)

    def on_layers(self, layers: frozenset[int]) -> KVCacheSpec:
        kept = ((run.spec, tuple(key for key in run.layers if key in layers)) for run in self.runs)
        return replace(self, runs=tuple(LayerRun(spec, keys) for spec, keys in kept if keys))

    @property
    def layers_by_page_size(self) -> dict[int, int]:
        """Page size in bytes -> how many layers have it."""
        counts: dict[int, int] = {}
        for run in self.runs:
            page = run.spec.page_size_bytes
            counts[page] = counts.get(page, 0) + len(run.layers)
        return counts

    @property
    def max_layers_per_page_size(self) -> int:
        """`get_num_layer_tuples`, `get_max_layers_per_page_size` from 0.29.0 on."""
        return max(self.layers_by_page_size.values())


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers that share a block table. On a pipeline stage `layers` may be empty while `spec` stays the
    whole group's.
    """

    spec: KVCacheSpec
    layers: tuple[int, ...] = field(default=())

    @property
    def layer_specs(self) -> tuple[LayerRun, ...]:
        """The specs of this group's layers, equal ones together."""
        if isinstance(self.spec, UniformTypeKVCacheSpecs):
            return self.spec.runs if self.layers else ()
        return (LayerRun(self.spec, self.layers),) if self.layers else ()

    @property
    def page_bytes(self) -> int:
        """Bytes of one block over all layers of this group here."""
        return sum(run.spec.page_size_bytes * len(run.layers) for run in self.layer_specs)

    @property
    def has_mamba(self) -> bool:
        return any(isinstance(run.spec, MambaSpec) for run in self.layer_specs)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayers:
    """All layers with a KV cache, in vLLM's order: the dictionary that `get_kv_cache_spec` returns, all
    stages merged.

    A layer's key is its place in that order; `layer_index[key]` is the decoder layer it belongs to (draft
    layers count on from the last one). `block_size` and `mamba_block_size` are the cache config's, in tokens,
    after alignment. `layout` is the resolved KV cache layout (0.29.0 on).
    """

    runs: tuple[LayerRun, ...]
    layer_index: tuple[int, ...]
    block_size: int
    mamba_block_size: int | None = None
    backends: tuple[str, ...] = ()
    layout: str = "LBNHC"
    encoder_tokens: int = 0
    notes: tuple[str, ...] = ()

    @property
    def block_outermost(self) -> bool:
        return self.layout.startswith("B")
