"""Which layers count as the same: vLLM's `merge` and uniform-type rules, on distinct specs.

Source: `KVCacheSpec.merge` and `is_uniform_with_collection` of vllm/v1/kv_cache_interface.py,
`register_all_kvcache_specs` of vllm/v1/core/single_type_kv_cache_manager.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.kv_cache.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    LayerRun,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm_capacity.releases.release import Release

_BASE_FIELDS = (
    "block_size", "num_kv_heads", "head_size", "dtype", "kv_quant_mode", "page_size_padded",
    "pads_to_block_stride", "num_head_slots", "state_content_bytes", "tokens_per_state", "dcp_sharded",
    "block_stride_alignment", "kernel_block_alignment",
)  # fmt: skip
"""Fields of vLLM's `AttentionSpec`. Those that a release lacks have their default everywhere."""


class WindowsDifferError(RefusedError):
    """`FullAttentionSpec.merge_window_sizes` raises where local layers kept as full attention differ in
    window.
    """


def merge(specs: Sequence[KVCacheSpec], release: Release) -> KVCacheSpec | None:
    """The one spec that stands for all, or None where vLLM's `merge` asserts. Raises WindowsDifferError."""
    first = specs[0]
    if isinstance(first, SlidingWindowMLASpec):
        return _merge_swa_mla(specs)
    if isinstance(first, MLAAttentionSpec):
        return _merge_mla(specs, release)
    if isinstance(first, FullAttentionSpec):
        return _merge_full(specs, release)
    return first if all(spec == first for spec in specs[1:]) else None


def _equal(specs: Sequence[KVCacheSpec], *names: str) -> bool:
    first = specs[0]
    return all(getattr(spec, name) == getattr(first, name) for name in names for spec in specs[1:])


def _merge_full(specs: Sequence[KVCacheSpec], release: Release) -> KVCacheSpec | None:
    """:265-326; RSWA :476-495. Up to 0.27.1 `head_size_v` belongs to no compared class, so it may differ."""
    first = specs[0]
    assert isinstance(first, FullAttentionSpec)
    full = [spec for spec in specs if isinstance(spec, FullAttentionSpec)]
    if len(full) < len(specs) or any(isinstance(spec, MLAAttentionSpec) for spec in specs):
        return None
    if isinstance(first, RSWASpec) and not (
        all(isinstance(spec, RSWASpec) for spec in specs) and _equal(specs, "rswa_window")
    ):
        return None
    window = _merged_window([spec.sliding_window for spec in full])
    chunk = _merged_window([spec.attention_chunk_size for spec in full])
    names = (*_BASE_FIELDS, "head_size_v") if release.has("backend_packs_pages") else _BASE_FIELDS
    if not _equal(specs, *names) or (window is not None and chunk is not None):
        return None
    if first.sliding_window == window and first.attention_chunk_size == chunk:
        return first
    return replace(first, sliding_window=window, attention_chunk_size=chunk)


def _merged_window(windows: Sequence[int | None]) -> int | None:
    distinct = {window for window in windows if window is not None}
    if len(distinct) > 1:
        raise WindowsDifferError(
            Reason.UNSUPPORTED_BY_RELEASE,
            "All attention layers in the same KV cache group must have the same window size.",
        )
    return distinct.pop() if distinct else None


def _merge_mla(specs: Sequence[KVCacheSpec], release: Release) -> KVCacheSpec | None:
    """:418-449; all `AttentionSpec` fields are compared from 0.27.0 on."""
    if not all(isinstance(spec, MLAAttentionSpec) for spec in specs):
        return None
    names: tuple[str, ...] = (
        "cache_dtype_str", "tokens_per_state", "model_version", "pads_to_block_stride", "cache_role",
        "is_index_group_leader", "block_stride_alignment", "kernel_block_alignment",
    )  # fmt: skip
    if release.has("mla_merge_compares_all"):
        names += _BASE_FIELDS
    if release.has("backend_packs_pages"):
        names += ("head_size_v",)
    return specs[0] if _equal(specs, *names) else None


def _merge_swa_mla(specs: Sequence[KVCacheSpec]) -> KVCacheSpec | None:
    """:645-680: block and head sizes are not compared."""
    names = (
        "cache_dtype_str", "tokens_per_state", "model_version", "sliding_window", "pads_to_block_stride",
        "extra_retained_tokens", "bounded_replay", "block_stride_alignment", "dcp_sharded",
    )  # fmt: skip
    if not all(isinstance(spec, SlidingWindowMLASpec) for spec in specs) or not _equal(specs, *names):
        return None
    return specs[0]


def is_uniform_type(specs: Sequence[KVCacheSpec], release: Release) -> bool:
    """Whether all layers always need the same number of token slots
    (`UniformTypeKVCacheSpecs.is_uniform_type`).
    """
    first = specs[0]
    if any(spec.block_size != first.block_size for spec in specs):
        return False
    sharded = [spec.dcp_sharded if isinstance(spec, AttentionSpec) else False for spec in specs]
    if release.has("dcp_sharding_per_layer") and len(set(sharded)) > 1:
        return False
    if isinstance(first, SlidingWindowMLASpec):
        return all(isinstance(spec, SlidingWindowMLASpec) for spec in specs) and _equal(
            specs, "sliding_window", "bounded_replay"
        )
    for base, names in (
        (FullAttentionSpec, ()),
        (SlidingWindowSpec, ("sliding_window",)),
        (ChunkedLocalAttentionSpec, ("attention_chunk_size",)),
        (CrossAttentionSpec, ()),
        (CircularBufferSpec, ()),
        (MambaSpec, _mamba_fields(release)),
    ):
        if isinstance(first, base):
            return all(isinstance(spec, base) for spec in specs) and _equal(specs, *names)
    kind = "encoder-only attention" if isinstance(first, EncoderOnlyAttentionSpec) else type(first).__name__
    raise InputError(f"vLLM groups no KV cache layers of kind {kind}; leave them out of the layers")


def _mamba_fields(release: Release) -> tuple[str, ...]:
    if release.has("packed_kv_groups"):
        return ("num_speculative_blocks", "num_prefill_checkpoint_blocks", "page_size_bytes", "tp_replicated")
    return ("num_speculative_blocks",)


def uniform_type(runs: Sequence[LayerRun], release: Release) -> UniformTypeKVCacheSpecs | None:
    """`UniformTypeKVCacheSpecs.from_specs`."""
    if not is_uniform_type([run.spec for run in runs], release):
        return None
    return UniformTypeKVCacheSpecs(block_size=runs[0].spec.block_size, runs=tuple(runs))


def all_layers(runs: Sequence[LayerRun]) -> tuple[int, ...]:
    """The layers of all runs in vLLM's order."""
    if len(runs) == 1:
        return runs[0].layers
    return tuple(sorted(key for run in runs for key in run.layers))


def combine(runs: Iterable[LayerRun]) -> tuple[LayerRun, ...]:
    """Runs whose specs became equal as one, in the order of their first layer."""
    layers: dict[KVCacheSpec, list[int]] = {}
    for run in runs:
        layers.setdefault(run.spec, []).extend(run.layers)
    combined = [LayerRun(spec, tuple(sorted(keys))) for spec, keys in layers.items()]
    return tuple(sorted(combined, key=lambda run: run.layers[0]))
