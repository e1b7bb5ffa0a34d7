"""What PyTorch's caching allocator keeps reserved beyond the tensors of a loaded model, because a tensor holds a part of a
segment.

From 0.27.0 vLLM takes free memory before less after (utils/mem_utils.py: memory_profiling, which calls `empty_cache` before
it looks), so these bytes come out of the KV cache. Rules: c10/cuda/CUDACachingAllocator.cpp (release_cached_blocks gives
back whole segments only), torch 2.11 to 2.14.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from vllm_capacity.units import round_up
from vllm_capacity.weights.allocator import (
    MIN_BLOCK,
    SMALL,
    CachingAllocator,
    RopeBuild,
    SmallPool,
    _Block,
    build_rope,
)
from vllm_capacity.weights.groups import ParameterGroup
from vllm_capacity.weights.model import RankWeights, Section


class Pools:
    """Both pools of one device."""

    def __init__(self, max_split: int | None) -> None:
        self.large, self.small = CachingAllocator(max_split), SmallPool()

    def allocate(self, n_bytes: int) -> _Block:
        return self._of(round_up(n_bytes, MIN_BLOCK)).allocate(n_bytes)

    def free(self, block: _Block) -> None:
        self._of(block.size).free(block)

    def allocate_all(self, sizes: Iterable[int]) -> None:
        for size in sizes:
            self.allocate(size)

    def empty_cache(self) -> None:
        self.large.empty_cache()
        self.small.empty_cache()

    @property
    def unused(self) -> int:
        """Bytes that are reserved and in no tensor."""
        return self.large.unused + self.small.unused

    def _of(self, size: int) -> CachingAllocator:
        return self.small if size <= SMALL else self.large


@lru_cache(maxsize=64)
def pinned_bytes(
    weights: RankWeights,
    before: tuple[int, ...],
    after: tuple[int, ...],
    profiled: tuple[int, ...],
    max_split: int | None,
) -> int:
    """Bytes that stay reserved beside the tensors when loading and profiling are over.

    `before` and `after`: tensors of the model runner that come before and after the weights, in order; `profiled`: what the
    profile run leaves. Loading empties the cache after building, after processing (model_loader/base_loader.py: load_model)
    and when its profiler looks (platforms/cuda.py: get_current_memory_usage).
    """
    pools = Pools(max_split)
    pools.allocate_all(before)
    _load(pools, weights)
    pools.allocate_all(after)
    pools.allocate_all(profiled)
    pools.empty_cache()
    return pools.unused


def _load(pools: Pools, weights: RankWeights) -> None:
    """The tensors as built, in vLLM's order (see `allocated_by_load`), then each layer's post-load processing."""
    pools.allocate_all(_sizes(weights.before.built))
    order = sorted(
        ((i, section) for section in weights.layers for i in section.layer_indices), key=lambda x: x[0]
    )
    layers: list[tuple[Section, dict[str, _Block]]] = []
    caches = weights.caches.built
    for _, section in order:
        blocks: dict[str, _Block] = {}
        for group in section.built:
            if caches and group.role not in ("attention", "quantisation_scales"):
                _build_caches(pools, caches)
                caches = ()
            blocks[group.name] = pools.allocate(group.tensor_bytes)
        layers.append((section, blocks))
    pools.allocate_all(_sizes(weights.after.built))
    pools.empty_cache()
    for section, blocks in layers:
        for name, n_bytes in section.repacking:
            if n_bytes:
                blocks[name] = pools.allocate(n_bytes)
            elif name in blocks:
                pools.free(blocks.pop(name))
    pools.empty_cache()


def _build_caches(pools: Pools, groups: Iterable[ParameterGroup]) -> None:
    for group in groups:
        if len(group.shape) == 2:
            build_rope(pools, RopeBuild(group.shape[0], group.shape[1], group.tensor_bytes))
        else:
            pools.allocate(group.tensor_bytes)


def _sizes(groups: Iterable[ParameterGroup]) -> list[int]:
    return [group.tensor_bytes for group in groups for _ in range(group.count)]
