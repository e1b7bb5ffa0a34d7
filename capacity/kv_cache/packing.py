"""Groups of layers with different page sizes that are packed side by side in one block.

Source: DeepSeek-V4 groups of 0.20.0 to 0.28.0 (`group_and_unify_kv_cache_specs`,
`_get_kv_cache_groups_uniform_groups`, v1/core/kv_cache_utils.py:1525-1701, 0.26.0) and the general packing
for block-outermost layouts of 0.29.0 on (`_get_packed_kv_cache_groups`, v1/core/kv_cache_planning.py,
0.33.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.frozen import dataclass
from vllm_capacity.kv_cache.merging import all_layers, is_uniform_type, uniform_type
from vllm_capacity.kv_cache.specs import (
    AttentionSpec,
    CircularBufferSpec,
    KVCacheGroup,
    KVCacheSpec,
    LayerRun,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm_capacity.releases.release import Release
from vllm_capacity.units import cdiv


def approximate_gcd(values: Sequence[int], lower_bound: int) -> int:
    """The d in [lower_bound, max(values)] that pads `values` least when each is rounded up to a multiple;
    ties: larger d.
    """
    smallest, largest = max(1, lower_bound), max(values)
    if smallest > largest:
        return smallest
    return max(range(smallest, largest + 1), key=lambda d: (-sum(-x % d for x in values), d))


def deepseek_v4_groups(runs: Sequence[LayerRun], release: Release) -> tuple[KVCacheGroup, ...] | None:
    """Full MLA layers in one group, sliding-window MLA layers in groups of the same number of layer tuples.

    None where there is no sliding-window MLA layer, from 0.26.0 on also where all pages are equal.
    """
    if not any(isinstance(run.spec, SlidingWindowMLASpec) for run in runs):
        return None
    if release.has("deepseek_v4_only_mixed_pages") and len({run.spec.page_size_bytes for run in runs}) <= 1:
        return None
    full_runs = [run for run in runs if isinstance(run.spec, MLAAttentionSpec)]
    windows: dict[tuple[int, int], list[LayerRun]] = {}
    for run in runs:
        if isinstance(run.spec, SlidingWindowMLASpec):
            windows.setdefault((run.spec.block_size, run.spec.sliding_window), []).append(run)
    full = uniform_type(full_runs, release) if full_runs else None
    uniform = [uniform_type(part, release) for part in windows.values()]
    grouped = len(full_runs) + sum(map(len, windows.values()))
    if full is None or None in uniform or grouped < len(runs):
        raise RefusedError(Reason.UNSUPPORTED_BY_RELEASE, "Some layers are not assigned to any group.")
    parts = [part for part in uniform if part is not None]
    tuples = [full.max_layers_per_page_size, *(part.max_layers_per_page_size for part in parts)]
    per_group = approximate_gcd(tuples, tuples[0])
    groups = [KVCacheGroup(full, all_layers(full_runs))]
    for part in parts:
        padded = part if release.has("deepseek_v4_unpadded_windows") else _padded_to(part, full)
        groups += _split(padded, cdiv(_layers_per_page(padded), per_group))
    return tuple(groups)


def _padded_to(part: UniformTypeKVCacheSpecs, full: UniformTypeKVCacheSpecs) -> UniformTypeKVCacheSpecs:
    """Each page padded to the next larger page of the full MLA group."""
    pages = full.layers_by_page_size
    runs = []
    for run in part.runs:
        page = run.spec.page_size_bytes
        candidate = min((x for x in pages if x >= page), default=0)
        if not candidate:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"A sliding-window page of {page} bytes is larger than every full attention page "
                f"({sorted(pages)}).",
            )
        runs.append(run if candidate == page else LayerRun(_with_page(run.spec, candidate), run.layers))
    return replace(part, runs=tuple(runs))


def _with_page(spec: KVCacheSpec, page: int) -> KVCacheSpec:
    """vLLM writes the padded size into the spec, past its alignment."""
    padded = replace(spec)
    object.__setattr__(padded, "page_size_padded", page)
    return padded


def _layers_by_page(runs: Sequence[LayerRun]) -> dict[int, list[tuple[int, KVCacheSpec]]]:
    """Page size -> (layer, spec) in vLLM's order, pages in the order of their first layer."""
    by_page: dict[int, list[tuple[int, KVCacheSpec]]] = {}
    for key, spec in sorted(
        ((key, run.spec) for run in runs for key in run.layers), key=lambda pair: pair[0]
    ):
        by_page.setdefault(spec.page_size_bytes, []).append((key, spec))
    return by_page


def _layers_per_page(part: UniformTypeKVCacheSpecs) -> int:
    counts = set(part.layers_by_page_size.values())
    if len(counts) > 1:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            "Layers of one window must have the same number of layers per page size to be packed.",
        )
    return counts.pop()


