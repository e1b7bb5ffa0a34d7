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
    Block,
    CachingAllocator,
    RopeBuild,
    SmallPool,
    build_rope,
    carved,
    carved_while_loading,
)
from vllm_capacity.weights.groups import ParameterGroup
from vllm_capacity.weights.model import RankWeights, Section

Event = tuple[int, int]
"""(a tensor's number, its bytes) where it is allocated, (its number, 0) where it is freed; `EMPTIED` for `empty_cache`."""
EMPTIED: Event = (-1, 0)


class _Recorder:
    """Takes down what happens, in order; a tensor of 0 bytes takes no block."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._numbers: dict[Block, int] = {}

    def allocate(self, n_bytes: int) -> Block:
        block = Block(n_bytes)
        if n_bytes:
            self._numbers[block] = len(self._numbers)
            self.events.append((self._numbers[block], n_bytes))
        return block

    def free(self, block: Block) -> None:
        if block in self._numbers:
            self.events.append((self._numbers[block], 0))

    def allocate_all(self, sizes: Iterable[int]) -> None:
        for size in sizes:
            self.allocate(size)

    def empty_cache(self) -> None:
        self.events.append(EMPTIED)


def pinned_bytes(
    models: tuple[RankWeights, ...],
    early: tuple[int, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    profiled: tuple[int, ...],
    max_split: int | None,
) -> int:
    """Bytes by which loading and profiling reserve more than their tensors; fewer than 0 where those fill segments of before.

    `models` are loaded one after the other; `early`: tensors that exist at vLLM's snapshot; `before` and `after`: tensors of
    the model runner that come before and after the weights, in order; `profiled`: what the profile run leaves. Loading
    empties the cache after building, after processing (model_loader/base_loader.py: load_model) and when its profiler looks
    (platforms/cuda.py: get_current_memory_usage).

    The pools of small and of large tensors know nothing of each other, so each is simulated by itself: what differs from
    plan to plan is mostly small.
    """
    total = 0
    for small in (False, True):
        at_snapshot = _of_pool(early, small)
        built = (*at_snapshot, *_of_pool(before, small))
        total += _unused(models, small, built, _of_pool((*after, *profiled), small), max_split)
        total -= sum(carved((), at_snapshot, small, max_split))
    return total


def _of_pool(sizes: Iterable[int], small: bool) -> tuple[int, ...]:
    return tuple(size for size in sizes if _is_small(size) is small)


def _is_small(n_bytes: int) -> bool:
    return round_up(n_bytes, MIN_BLOCK) <= SMALL


def _pool(small: bool, max_split: int | None, pinned: Iterable[int] = ()) -> CachingAllocator:
    return SmallPool(pinned) if small else CachingAllocator(max_split, pinned=pinned)


def _unused(
    models: tuple[RankWeights, ...],
    small: bool,
    before: tuple[int, ...],
    after: tuple[int, ...],
    max_split: int | None,
) -> int:
    """Bytes of one pool that are reserved and in no tensor."""
    free = carved((), before, small, max_split)
    for weights in models:
        least = smallest(weights, small)
        usable = tuple(size for size in free if size >= least)
        left, _ = _after_load(weights, 0, small, usable, max_split)
        free = tuple(sorted((*(size for size in free if size < least), *left)))
    return sum(carved(free, after, small, max_split))


@lru_cache(maxsize=256)
def smallest(weights: RankWeights, small: bool) -> int:
    """The least that loading asks a pool for."""
    return min((round_up(size, MIN_BLOCK) for _, size in _events(weights, 0)[small] if size), default=1 << 60)


def allocated_after_load(
    weights: RankWeights, library: int, usable: tuple[int, ...], max_split: int | None
) -> int:
    """What the blocks of a loaded model take, `library` included: a buffer that a library makes after the rope caches."""
    return sum(
        _after_load(weights, library, small, () if small else usable, max_split)[1] for small in (False, True)
    )


@lru_cache(maxsize=256)
def _after_load(
    weights: RankWeights, library: int, small: bool, usable: tuple[int, ...], max_split: int | None
) -> tuple[tuple[int, ...], int]:
    """Free parts of segments that a pool keeps when the model is loaded, and what the model's blocks take; `usable`: parts that
    were there before.
    """
    stirred, calm = _stages(weights, library, small)
    pool = _pool(small, max_split, usable)
    blocks: dict[int, Block] = {}
    for number, n_bytes in stirred:
        if n_bytes:
            blocks[number] = pool.allocate(n_bytes)
        elif number == EMPTIED[0]:
            pool.empty_cache()
        else:
            pool.free(blocks.pop(number))
    left, taken = carved_while_loading(pool.free_parts(), calm, small, max_split)
    if small and not weights.repacked:
        left = tuple(sorted((*left, *_holes(weights))))
    return left, pool.allocated + taken


def _holes(weights: RankWeights) -> Iterable[int]:
    """What each layer drops in the end: neighbours in the small pool, and nothing follows that takes them."""
    for section in weights.layers:
        size = sum(round_up(group.tensor_bytes, MIN_BLOCK) for group in section.dropped)
        if size:
            yield from (size,) * section.count


@lru_cache(maxsize=64)
def _stages(weights: RankWeights, library: int, small: bool) -> tuple[tuple[Event, ...], tuple[int, ...]]:
    """What happens in a pool until the last tensor is freed, and the tensors of after that: sizes, 0 for `empty_cache`."""
    events = _events(weights, library)[small]
    freed = [at for at, (number, n_bytes) in enumerate(events) if not n_bytes and number != EMPTIED[0]]
    last = freed[-1] + 1 if freed else 0
    return events[:last], tuple(round_up(n_bytes, MIN_BLOCK) for _, n_bytes in events[last:])


@lru_cache(maxsize=64)
def _events(weights: RankWeights, library: int) -> tuple[tuple[Event, ...], tuple[Event, ...]]:
    """What loading does in the pool of large tensors, and in that of small ones."""
    recorder = _Recorder()
    _load(recorder, weights, library, late=weights.repacked)  # else `_holes` says what that frees
    is_small = {number: _is_small(n_bytes) for number, n_bytes in recorder.events if n_bytes}
    large, small = (
        tuple(event for event in recorder.events if event == EMPTIED or is_small[event[0]] is wanted)
        for wanted in (False, True)
    )
    return large, small


def _load(pools: _Recorder, weights: RankWeights, library: int, *, late: bool) -> None:
    """The tensors as built, in vLLM's order (see `allocated_by_load`), then each layer's post-load processing."""
    layers = [(weights.before, _built(pools, weights.before))]
    order = sorted(
        ((i, section) for section in weights.layers for i in section.layer_indices), key=lambda x: x[0]
    )
    caches = weights.caches.built
    for _, section in order:
        blocks: dict[str, Block] = {}
        for group in section.built:
            if caches and group.role not in ("attention", "quantisation_scales"):
                _build_caches(pools, caches)
                pools.allocate(library)
                caches = ()
            blocks[group.name] = pools.allocate(group.tensor_bytes)
        blocks.update((group.name, pools.allocate(group.tensor_bytes)) for group in section.dropped)
        layers.append((section, blocks))
    layers.append((weights.after, _built(pools, weights.after)))
    pools.empty_cache()
    for section, blocks in layers:
        _process(pools, section.repacking, blocks)
    for section, blocks in layers if late else ():
        _process(pools, (*section.late, *((group.name, 0) for group in section.dropped)), blocks)
    pools.empty_cache()


def _built(pools: _Recorder, section: Section) -> dict[str, Block]:
    return {
        group.name: pools.allocate(group.tensor_bytes) for group in section.built for _ in range(group.count)
    }


def _process(pools: _Recorder, steps: Iterable[tuple[str, int]], blocks: dict[str, Block]) -> None:
    for name, n_bytes in steps:
        if n_bytes:
            blocks[name] = pools.allocate(n_bytes)
        elif name in blocks:
            pools.free(blocks.pop(name))


def _build_caches(pools: _Recorder, groups: Iterable[ParameterGroup]) -> None:
    for group in groups:
        if len(group.shape) == 2:
            build_rope(pools, RopeBuild(group.shape[0], group.shape[1], group.tensor_bytes, group.scaled))
        else:
            pools.allocate(group.tensor_bytes)
