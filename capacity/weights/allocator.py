"""What PyTorch's caching allocator counts for the tensors of a model, block by block.

vLLM prints allocated bytes (`allocated_bytes.all.current`), and those count whole blocks: 512 bytes at least,
and larger blocks where the allocator does not split them. The order of construction matters, because the rope
cache leaves free blocks behind that later weights take over.

Source: c10/cuda/CUDACachingAllocator.cpp (`round_size`, `get_allocation_size`, `should_split`,
`get_free_block`), torch 2.11; `max_split_size_mb=20` while loading: vllm/v1/worker/gpu_worker.py,
`Worker.load_model`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from vllm_capacity.frozen import dataclass
from vllm_capacity.units import MIB, round_up

MIN_BLOCK = 512
SMALL = 1 * MIB
"""Up to here from the small pool, whose blocks are always split."""
MIN_LARGE_SEGMENT = 10 * MIB
LARGE_SEGMENT = 20 * MIB
"""The segment behind requests below 10 MiB; also how much larger than asked an unsplittable block may be."""
SEGMENT_MULTIPLE = 2 * MIB
LOAD_MAX_SPLIT = 20 * MIB


@dataclass(frozen=True, slots=True)
class RopeBuild:
    """The construction of one cos/sin cache [rows, dim]: fp32 temporaries, then the copy that stays.

    `scaled`: cosines and sines are multiplied by a factor. Source: `_compute_cos_sin_cache`,
    layers/rotary_embedding/base.py:58-105, yarn_scaling_rope.py, deepseek_scaling_rope.py (0.26.0 to 0.33.0).
    """

    rows: int
    dim: int
    n_bytes: int
    scaled: bool = False

    @property
    def half(self) -> int:
        return self.rows * (self.dim // 2) * 4


class Block:
    __slots__ = ("free", "next", "previous", "size")

    def __init__(self, size: int, previous: Block | None = None, following: Block | None = None) -> None:
        self.size, self.previous, self.next, self.free = size, previous, following, False


_STAYS = Block(0)
"""Stands for the neighbour of a free part of a segment that is never freed."""


FreePart = tuple[int, int, bool]
"""A free block: its size, when it was freed, whether it is a whole segment."""


class CachingAllocator:
    """The large pool; small tensors only round up to 512 bytes. `allocated` counts blocks in use, small ones
    too.
    """

    def __init__(self, max_split: int | None, free: Iterable[int] = (), pinned: Iterable[int] = ()) -> None:
        """`free`: segments that hold nothing; `pinned`: free parts of segments that hold something which stays."""
        self.max_split = max_split
        self.allocated = 0
        self.reserved = 0
        """Segments of the large pool so far."""
        self.small = 0
        """What of `allocated` is in the small pool."""
        self._free: list[tuple[int, int, Block]] = []
        self._serial = 0
        for size in free:
            self._release(Block(size))
        for size in pinned:
            block = Block(size, _STAYS)
            block.free = True
            self._serial += 1
            self.reserved += size
            self._free.append((size, self._serial, block))
        self._free.sort()

    def allocate_all(self, sizes: Iterable[int]) -> None:
        for size in sizes:
            self.allocate(size)

    def allocate(self, n_bytes: int) -> Block:
        """A block for `n_bytes`; one of the small pool needs no bookkeeping but its size."""
        size = round_up(n_bytes, MIN_BLOCK)
        if size <= SMALL:
            self.allocated += size
            self.small += size
            return Block(size)
        block = self._take_free(size)
        if block is None:
            block = Block(_segment_size(size))
            self.reserved += block.size
        rest = block.size - size
        splittable = self.max_split is None or size < self.max_split
        if splittable and rest > SMALL:
            remaining = Block(rest, block, block.next)
            if block.next is not None:
                block.next.previous = remaining
            block.next, block.size = remaining, size
            self._release(remaining)
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Returns a block; free neighbours of its segment merge with it."""
        self.allocated -= block.size
        if block.size <= SMALL:
            self.small -= block.size
            return
        self._merge(block)

    def _merge(self, block: Block) -> None:
        """Puts a block back among the free ones, with the free neighbours of its segment."""
        following, previous = block.next, block.previous
        if following is not None and following.free:
            self._forget(following)
            block.size += following.size
            block.next = following.next
            if block.next is not None:
                block.next.previous = block
        if previous is not None and previous.free:
            self._forget(previous)
            previous.size += block.size
            previous.next = block.next
            if previous.next is not None:
                previous.next.previous = previous
            block = previous
        self._release(block)

    def state(self, smallest: int) -> tuple[int, ...]:
        """Sizes of the free blocks that a request of `smallest` bytes or more could use."""
        return tuple(size for size, _, _ in self._free if size >= smallest)

    def free_parts(self) -> list[FreePart]:
        """The free blocks in the order in which they are taken."""
        return [
            (size, serial, block.previous is None and block.next is None)
            for size, serial, block in self._free
        ]

    def empty_cache(self) -> None:
        """Gives back segments that hold nothing."""
        kept = [entry for entry in self._free if entry[2].previous is not None or entry[2].next is not None]
        self.reserved -= sum(size for size, _, _ in self._free) - sum(size for size, _, _ in kept)
        self._free = kept

    @property
    def unused(self) -> int:
        """Bytes of the large pool that are reserved and in no tensor."""
        return self.reserved - (self.allocated - self.small)

    def _take_free(self, size: int) -> Block | None:
        """The smallest free block that fits and that `get_free_block` accepts."""
        at = bisect_left(self._free, (size,))
        if at == len(self._free):
            return None
        if not _takes(self._free[at][0], size, self.max_split):
            return None
        block = self._free.pop(at)[2]
        block.free = False
        return block

    def _release(self, block: Block) -> None:
        block.free = True
        self._serial += 1
        insort(
            self._free, (block.size, self._serial, block)
        )  # serials differ: no two entries compare their blocks

    def _forget(self, block: Block) -> None:
        self._free = [entry for entry in self._free if entry[2] is not block]


