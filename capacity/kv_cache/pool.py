"""From groups to bytes: what one block of the pool takes on a rank, and what one request needs.

Source: `_pool_bytes_per_block` and `_max_memory_usage_bytes_from_groups` (v1/core/kv_cache_utils.py:968-987
and 1832-1892, 0.26.0), `_get_kv_cache_bytes_per_block` (v1/core/kv_cache_planning.py, 0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.kv_cache.specs import KVCacheGroup, RequestLimits, UniformTypeKVCacheSpecs
from vllm_capacity.releases.release import Release
from vllm_capacity.units import cdiv, round_up


def bytes_per_block(groups: Sequence[KVCacheGroup], release: Release, *, block_outermost: bool) -> int:
    """Bytes of one block id over all layers of one rank: the divisor of its KV memory.

    Raises RefusedError for a rank without any layer that has a KV cache.
    """
    n_bytes = _bytes_per_block(groups, release, block_outermost)
    if n_bytes <= 0:
        raise RefusedError(Reason.INVALID_LAYOUT, "group_size must be greater than 0")
    return n_bytes


def _bytes_per_block(groups: Sequence[KVCacheGroup], release: Release, block_outermost: bool) -> int:
    if release.has("packed_kv_groups"):
        return _widest_group(groups, release, block_outermost)
    if all(isinstance(group.spec, UniformTypeKVCacheSpecs) for group in groups):
        if len(groups) == 1 or release.has("deepseek_v4_unpadded_windows"):
            return max(group.page_bytes for group in groups)
        if release.has("packed_block_by_page_size"):
            return _sum_of_slots(groups)
        return sum(_full_pages(groups)) * _layer_tuples([group for group in groups if group.layers])
    return _uniform_page(groups) * max(len(group.layers) for group in groups)


def _widest_group(groups: Sequence[KVCacheGroup], release: Release, block_outermost: bool) -> int:
    """0.29.0 on. Stride alignments: block-outermost from 0.31.0, per layer from 0.32.0."""
    if release.has("layer_block_stride") and not block_outermost:
        return max(
            sum(run.spec.stride_bytes * len(run.layers) for run in group.layer_specs) for group in groups
        )
    widest = max(group.page_bytes for group in groups)
    if not release.has("block_stride_alignment"):
        return widest
    alignments = (run.spec.stride_alignment_bytes for group in groups for run in group.layer_specs)
    return round_up(widest, lcm(*alignments))


def _sum_of_slots(groups: Sequence[KVCacheGroup]) -> int:
    """Per page size as many slots as the group with most layers of it has (0.23.0 to 0.26.0)."""
    slots: dict[int, int] = {}
    for group in groups:
        if not group.layers:
            continue
        assert isinstance(group.spec, UniformTypeKVCacheSpecs)
        for page, count in group.spec.layers_by_page_size.items():
            slots[page] = max(slots.get(page, 0), count)
    return sum(page * count for page, count in slots.items())


def _full_pages(groups: Sequence[KVCacheGroup]) -> tuple[int, ...]:
    """The distinct page sizes of the full MLA group, which is the first one."""
    assert isinstance(groups[0].spec, UniformTypeKVCacheSpecs)
    return tuple(groups[0].spec.layers_by_page_size)


def _layer_tuples(groups: Sequence[KVCacheGroup]) -> int:
    uniform = [group.spec for group in groups if isinstance(group.spec, UniformTypeKVCacheSpecs)]
    return max(spec.max_layers_per_page_size for spec in uniform)


def _uniform_page(groups: Sequence[KVCacheGroup]) -> int:
    pages = {group.spec.page_size_bytes for group in groups}
    if len(pages) != 1:
        raise InputError(f"KV cache groups with pages of {sorted(pages)} bytes cannot share a pool")
    return pages.pop()


def request_bytes(
    groups: Sequence[KVCacheGroup], limits: RequestLimits, release: Release, *, block_bytes: int
) -> int:
    """KV bytes of one request of `limits.max_model_len` tokens on this rank, as the admission check counts
    them.

    `block_bytes` is what `bytes_per_block` gives for these groups.
    """
    if release.has("packed_kv_groups"):
        return block_bytes * sum(group.spec.max_pages(limits) for group in groups)
    if all(isinstance(group.spec, UniformTypeKVCacheSpecs) for group in groups):
        if len(groups) == 1:
            return sum(
                run.spec.max_memory_usage_bytes(limits) * len(run.layers) for run in groups[0].layer_specs
            )
        pages = sum(group.spec.max_pages(limits) for group in groups)
        return _layer_tuples(groups) * pages * sum(_full_pages(groups))
    size = max(len(group.layers) for group in groups)
    page = _uniform_page(groups)
    return size * page * sum(cdiv(group.spec.max_memory_usage_bytes(limits), page) for group in groups)


def blocks_per_request(groups: Sequence[KVCacheGroup], limits: RequestLimits, release: Release) -> int:
    """Blocks of the pool that one request takes, as the capacity line counts them (:937-955; sum of groups
    from 0.27.0).

    0 for groups that take none (encoder-only).
    """
    if release.has("concurrency_over_groups"):
        return sum(group.spec.max_pages(limits) for group in groups)
    size = max(len(group.layers) for group in groups)
    usage = size * sum(group.spec.max_memory_usage_bytes(limits) for group in groups)
    return cdiv(usage, groups[0].spec.page_size_bytes * size) if size else 0
