"""From KV memory per pipeline stage to blocks, printed tokens and concurrency, or vLLM's refusal.

Source: `get_kv_cache_configs` (v1/core/kv_cache_utils.py:2036-2184, 0.26.0; v1/core/kv_cache_planning.py,
0.33.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllm_capacity.engine import EngineConfig
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.frozen import dataclass
from vllm_capacity.kv_cache.grouping import group_layers, project
from vllm_capacity.kv_cache.pool import blocks_per_request, bytes_per_block, request_bytes
from vllm_capacity.kv_cache.refusals import (
    Refusal,
    auto_fit_refusal,
    memory_refusal,
    missing_memory_refusal,
    state_blocks_refusal,
)
from vllm_capacity.kv_cache.specs import (
    FullAttentionSpec,
    KVCacheGroup,
    KVCacheSpec,
    KVLayers,
    MambaSpec,
    RequestLimits,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm_capacity.releases.release import Release

FULL_GRAPH_MODES = frozenset({"FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKV:
    """One pipeline stage's share, in bytes per rank. All tensor-parallel ranks of a stage hold the same.

    `available_bytes` is what the budget left; `num_blocks_own` what it would give this rank alone;
    `request_bytes` what one request of max_model_len needs here; `kv_bytes` what is allocated in the end.
    `marginal_bytes_per_token` and `fixed_bytes_per_sequence` split the need of a sequence into a part per
    token of context and a constant one (sliding windows at their cap and states).
    """

    groups: tuple[KVCacheGroup, ...]
    available_bytes: int
    bytes_per_block: int
    num_blocks_own: int
    request_bytes: int
    kv_bytes: int
    marginal_bytes_per_token: float
    fixed_bytes_per_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCachePlan:
    """What vLLM makes of the KV memory. The smallest rank decides `num_blocks`.

    `size_tokens` is what this release prints as "GPU KV cache size"; `max_concurrency` what it prints beside it,
    unrounded. `pool_tokens` is what the pool really holds of one sequence however long: all blocks but the
    null block (and sink blocks), less what the sequence's windows and states take. `max_model_len` is the one
    in effect (lowered by `--max-model-len auto`). `block_size` is the cache config's after start-up, the
    smallest of all groups, in tokens. `refusal` is vLLM's reason not to start; the numbers are then those it
    would have had.
    """

    groups: tuple[KVCacheGroup, ...]
    stages: tuple[StageKV, ...]
    block_size: int
    num_blocks: int
    max_model_len: int
    blocks_per_request: int
    size_tokens: int
    max_concurrency: float
    limits: RequestLimits
    release: Release
    refusal: Refusal | None = None
    graph_size_cap: int | None = None
    """Largest CUDA graph size that the state blocks allow; set where the release caps graphs instead of
    refusing.
    """

    @property
    def bytes_per_block(self) -> int:
        """Of the stage with the largest blocks."""
        return max((stage.bytes_per_block for stage in self.stages), default=0)

    @property
    def marginal_bytes_per_token(self) -> float:
        """Per rank, of the stage where a token costs most."""
        return max((stage.marginal_bytes_per_token for stage in self.stages), default=0.0)

    @property
    def fixed_bytes_per_sequence(self) -> int:
        return max((stage.fixed_bytes_per_sequence for stage in self.stages), default=0)

    @property
    def pool_tokens(self) -> int:
        """A search, so not part of every plan."""
        if not self.stages:
            return 0
        return _pool_tokens(self.stages[0].groups, self.num_blocks, self.limits, self.release)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that one sequence of `tokens` tokens may take at its worst moment."""
        limits = self.limits.at(tokens)
        return blocks_per_request(self.stages[0].groups, limits, self.release) if self.stages else 0