class Allocates(Protocol):
    def allocate(self, n_bytes: int) -> Block: ...

    def free(self, block: Block) -> None: ...


def build_rope(pool: Allocates, rope: RopeBuild) -> None:
    """positions, frequencies, cos, sin and their concatenation in fp32; the copy is made while the last lives."""
    positions = pool.allocate(rope.rows * 4)
    parts = [pool.allocate(rope.half)]
    for _ in ("cos", "sin"):
        unscaled = pool.allocate(rope.half)
        parts.append(pool.allocate(rope.half) if rope.scaled else unscaled)
        if rope.scaled:
            pool.free(unscaled)
    whole = pool.allocate(2 * rope.half)
    for part in (*parts, positions):
        pool.free(part)
    if rope.n_bytes == 2 * rope.half:
        return  # an fp32 cache is the concatenation itself
    pool.allocate(rope.n_bytes)
    pool.free(whole)


class SmallPool(CachingAllocator):
    """The pool of tensors up to 1 MiB: segments of 2 MiB, whose blocks are always split."""

    def __init__(self, pinned: Iterable[int] = ()) -> None:
        super().__init__(None, pinned=pinned)

    def allocate(self, n_bytes: int) -> Block:
        size = round_up(n_bytes, MIN_BLOCK)
        block = self._take_free(size)
        if block is None:
            block = Block(SEGMENT_MULTIPLE)
            self.reserved += block.size
        if block.size > size:
            remaining = Block(block.size - size, block, block.next)
            if block.next is not None:
                block.next.previous = remaining
            block.next, block.size = remaining, size
            self._release(remaining)
        self.allocated += size
        return block

    def free(self, block: Block) -> None:
        self.allocated -= block.size
        self._merge(block)


def _takes(found: int, size: int, max_split: int | None) -> bool:
    """Whether `get_free_block` gives a free block of `found` bytes to a request of `size`."""
    if max_split is None:
        return True
    return found < max_split if size < max_split else found < size + LARGE_SEGMENT