def _split(part: UniformTypeKVCacheSpecs, count: int) -> list[KVCacheGroup]:
    """`count` groups of layer tuples, one layer of each page size per tuple; the i-th takes every count-th
    tuple.
    """
    by_page = _layers_by_page(part.runs)
    tuples = list(zip(*by_page.values(), strict=False))
    if len(tuples) < max(count, *(len(pairs) for pairs in by_page.values())):
        raise RefusedError(Reason.UNSUPPORTED_BY_RELEASE, "Some layers are not assigned to any group.")
    groups = []
    for i in range(count):
        pairs = [pair for layer_tuple in tuples[i::count] for pair in layer_tuple]
        spec = replace(part, runs=_runs_of(pairs))
        groups.append(KVCacheGroup(spec, tuple(key for key, _ in pairs)))
    return groups


def _runs_of(pairs: Iterable[tuple[int, KVCacheSpec]]) -> tuple[LayerRun, ...]:
    layers: dict[KVCacheSpec, list[int]] = {}
    for key, spec in pairs:
        layers.setdefault(spec, []).append(key)
    return tuple(LayerRun(spec, tuple(keys)) for spec, keys in layers.items())


@dataclass(frozen=True, slots=True)
class _Bucket:
    spec: UniformTypeKVCacheSpecs
    balanced: bool
    """Every page size has the same number of layers."""

    @property
    def first(self) -> KVCacheSpec:
        return self.spec.runs[0].spec

    @property
    def num_layers(self) -> int:
        return sum(len(run.layers) for run in self.spec.runs)

    def widest_group_bytes(self, count: int) -> int:
        return sum(cdiv(layers, count) * page for page, layers in self.spec.layers_by_page_size.items())


def packed_groups(runs: Sequence[LayerRun], release: Release) -> tuple[KVCacheGroup, ...] | None:
    """Groups that pack into one block of a block-outermost layout; None where all pages are equal.

    Buckets of one type are split so that every group repeats the same pattern of pages equally often; state
    buckets are split until they fit the block that the others need.
    """
    if len({run.spec.page_size_bytes for run in runs}) <= 1:
        return None
    buckets = [_bucket(part, release) for part in _typed_parts(runs, release)]
    floor = max(
        (
            b.spec.max_layers_per_page_size
            for b in buckets
            if b.balanced and len(b.spec.layers_by_page_size) > 1
        ),
        default=0,
    )
    repeats = [b.spec.max_layers_per_page_size for b in buckets if b.balanced]
    per_group = approximate_gcd(repeats, floor) if floor else None

    def num_groups(bucket: _Bucket) -> int:
        if bucket.balanced and per_group is not None:
            return cdiv(bucket.spec.max_layers_per_page_size, per_group)
        return 1

    def is_state(bucket: _Bucket) -> bool:
        if isinstance(bucket.first, MambaSpec):
            return True
        if not release.has("packed_state_buckets"):
            return False
        windowed = per_group is None and isinstance(bucket.first, SlidingWindowSpec)
        return windowed or isinstance(bucket.first, CircularBufferSpec)

    anchor = max(b.widest_group_bytes(b.num_layers if is_state(b) else num_groups(b)) for b in buckets)
    groups: list[KVCacheGroup] = []
    for bucket in buckets:
        count = num_groups(bucket)
        if anchor and is_state(bucket):
            fitting = max(anchor // bucket.first.page_size_bytes, 1)
            count = max(count, cdiv(bucket.num_layers, fitting))
        if count == 1:
            groups.append(KVCacheGroup(bucket.spec, all_layers(bucket.spec.runs)))
        else:
            groups += _split(bucket.spec, count)
    return tuple(groups)


def _typed_parts(runs: Sequence[LayerRun], release: Release) -> list[list[LayerRun]]:
    """Greedily: a layer joins the first part that stays of one type with it."""
    parts: list[list[LayerRun]] = []
    for run in runs:
        for part in parts:
            if is_uniform_type([*(other.spec for other in part), run.spec], release):
                part.append(run)
                break
        else:
            parts.append([run])
    return parts


def _bucket(part: Sequence[LayerRun], release: Release) -> _Bucket:
    spec = uniform_type(part, release)
    assert spec is not None
    return _Bucket(spec, len(set(spec.layers_by_page_size.values())) == 1)


def refuse_glm5_next(runs: Sequence[LayerRun], release: Release) -> None:
    """0.30.0 and 0.31.0 group one family (state-space layers beside compressed MLA) by a rule of its own.

    Raises InputError for such layers: that rule is not modelled.
    """
    states = [run for run in runs if isinstance(run.spec, MambaSpec)]
    attention = [run.spec for run in runs if isinstance(run.spec, AttentionSpec)]
    attention = [spec for spec in attention if not isinstance(spec, CircularBufferSpec)]
    compressed = any(spec.tokens_per_state > 1 for spec in attention)
    if states and compressed and all(type(spec) is MLAAttentionSpec for spec in attention):
        raise InputError(
            f"vLLM {release.version} groups state-space layers beside compressed MLA layers by a rule "
            "that is not modelled; plan with --vllm-version 0.32.0 or newer"
        )