def request_limits(engine: EngineConfig, release: Release, *, encoder_tokens: int = 0) -> RequestLimits:
    """What one request may hold under this configuration and release."""
    parallel = engine.parallel
    in_flight = (
        engine.max_in_flight_tokens
        if release.has("in_flight_window_factor")
        else engine.max_num_batched_tokens
    )
    return RequestLimits(
        max_model_len=engine.max_model_len,
        in_flight_tokens=in_flight,
        kv_shards=parallel.dcp * parallel.pcp if release.has("pcp_shards_full_attention") else parallel.dcp,
        mamba_cache_mode=engine.mamba_cache_mode,
        mamba_all_adds_speculative=release.has("mamba_all_speculative_blocks"),
        encoder_tokens=encoder_tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPool:
    """The pool of an engine before its memory is known. Groups, bytes of one block and of one request by stage."""

    layers: KVLayers
    engine: EngineConfig
    release: Release
    groups: tuple[KVCacheGroup, ...]
    per_stage: tuple[tuple[KVCacheGroup, ...], ...]
    block_bytes: tuple[int, ...]
    request_bytes: tuple[int, ...]
    limits: RequestLimits


def kv_pool(
    layers: KVLayers,
    engine: EngineConfig,
    release: Release,
    *,
    stages: Sequence[tuple[int, int]] = (),
    groups: tuple[KVCacheGroup, ...] | None = None,
) -> KVPool:
    """`stages` are the decoder layer bounds of each stage (`parallel.stage_bounds`), not needed for one stage.
    `groups` are those of `group_layers` where the caller has them already. Raises RefusedError where vLLM
    cannot group the layers.
    """
    if groups is None:
        groups = group_layers(layers, release, hybrid_disabled=engine.hybrid_kv_cache_manager_disabled)
    limits = request_limits(engine, release, encoder_tokens=layers.encoder_tokens)
    _check_context_parallel(groups, engine)
    per_stage = project(groups, layers, stages)
    block_bytes = tuple(
        bytes_per_block(part, release, block_outermost=layers.block_outermost) if groups else 0
        for part in per_stage
    )
    needed = tuple(
        request_bytes(part, limits, release, block_bytes=block) if groups else 0
        for part, block in zip(per_stage, block_bytes, strict=True)
    )
    return KVPool(
        layers=layers, engine=engine, release=release, groups=groups, per_stage=per_stage,
        block_bytes=block_bytes, request_bytes=needed, limits=limits,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What so much memory makes of the pool: all that a verdict asks. `own` and `needed` by stage."""

    num_blocks: int
    refusal: Refusal | None
    limits: RequestLimits
    own: tuple[int, ...] = ()
    """Blocks that each stage's own memory would give."""
    needed: tuple[int, ...] = ()
    """Bytes of one request."""


def fill(pool: KVPool, available_bytes: Sequence[int], *, in_words: bool = True) -> KVCachePlan:
    """The plan for `available_bytes[s]` bytes of KV memory per rank on pipeline stage s.

    A lack of memory is `plan.refusal`, which without `in_words` leaves out the length that would fit (a search).
    Raises InputError for another number of stages.
    """
    filling = filling_of(pool, available_bytes, in_words=in_words)
    if not pool.groups:
        return _attention_free(pool, filling)
    parts = zip(pool.per_stage, available_bytes, pool.block_bytes, filling.own, filling.needed, strict=True)
    return _plan(pool, filling, tuple([_stage(*part, filling) for part in parts]))


def filling_of(pool: KVPool, available_bytes: Sequence[int], *, in_words: bool = True) -> Filling:
    """As `fill`, without the plan's other figures."""
    if len(available_bytes) != len(pool.per_stage):
        raise InputError(f"{len(available_bytes)} KV memory sizes for {len(pool.per_stage)} pipeline stages")
    engine, release, limits = pool.engine, pool.release, pool.limits
    if not pool.groups:
        return Filling(num_blocks=1, refusal=None, limits=limits)
    planned = _planned_bytes(available_bytes, pool.block_bytes, engine, release)
    checked = planned
    if release.has("null_block_in_admission"):
        checked = [n - block for n, block in zip(planned, pool.block_bytes, strict=True)]
    refusal: Refusal | None = None
    needed = pool.request_bytes
    if engine.max_model_len_auto:
        fitted = min(
            estimate_max_model_len(part, limits, release, n_bytes, block_bytes=block)
            for part, n_bytes, block in zip(pool.per_stage, checked, pool.block_bytes, strict=True)
        )
        if fitted <= 0:
            refusal = auto_fit_refusal(checked)
        else:
            limits = limits.at(fitted)
            needed = tuple(
                request_bytes(part, limits, release, block_bytes=block)
                for part, block in zip(pool.per_stage, pool.block_bytes, strict=True)
            )
    if refusal is None:
        refusal = _check_memory(pool, limits, needed, checked, in_words)
    own = tuple([max(n // block, 0) for n, block in zip(planned, pool.block_bytes, strict=True)])
    if engine.num_gpu_blocks_override is not None:
        own = (engine.num_gpu_blocks_override,) * len(own)
    num_blocks = min(own)
    if refusal is None:
        refusal = _check_states(pool.groups, num_blocks, engine, release)
    return Filling(num_blocks=num_blocks, refusal=refusal, limits=limits, own=own, needed=needed)


def _check_memory(
    pool: KVPool, limits: RequestLimits, needed: Sequence[int], checked: Sequence[int], in_words: bool
) -> Refusal | None:
    """The first stage without KV memory or without room for one request (`_check_enough_kv_cache_memory`)."""
    for stage, part in enumerate(pool.per_stage):
        if checked[stage] <= 0:
            return missing_memory_refusal(checked[stage], stage, pool.release)
        if needed[stage] > checked[stage]:
            n_bytes, block = checked[stage], pool.block_bytes[stage]
            fits = (
                estimate_max_model_len(part, limits, pool.release, n_bytes, block_bytes=block)
                if in_words
                else 0
            )
            return memory_refusal(
                limits.max_model_len, needed[stage], checked[stage], fits, stage, pool.release
            )
    return None


def _plan(pool: KVPool, filling: Filling, stages: tuple[StageKV, ...]) -> KVCachePlan:
    groups, engine, release = pool.groups, pool.engine, pool.release
    num_blocks, limits = filling.num_blocks, filling.limits
    per_request = blocks_per_request(stages[0].groups, limits, release)
    concurrency = num_blocks / per_request if per_request else 0.0
    block_size = min(group.spec.block_size for group in groups)
    if release.has("tokens_from_concurrency"):
        tokens = int(concurrency * limits.max_model_len)
    else:
        tokens = num_blocks // len(groups) * block_size * engine.parallel.dcp * engine.parallel.pcp
    states = any(isinstance(group.spec, MambaSpec) for group in groups)
    capped = states and engine.cudagraph_mode in FULL_GRAPH_MODES and release.has("mamba_blocks_cap_graphs")
    return KVCachePlan(
        groups=groups,
        stages=stages,
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=limits.max_model_len,
        blocks_per_request=per_request,
        size_tokens=tokens,
        max_concurrency=concurrency,
        limits=limits,
        release=release,
        refusal=filling.refusal,
        graph_size_cap=num_blocks if capped else None,
    )


def _attention_free(pool: KVPool, filling: Filling) -> KVCachePlan:
    """No layer has a KV cache: one block, for the null block (:1360-1367)."""
    return KVCachePlan(
        groups=(), stages=(), block_size=pool.layers.block_size, num_blocks=filling.num_blocks,
        max_model_len=pool.engine.max_model_len, blocks_per_request=0, size_tokens=0, max_concurrency=0.0,
        limits=filling.limits, release=pool.release,
    )  # fmt: skip


def _check_context_parallel(groups: Sequence[KVCacheGroup], engine: EngineConfig) -> None:
    for group in groups if engine.parallel.dcp > 1 else ():
        for run in group.layer_specs:
            if isinstance(run.spec, SlidingWindowSpec) and run.spec.dcp_sharded:
                raise RefusedError(Reason.INVALID_LAYOUT, "DCP not support sliding window.")


def _planned_bytes(
    available_bytes: Sequence[int], block_bytes: Sequence[int], engine: EngineConfig, release: Release
) -> Sequence[int]:
    """`num_gpu_blocks_override` replaces the profiled memory from 0.20.1 on; before, only the number of
    blocks.
    """
    override = engine.num_gpu_blocks_override
    if override is None or not release.has("block_override_before_check"):
        return available_bytes
    return [override * block for block in block_bytes]


def estimate_max_model_len(
    groups: Sequence[KVCacheGroup], limits: RequestLimits, release: Release, n_bytes: int, *, block_bytes: int
) -> int:
    """The longest request up to `limits.max_model_len` tokens that `n_bytes` hold; 0 if not even one token.

    Source: the binary search of `_estimate_max_model_len_from_groups` (:1895-1927).
    """

    def fits(length: int) -> bool:
        return request_bytes(groups, limits.at(length), release, block_bytes=block_bytes) <= n_bytes

    if fits(limits.max_model_len):
        return limits.max_model_len
    if not fits(1):
        return 0
    return _largest(fits, 1, limits.max_model_len)


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number in [low, high) for which the monotone `fits` holds; it holds for `low`."""
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _check_states(
    groups: Sequence[KVCacheGroup], num_blocks: int, engine: EngineConfig, release: Release
) -> Refusal | None:
    """`resolve_cudagraph_mode_and_sizes` (config/compilation.py:1481-1499): full graphs need a state block
    per sequence.
    """
    if not release.has("mamba_blocks_checked") or engine.cudagraph_mode not in FULL_GRAPH_MODES:
        return None
    if release.has("packed_kv_groups"):
        states = any(group.has_mamba for group in groups)
    else:
        states = any(isinstance(group.spec, MambaSpec) for group in groups)
    return (
        state_blocks_refusal(engine.max_num_seqs, num_blocks)
        if states and engine.max_num_seqs > num_blocks
        else None
    )


def _stage(
    groups: tuple[KVCacheGroup, ...], available: int, block: int, own: int, needed: int, filling: Filling
) -> StageKV:
    limits = filling.limits
    per_token, fixed = 0.0, 0
    for group in groups:
        tokens = tokens_per_block(group.spec, limits)
        if tokens is None:
            fixed += group.spec.max_pages(limits)
        else:
            per_token += 1 / tokens
    return StageKV(
        groups=groups,
        available_bytes=available,
        bytes_per_block=block,
        num_blocks_own=own,
        request_bytes=needed,
        kv_bytes=filling.num_blocks * block,
        marginal_bytes_per_token=block * per_token,
        fixed_bytes_per_sequence=block * fixed,
    )


def tokens_per_block(spec: KVCacheSpec, limits: RequestLimits) -> int | None:
    """Tokens of context behind one block of a group that grows with the context; None for windows and
    states.
    """
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return tokens_per_block(spec.runs[0].spec, limits)
    if isinstance(spec, FullAttentionSpec):
        return spec.block_size * (limits.kv_shards if spec.dcp_sharded else 1)
    if isinstance(spec, MambaSpec) and limits.mamba_cache_mode == "all":
        return spec.block_size
    return None


def _pool_tokens(
    groups: Sequence[KVCacheGroup], num_blocks: int, limits: RequestLimits, release: Release
) -> int:
    """The longest single sequence that the usable blocks hold; for fixed-size states alone, all sequences
    together.
    """
    usable = num_blocks - 1
    for group in groups:
        if isinstance(group.spec, SinkFullAttentionSpec) and group.spec.sink_len:
            usable -= group.spec.sink_len // group.spec.block_size
    growing = [tokens for g in groups if (tokens := tokens_per_block(g.spec, limits)) is not None]

    def blocks(length: int) -> int:
        return blocks_per_request(groups, limits.at(length), release)

    if usable <= 0 or blocks(1) > usable:
        return 0
    if not growing:
        return usable // max(blocks(limits.max_model_len), 1) * limits.max_model_len
    if len(groups) == 1 and blocks(guess := usable * growing[0]) <= usable < blocks(guess + 1):
        return guess
    return _largest(lambda length: blocks(length) <= usable, 1, usable * max(growing) + 1)


def minimal_kv_bytes(layers: KVLayers, engine: EngineConfig, release: Release) -> int:
    """KV bytes of the temporary cache under which CUDA graphs are profiled, for one rank's layers.

    One block per graph size, from 0.26.0 on per sequence at most (v1/worker/gpu_model_runner.py:6439-6459).
    """
    groups = group_layers(layers, release, hybrid_disabled=engine.hybrid_kv_cache_manager_disabled)
    if not groups:
        return 0
    blocks = max(engine.cudagraph_capture_sizes, default=0)
    if release.has("minimal_kv_per_sequence"):
        blocks = min(blocks, engine.max_num_seqs)
    return max(blocks, 1) * bytes_per_block(groups, release, block_outermost=layers.block_outermost)
