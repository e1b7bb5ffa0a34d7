"""The model of PyTorch's caching allocator, by the rules of c10/cuda/CUDACachingAllocator.cpp."""

from __future__ import annotations

import pytest
from vllm_capacity.units import MIB
from vllm_capacity.weights.allocator import (
    LOAD_MAX_SPLIT,
    CachingAllocator,
    LayerSizes,
    RopeBuild,
    allocated_by_load,
    build_rope,
)


def allocated(*sizes: int, max_split: int | None = None) -> int:
    pool = CachingAllocator(max_split)
    pool.allocate_all(sizes)
    return pool.allocated


@pytest.mark.parametrize(
    ("size", "default", "loading"),
    [
        (0, 0, 0),
        (1, 512, 512),
        (MIB, MIB, MIB),
        (MIB + 1, MIB + 512, MIB + 512),
        (5 * MIB, 5 * MIB, 5 * MIB),
        (10 * MIB + MIB // 2, 10 * MIB + MIB // 2, 10 * MIB + MIB // 2),  # 1.5 MiB left of 12: split off
        (11 * MIB + MIB // 2, 12 * MIB, 12 * MIB),  # half a MiB left of 12: kept whole
        (20 * MIB + 1, 20 * MIB + 512, 22 * MIB),  # loading does not split blocks of 20 MiB and more
        (31 * MIB + MIB // 2, 32 * MIB, 32 * MIB),
    ],
)
def test_a_block_is_512_bytes_or_its_segment_where_that_is_not_split(
    size: int, default: int, loading: int
) -> None:
    assert allocated(size) == default
    assert allocated(size, max_split=LOAD_MAX_SPLIT) == loading


def test_requests_below_10_mib_share_a_segment_of_20() -> None:
    assert allocated(9 * MIB, 9 * MIB) == 18 * MIB
    assert allocated(9 * MIB, 9 * MIB, 2 * MIB - 512) == 20 * MIB, (
        "the rest of 2 MiB serves it and is not split"
    )


def test_a_free_block_serves_a_smaller_request_within_20_mib_only() -> None:
    pool = CachingAllocator(LOAD_MAX_SPLIT)
    pool.free(pool.allocate(64 * MIB))
    pool.allocate(44 * MIB)
    assert pool.allocated == 44 * MIB, "64 MiB is 20 MiB too much: a segment of its own"
    pool.allocate(46 * MIB)
    assert pool.allocated == 44 * MIB + 64 * MIB


def test_freed_neighbours_merge() -> None:
    pool = CachingAllocator(None)
    blocks = [pool.allocate(size * MIB) for size in (8, 8)]
    for block in blocks:
        pool.free(block)
    assert pool.allocated == 0
    assert pool.state(0) == (20 * MIB,)


def test_layers_are_counted_as_if_each_were_built() -> None:
    sizes = (8 * MIB, 4 * MIB, 12 * MIB, 6 * MIB, 512, 8192)
    pool = CachingAllocator(LOAD_MAX_SPLIT)
    for _ in range(28):
        pool.allocate_all(sizes)
    counted = allocated_by_load((), ((LayerSizes(sizes, 0), tuple(range(28))),), (), (), (), LOAD_MAX_SPLIT)
    assert counted == pool.allocated


def test_an_fp32_cache_is_its_own_concatenation() -> None:
    pool = CachingAllocator(None)
    build_rope(pool, RopeBuild(163840, 64, 163840 * 64 * 4))
    assert pool.allocated == 163840 * 64 * 4
    pool = CachingAllocator(None)
    build_rope(pool, RopeBuild(131072, 128, 131072 * 128 * 2))
    assert pool.allocated == 131072 * 128 * 2


@pytest.mark.parametrize(("scaled", "halves"), [(False, 3), (True, 4)])
def test_scaled_cosines_need_one_more_block(scaled: bool, halves: int) -> None:
    """gpt-oss (YaRN): the unscaled cosines' block serves the sines, too; run v0.33-gpt-oss-120b has four blocks of 16 MiB."""
    pool = CachingAllocator(LOAD_MAX_SPLIT)
    build_rope(pool, RopeBuild(131072, 64, 131072 * 64 * 4, scaled))
    assert [size for size, _, whole in pool.free_parts() if whole] == [16 * MIB] * halves