def carved_while_loading(
    free: list[FreePart], sizes: Iterable[int], small: bool, max_split: int | None
) -> tuple[tuple[int, ...], int]:
    """As `carved`, but 0 among the `sizes`, which are multiples of 512, and their end give back what is a whole segment; and
    what the tensors' blocks take.
    """
    limit, taken = None if small else max_split, 0
    serial = max((entry[1] for entry in free), default=0)
    for size in sizes:
        if not size:
            free = [entry for entry in free if not entry[2]]
            continue
        at = bisect_left(free, (size,))
        found = free[at][0] if at < len(free) else 0
        if found and _takes(found, size, limit):
            del free[at]
        else:
            found = SEGMENT_MULTIPLE if small else _segment_size(size)
        rest = found - size
        taken += found
        if rest and (small or (rest > SMALL and (limit is None or size < limit))):
            serial += 1
            taken -= rest
            insort(free, (rest, serial, False))
    return tuple(size for size, _, whole in free if not whole), taken


def carved(free: Iterable[int], sizes: Iterable[int], small: bool, max_split: int | None) -> tuple[int, ...]:
    """Free parts of one pool's segments, in order, after tensors of `sizes` that stay: what the pools above do where nothing is
    freed, without blocks.
    """
    parts = [(size, number, False) for number, size in enumerate(sorted(free))]
    return carved_while_loading(parts, (round_up(size, MIN_BLOCK) for size in sizes), small, max_split)[0]


def _segment_size(size: int) -> int:
    """`get_allocation_size` for the large pool."""
    return LARGE_SEGMENT if size < MIN_LARGE_SEGMENT else round_up(size, SEGMENT_MULTIPLE)


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Bytes of a layer's tensors in order of construction; `attention` of them come before the rope cache."""

    sizes: tuple[int, ...]
    attention: int


@lru_cache(maxsize=512)
def allocated_by_load(
    before: tuple[int, ...],
    layers: tuple[tuple[LayerSizes, tuple[int, ...]], ...],
    ropes: tuple[RopeBuild, ...],
    libraries: tuple[int, ...],
    after: tuple[int, ...],
    max_split: int | None,
    free: tuple[int, ...] = (),
) -> int:
    """Allocated bytes after building the tensors in vLLM's order: `before`, the layers by index, `after`.

    `layers` pairs the sizes of one kind of layer with the indices of its layers. Rope caches, then the
    libraries' buffers, come after the attention tensors of the first layer. `free`: blocks that are there already.
    """
    pool = CachingAllocator(max_split, free)
    pool.allocate_all(before)
    order = [
        kind
        for _, kind in sorted((index, kind) for kind, (_, indices) in enumerate(layers) for index in indices)
    ]
    kinds = [_Kind(sizes.sizes) for sizes, _ in layers]
    first = layers[order[0]][0] if order else LayerSizes((), 0)
    pool.allocate_all(first.sizes[: first.attention])
    for rope in ropes:
        build_rope(pool, rope)
    pool.allocate_all(libraries)
    pool.allocate_all(first.sizes[first.attention :])
    tail = _Kind(after)
    smallest = min((size for kind in (*kinds, tail) for size in kind.large), default=0)
    left = pool.state(smallest)
    seen: dict[tuple[int, tuple[int, ...]], tuple[int, tuple[int, ...]]] = {}
    total = pool.allocated
    for index in order[1:]:
        found = seen.get((index, left))
        if found is None:
            found = seen[index, left] = _one_layer(kinds[index], left, smallest, max_split)
        total += found[0]
        left = found[1]
    return total + _one_layer(tail, left, smallest, max_split)[0]


class _Kind:
    """A layer's small tensors summed up and its large ones in order."""

    __slots__ = ("large", "small")

    def __init__(self, sizes: Iterable[int]) -> None:
        rounded = [round_up(size, MIN_BLOCK) for size in sizes]
        self.small = sum(size for size in rounded if size <= SMALL)
        self.large = tuple(size for size in rounded if size > SMALL)


def _one_layer(
    kind: _Kind, free: tuple[int, ...], smallest: int, max_split: int | None
) -> tuple[int, tuple[int, ...]]:
    """(bytes that the layer's blocks take, free blocks afterwards). Nothing is freed any more, so sizes
    suffice.
    """
    pool = CachingAllocator(max_split, free)
    pool.allocate_all(kind.large)
    return pool.allocated + kind.small, pool.state(smallest)
