"""Which layers share a block table: `get_kv_cache_groups` of vLLM, on runs of equal layers.

Source: vllm/v1/core/kv_cache_utils.py (0.26.0; line references) and vllm/v1/core/kv_cache_planning.py
(0.33.0). Layers are keys of `KVLayers`, numbered in vLLM's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd

from vllm_capacity.errors import Reason, RefusedError
from vllm_capacity.kv_cache.full_allocation import full_allocation_groups, without_hybrid_manager
from vllm_capacity.kv_cache.merging import WindowsDifferError, all_layers, combine, merge, uniform_type
from vllm_capacity.kv_cache.packing import deepseek_v4_groups, packed_groups, refuse_glm5_next
from vllm_capacity.kv_cache.specs import (
    AttentionSpec,
    HiddenStateCacheSpec,
    KVCacheGroup,
    KVCacheSpec,
    KVLayers,
    LayerRun,
    MambaSpec,
    MLAAttentionSpec,
)
from vllm_capacity.releases.release import Release
from vllm_capacity.units import DTYPE_BYTES, cdiv


class PageSizesDifferError(RefusedError):
    """The pages of all layers cannot be made equal (NotImplementedError in vLLM)."""


@lru_cache(maxsize=64)
def group_layers(
    layers: KVLayers, release: Release, *, hybrid_disabled: bool = False
) -> tuple[KVCacheGroup, ...]:
    """The groups of the whole model, all pipeline stages together (:1728-1794); () for attention-free models.

    Raises RefusedError where vLLM cannot group the layers, InputError where this package does not model how
    it does.
    """
    runs: Sequence[LayerRun] = layers.runs
    if hybrid_disabled:
        runs = without_hybrid_manager(runs, release)
    if not runs:
        return ()
    if (merged := merge([run.spec for run in runs], release)) is not None:
        return (KVCacheGroup(merged, all_layers(runs)),)
    if (uniform := uniform_type(runs, release)) is not None:
        return (KVCacheGroup(uniform, all_layers(runs)),)
    if release.has("deepseek_v4_groups") and (groups := deepseek_v4_groups(runs, release)):
        return groups
    if release.has("glm5_next_groups"):
        refuse_glm5_next(runs, release)
    hidden = [run for run in runs if isinstance(run.spec, HiddenStateCacheSpec)]
    others = [run for run in runs if not isinstance(run.spec, HiddenStateCacheSpec)]
    if (
        release.has("packed_kv_groups")
        and layers.block_outermost
        and (groups := packed_groups(others, release))
    ):
        return groups + tuple(KVCacheGroup(run.spec, (key,)) for run in hidden for key in run.layers)
    try:
        unified = unify_page_sizes(others, release)
    except PageSizesDifferError:
        fallback = full_allocation_groups(runs, release) if release.has("full_allocation_fallback") else None
        if fallback is None:
            raise
        return fallback
    groups = _uniform_page_groups(unified, release)
    return _with_hidden_states(groups, hidden, release) if hidden else groups


def unify_page_sizes(runs: Sequence[LayerRun], release: Release) -> tuple[LayerRun, ...]:
    """All pages as large as the largest: larger blocks, or padding (:1067-1129; rules differ by release).

    Raises PageSizesDifferError.
    """
    largest = max(run.spec.page_size_bytes for run in runs)
    if all(run.spec.page_size_bytes == largest for run in runs):
        return tuple(runs)
    return combine(LayerRun(_grown(run, largest, release), run.layers) for run in runs)


def _grown(run: LayerRun, largest: int, release: Release) -> KVCacheSpec:
    spec, page = run.spec, run.spec.page_size_bytes
    if page == largest:
        return spec
    if isinstance(spec, MambaSpec) and release.has("mamba_page_padding"):
        return replace(spec, page_size_padded=largest)
    if (
        largest % page == 0
        and (grown := replace(spec, block_size=spec.block_size * (largest // page)))
        and (grown.page_size_bytes == largest)
    ):
        return grown
    if isinstance(spec, AttentionSpec) and largest % page:
        if release.has("page_padding_non_mla"):
            paddable = not isinstance(spec, MLAAttentionSpec)
        else:
            paddable = release.has("page_padding_by_stride") and spec.pads_to_block_stride
        if paddable:
            return replace(spec, page_size_padded=largest)
    raise PageSizesDifferError(Reason.UNSUPPORTED_BY_RELEASE, _differ_message(run.layers[0], release))


def _differ_message(layer: int, release: Release) -> str:
    if not release.has("page_padding_by_stride") and not release.has("page_padding_non_mla"):
        return (
            "The page size of the layer is not divisible by the maximum page size. "
            "Cannot unify by adjusting block_size."
        )
    rest = (
        "non-MLA attention layers."
        if release.has("page_padding_non_mla")
        else "attention layers whose backend indexes KV pages by the block stride "
        "(indexes_kv_by_block_stride is True)."
    )
    return (
        f"Layer {layer}: page size is not divisible by the maximum page size and cannot be padded. "
        f"Padding is only supported for {rest}"
    )


def _uniform_page_groups(runs: Sequence[LayerRun], release: Release) -> tuple[KVCacheGroup, ...]:
    """Equal layers in groups of one size (:1137-1256): the smallest bucket's, or the largest's if it is < 1.5
    times that.

    A bucket's i-th group takes every n-th layer, so that pipeline stages get layers of every group.
    """
    buckets: list[tuple[KVCacheSpec, list[int]]] = []
    for run in runs:
        target = _mergeable(buckets, run.spec, release) if release.has("merged_buckets") else None
        if target is None:
            buckets.append((run.spec, list(run.layers)))
        else:
            index, merged = target
            buckets[index] = (merged, buckets[index][1] + list(run.layers))
    smallest = min(len(keys) for _, keys in buckets)
    largest = max(len(keys) for _, keys in buckets)
    size = largest if largest < smallest * 1.5 else smallest
    groups = []
    for spec, keys in buckets:
        count = cdiv(len(keys), size)
        groups += [KVCacheGroup(spec, tuple(keys[i::count])) for i in range(count)]
    return tuple(groups)


def _mergeable(
    buckets: Sequence[tuple[KVCacheSpec, list[int]]], spec: KVCacheSpec, release: Release
) -> tuple[int, KVCacheSpec] | None:
    """The first bucket whose spec merges with `spec` (kv_cache_planning.py:470-487, 0.33.0; from 0.27.0
    on).
    """
    for index, (other, _) in enumerate(buckets):
        try:
            merged = merge([other, spec], release)
        except WindowsDifferError:
            continue
        if merged is not None:
            return index, merged
    return None


def _with_hidden_states(
    groups: tuple[KVCacheGroup, ...], hidden: Sequence[LayerRun], release: Release
) -> tuple[KVCacheGroup, ...]:
    """One group per hidden-state layer, its page padded to the common one (:1776-1792)."""
    page = groups[0].spec.page_size_bytes
    costs = {run.spec: _per_token(run.spec) for run in hidden}
    if release.has("hidden_state_min_page") and max(costs.values()) > page:
        scale = cdiv(max(costs.values()), page)
        page *= scale
        groups = tuple(KVCacheGroup(_scaled(group.spec, scale), group.layers) for group in groups)
    common_block = gcd(*(group.spec.block_size for group in groups))
    added = []
    for run in hidden:
        block = max(page // costs[run.spec], 1)
        if release.has("hidden_state_divisor_block"):
            block = next(size for size in range(min(block, common_block), 0, -1) if common_block % size == 0)
        assert isinstance(run.spec, HiddenStateCacheSpec)
        spec = replace(run.spec, block_size=block, page_size_padded=page)
        if spec.unpadded_page_size_bytes > page:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Hidden states of {costs[run.spec]} bytes per token do not fit a page of {page} bytes.",
            )
        added += [KVCacheGroup(spec, (key,)) for key in run.layers]
    return groups + tuple(added)


def _per_token(spec: KVCacheSpec) -> int:
    assert isinstance(spec, HiddenStateCacheSpec)
    return spec.num_kv_heads * spec.head_size * DTYPE_BYTES[spec.dtype]


def _scaled(spec: KVCacheSpec, scale: int) -> KVCacheSpec:
    """`_ensure_min_page_size` (0.30.0 on)."""
    scaled = replace(spec, block_size=spec.block_size * scale)
    if isinstance(scaled, (AttentionSpec, MambaSpec)) and scaled.page_size_padded is not None:
        return replace(scaled, page_size_padded=scaled.page_size_padded * scale)
    return scaled


def project(
    groups: Sequence[KVCacheGroup], layers: KVLayers, stages: Sequence[tuple[int, int]]
) -> tuple[tuple[KVCacheGroup, ...], ...]:
    """Per pipeline stage the groups with that stage's layers only (`_project_kv_cache_groups_to_worker`,
    :1994-2033).

    `stages` are [first, end) decoder layers; draft layers count on after the last and belong to the last
    stage.
    """
    if len(stages) <= 1:
        return (tuple(groups),)
    stage_of = []
    for index in layers.layer_index:
        stage_of.append(next((s for s, (_, end) in enumerate(stages) if index < end), len(stages) - 1))
    return tuple(
        tuple(_projected(group, stage_of, stage) for group in groups) for stage in range(len(stages))
    )


def _projected(group: KVCacheGroup, stage_of: Sequence[int], stage: int) -> KVCacheGroup:
    here = tuple(key for key in group.layers if stage_of[key] == stage)
    if not here or len(here) == len(group.layers):
        return KVCacheGroup(group.spec, here)
    return KVCacheGroup(group.spec.on_layers(frozenset(here)), here)
