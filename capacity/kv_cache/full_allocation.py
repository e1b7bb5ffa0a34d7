"""Local attention layers kept as full attention: without the hybrid KV cache manager, and as 0.27.0's
fallback.

Source: `unify_hybrid_kv_cache_specs` (v1/core/kv_cache_utils.py:1429-1522, 0.26.0),
`_promote_local_kv_cache_specs` and `_try_get_full_allocation_fallback_groups` (0.27.0 on;
v1/core/kv_cache_planning.py, 0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from vllm_capacity.errors import Reason, RefusedError
from vllm_capacity.kv_cache.merging import all_layers, combine, is_uniform_type, merge, uniform_type
from vllm_capacity.kv_cache.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheGroup,
    KVCacheSpec,
    LayerRun,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm_capacity.releases.release import Release

_LOCAL = (SlidingWindowSpec, ChunkedLocalAttentionSpec)


def without_hybrid_manager(runs: Sequence[LayerRun], release: Release) -> tuple[LayerRun, ...]:
    """The runs with every local layer as a full one. Raises RefusedError where they still differ in type."""
    if not release.has("dcp_sharding_per_layer"):
        return _promoted(runs, release)
    replicated = [run for run in runs if isinstance(run.spec, AttentionSpec) and not run.spec.dcp_sharded]
    sharded = [run for run in runs if run not in replicated]
    parts = [part for part in (sharded, replicated) if part]
    return combine(run for part in parts for run in _promoted(part, release))


def full_allocation_groups(runs: Sequence[LayerRun], release: Release) -> tuple[KVCacheGroup, ...] | None:
    """One group of everything where MLA stands beside sliding windows whose pages cannot be unified, else
    None.
    """
    specs = [run.spec for run in runs]
    if any(
        isinstance(s, (HiddenStateCacheSpec, SlidingWindowMLASpec, ChunkedLocalAttentionSpec)) for s in specs
    ):
        return None
    if not any(isinstance(s, MLAAttentionSpec) for s in specs) or not any(
        isinstance(s, SlidingWindowSpec) for s in specs
    ):
        return None
    try:
        promoted = _promoted(runs, release)
    except RefusedError:
        return None
    uniform = uniform_type(promoted, release)
    return None if uniform is None else (KVCacheGroup(uniform, all_layers(promoted)),)


def _promoted(runs: Sequence[LayerRun], release: Release) -> tuple[LayerRun, ...]:
    if not runs or _one_type(runs, release):
        return tuple(runs)
    full = [run.spec for run in runs if isinstance(run.spec, FullAttentionSpec)]
    if full and any(isinstance(run.spec, _LOCAL) for run in runs):
        runs = combine(LayerRun(_as_full(run.spec, full, runs, release), run.layers) for run in runs)
    if not _one_type(runs, release):
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            "Failed to promote local KV cache specs to one unified type."
            if release.has("full_allocation_fallback")
            else "Hybrid KV cache manager is disabled but failed to convert the KV cache specs to one "
            "unified type.",
        )
    return tuple(runs)


def _one_type(runs: Sequence[LayerRun], release: Release) -> bool:
    specs = [run.spec for run in runs]
    return merge(specs, release) is not None or is_uniform_type(specs, release)


def _as_full(
    spec: KVCacheSpec, full: Sequence[FullAttentionSpec], runs: Sequence[LayerRun], release: Release
) -> KVCacheSpec:
    if not isinstance(spec, _LOCAL):
        return spec
    if isinstance(spec, SlidingWindowMLASpec) and release.has("dcp_sharding_per_layer"):
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            "MLAAttentionSpec.__init__() got an unexpected keyword argument 'bounded_replay'",
        )
    sizes = {other.block_size for other in full}
    if release.has("full_allocation_fallback"):
        block_size = sizes.pop() if len(sizes) == 1 else spec.block_size
    elif isinstance(spec, SlidingWindowMLASpec):
        block_size = full[0].block_size
    else:
        block_size = spec.block_size
    kept = {
        field.name: getattr(spec, field.name)
        for field in fields(spec)
        if field.name not in _dropped(spec, release)
    }
    kept["block_size"] = block_size
    if spec.page_size_padded is not None and release.has("full_allocation_fallback"):
        kept["page_size_padded"] = max(
            spec.page_size_padded, spec.unpadded_page_size_bytes * block_size // spec.block_size
        )
    target = MLAAttentionSpec if isinstance(spec, SlidingWindowMLASpec) else FullAttentionSpec
    return target(**kept)


def _dropped(spec: AttentionSpec, release: Release) -> tuple[str, ...]:
    """Fields that the promotion loses: up to 0.27.1 each class is rebuilt from a hand-written list of
    fields.
    """
    dropped: tuple[str, ...] = ("extra_retained_tokens",)
    if isinstance(spec, SlidingWindowMLASpec):
        # No MLA spec has these fields; a latent cache is kept whatever its window.
        dropped += ("sliding_window", "bounded_replay")
    if release.has("backend_packs_pages"):
        return dropped
    dropped += ("pads_to_block_stride",)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return (*dropped, "kv_quant_mode")
    if not isinstance(spec, SlidingWindowMLASpec) and not release.has("promotion_keeps_quant_mode"):
        return (*dropped, "kv_quant_mode", "head_size_v")
    return dropped
