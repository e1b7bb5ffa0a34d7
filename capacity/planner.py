"""From inputs to a `Plan`: one direction, no input or output.

config + args + device + release -> architecture -> engine config -> terms per rank -> budget -> KV cache -> verdict
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from vllm_capacity.activations.compressed import COMPRESSED_PHASES
from vllm_capacity.activations.peak import ActivationPeak, activation_peak
from vllm_capacity.advice import suggestions as suggest
from vllm_capacity.answer import Plan, RankPlan, RefusedPlan, Status, Verdict
from vllm_capacity.architecture.adapters import as_pooling_model, without_window
from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.budget import PERSISTENT, Account, RankBudget, device_bytes, rank_budget
from vllm_capacity.calibration import Calibration, coverage, use_calibration
from vllm_capacity.context import RankContext
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs, EngineConfig
from vllm_capacity.engine_defaults import resolve_engine
from vllm_capacity.engine_defaults.facts import pooling_conversion
from vllm_capacity.errors import RefusedError
from vllm_capacity.frozen import dataclass
from vllm_capacity.host import host_needs
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.kv_cache.grouping import group_layers, project
from vllm_capacity.kv_cache.layers import layer_specs
from vllm_capacity.kv_cache.planning import KVCachePlan, StageKV, fill, filling_of, kv_pool
from vllm_capacity.kv_cache.specs import KVCacheGroup, KVLayers
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads import graph_estimate, overhead_terms
from vllm_capacity.overheads.all_reduce import early_tensors
from vllm_capacity.overheads.offload import offload_warnings
from vllm_capacity.overheads.requests import SAMPLER_WARMUP, request_warnings
from vllm_capacity.overheads.runner_buffers import runner_tensors
from vllm_capacity.overheads.unmodelled import unmodelled_warnings
from vllm_capacity.parallel import stage_bounds
from vllm_capacity.releases.release import Release
from vllm_capacity.verdict import judge
from vllm_capacity.weights.encoder_modules import whole_towers
from vllm_capacity.weights.layout import check_layout
from vllm_capacity.weights.rank import RankWeights, parameter_total, whole_weights
from vllm_capacity.weights.terms import load_peak_bytes, weight_terms


@dataclass(frozen=True, slots=True)
class _RankKind:
    """Ranks that hold the same bytes: one pipeline stage, or part of one where experts do not divide evenly."""

    context: RankContext
    ranks: tuple[tuple[int, int, int], ...]
    terms: tuple[MemoryTerm, ...]
    activation: ActivationPeak
    graphs: MemoryTerm | None
    budget: RankBudget


def make_plan(
    config: ModelConfig,
    args: EngineArgs,
    device: Device,
    release: Release,
    *,
    release_source: str = "given",
    used_by_others_bytes: int = 0,
    concurrency: int | None = None,
    suggestions: bool = True,
    calibration: Calibration | None = None,
    warnings: tuple[str, ...] = (),
) -> Plan | RefusedPlan:
    """The plan of one layout; a layout or model that vLLM refuses is a `RefusedPlan`. Raises InputError."""
    with use_calibration(calibration):
        try:
            plan = _plan(
                config, args, device, release, release_source, used_by_others_bytes, concurrency, warnings
            )
        except RefusedError as refused:
            verdict = Verdict(status=Status.DOES_NOT_START, reason=refused.reason, message=str(refused))
            return RefusedPlan(
                config=config, device=device, release=release, release_source=release_source,
                tp=args.tensor_parallel_size, verdict=verdict,
            )  # fmt: skip
    if not suggestions:
        return plan

    def replan(other: EngineArgs) -> Plan | RefusedPlan:
        return make_plan(
            config, other, device, release, release_source=release_source,
            used_by_others_bytes=used_by_others_bytes, suggestions=False, calibration=calibration,
        )  # fmt: skip

    return replace(plan, verdict=replace(plan.verdict, suggestions=suggest(plan, replan)))


def _plan(
    config: ModelConfig,
    args: EngineArgs,
    device: Device,
    release: Release,
    release_source: str,
    used_by_others_bytes: int,
    concurrency: int | None,
    warnings: tuple[str, ...],
) -> Plan:
    given = config
    if args.other("disable_sliding_window"):
        config = _without_window(config)
    architecture = _architecture(config, release, pooling_conversion(args))
    engine = resolve_engine(args, given, architecture, device, release)
    check_layout(architecture, engine.parallel, release, whole_towers(architecture, args))
    layers = layer_specs(config, architecture, engine, device, release)
    groups = group_layers(layers, release, hybrid_disabled=engine.hybrid_kv_cache_manager_disabled)
    stages = stage_bounds(architecture.num_hidden_layers, engine.parallel)
    kinds = _rank_kinds(
        config, architecture, engine, device, release, layers, groups, stages, used_by_others_bytes
    )
    pool = kv_pool(layers, engine, release, stages=stages if len(stages) > 1 else (), groups=groups)
    kv_cache = fill(pool, _left(kinds, "available_kv_bytes"))
    ranks = tuple(_rank_plan(kind, kv_cache, engine) for kind in kinds)
    verdict = judge(
        ranks,
        kv_cache,
        engine=engine,
        device=device,
        release=release,
        used_by_others_bytes=used_by_others_bytes,
        at_low=filling_of(pool, _left(kinds, "available_kv_low_bytes"), in_words=kv_cache.refusal is None),
        at_high=filling_of(pool, _left(kinds, "available_kv_high_bytes"), in_words=False),
        concurrency=concurrency,
    )
    counted = [(len(kind.ranks), kind.terms) for kind in kinds]
    warm = any(_freed_when_warm(kind) for kind in kinds) and engine.kv_cache_memory_bytes is None
    return Plan(
        config=given,
        architecture=architecture,
        parameters=_parameters(architecture),
        device=device,
        used_by_others_bytes=used_by_others_bytes,
        release=release,
        release_source=release_source,
        engine=engine,
        ranks=ranks,
        kv_cache=kv_cache,
        verdict=verdict,
        host=host_needs(config, engine, counted, lambda: _parameter_bytes(whole_weights(kinds[0].context))),
        coverage=coverage(kinds[0].context),
        kv_cache_warm=fill(pool, _left(kinds, "available_kv_bytes", warm=True), in_words=False)
        if warm
        else None,
        warnings=(
            *warnings,
            *unmodelled_warnings(args, release),
            *offload_warnings(engine, release),
            *engine.notes,
            *architecture.notes,
            *layers.notes,
            *_request_warnings(ranks, device, used_by_others_bytes),
        ),
    )


@lru_cache(maxsize=64)
def _without_window(config: ModelConfig) -> ModelConfig:
    return without_window(config)


@lru_cache(maxsize=64)
def _architecture(config: ModelConfig, release: Release, conversion: str) -> Architecture:
    """The model's architecture as it is run; `conversion` makes a pooling model of a generator."""
    architecture = _as_stored(config, release)
    if conversion and architecture.runner_type == "generate":
        return as_pooling_model(architecture, config, classify=conversion == "classify")
    return architecture


@lru_cache(maxsize=64)
def _as_stored(config: ModelConfig, release: Release) -> Architecture:
    architecture = build_architecture(config, release)
    tensors = config.facts.get("tensors")
    if not tensors:
        return architecture
    from vllm_capacity.weights.checkpoint import fit_to_headers

    return fit_to_headers(architecture, tensors, config.quantization)


@lru_cache(maxsize=64)
def _parameters(architecture: Architecture) -> int:
    return parameter_total(architecture)


def _request_warnings(
    ranks: Sequence[RankPlan], device: Device, used_by_others_bytes: int
) -> tuple[str, ...]:
    """What requests can still run out of memory once the server is up, on the rank with the least left."""
    fullest = max(ranks, key=lambda rank: rank.device_used_bytes)
    left = device.cuda_total_bytes - used_by_others_bytes - device_bytes(fullest.terms, PERSISTENT)
    return request_warnings(fullest.terms, left)


@lru_cache(maxsize=256)
def _parameter_bytes(weights: RankWeights) -> int:
    return sum(group.n_bytes for group in weights.groups if not group.buffer)


def _rank_kinds(
    config: ModelConfig,
    architecture: Architecture,
    engine: EngineConfig,
    device: Device,
    release: Release,
    layers: KVLayers,
    groups: tuple[KVCacheGroup, ...],
    stages: tuple[tuple[int, int], ...],
    used_by_others_bytes: int,
) -> tuple[_RankKind, ...]:
    parallel = engine.parallel
    per_stage = project(groups, layers, stages if parallel.pp > 1 else ()) if groups else [()] * parallel.pp
    kinds = []
    for pp_rank, (first, last) in enumerate(stages):
        here = tuple(
            (group, count)
            for group in architecture.layers
            if (count := sum(first <= index < last for index in group.indices))
        )
        context = RankContext(
            config=config, architecture=architecture, engine=engine, release=release, device=device,
            tp_rank=0, pp_rank=pp_rank, layers=here, kv_groups=tuple(per_stage[pp_rank]),
        )  # fmt: skip
        activation = activation_peak(context)
        graphs = graph_estimate(context)
        common = (*overhead_terms(context), *activation.terms)
        runner = (*early_tensors(context), *runner_tensors(context))
        for ep_rank, ranks in _expert_shares(architecture, engine, pp_rank):
            terms = (*weight_terms(context, ep_rank, runner=runner), *common)
            budget = rank_budget(
                terms, release,
                cuda_total_bytes=device.cuda_total_bytes,
                used_by_others_bytes=used_by_others_bytes,
                utilization=engine.gpu_memory_utilization,
                kv_cache_memory_bytes=engine.kv_cache_memory_bytes,
                graph_estimate=graphs,
                graph_estimate_enabled=_estimates_graphs(engine, release),
            )  # fmt: skip
            kinds.append(_RankKind(context, ranks, terms, activation, graphs, budget))
    return tuple(kinds)


def _expert_shares(
    architecture: Architecture, engine: EngineConfig, pp_rank: int
) -> tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...]:
    """(expert-parallel rank, the ranks that hold as many experts): the first E mod ep ranks hold one more.

    Source: model_executor/layers/fused_moe/expert_map_manager.py:64-70 (0.26.0).
    """
    parallel = engine.parallel
    ranks = [(tp, pp_rank, dp) for dp in range(parallel.dp) for tp in range(parallel.tp * parallel.pcp)]
    extra = architecture.num_experts % parallel.moe_parallel_size if parallel.expert_parallel else 0
    if not extra:
        return ((0, tuple(ranks)),)
    return (0, tuple(ranks[:extra])), (extra, tuple(ranks[extra:]))


def _estimates_graphs(engine: EngineConfig, release: Release) -> bool:
    """VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS, on by default where the release subtracts the estimate (envs.py)."""
    flag = engine.environment.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    return release.has("graph_estimate_subtracted") if flag is None else bool(int(flag))


def _left(kinds: Sequence[_RankKind], which: str, *, warm: bool = False) -> list[int]:
    """Bytes that the budget of each stage's fullest rank leaves, at a first or a `warm` start."""
    left: dict[int, int] = {}
    for kind in kinds:
        stage = kind.context.pp_rank
        n_bytes: int = getattr(kind.budget, which) + (_freed_when_warm(kind) if warm else 0)
        left[stage] = min(n_bytes, left.get(stage, n_bytes))
    return list(left.values())


def _freed_when_warm(kind: _RankKind) -> int:
    """What the profile run needs less when it finds its kernels in the compile cache."""
    return kind.activation.n_bytes - kind.activation.warm_bytes


def _rank_plan(kind: _RankKind, kv_cache: KVCachePlan, engine: EngineConfig) -> RankPlan:
    stage = kv_cache.stages[kind.context.pp_rank] if kv_cache.stages else None
    cache = _cache_term(stage, kv_cache)
    terms = (*kind.terms, cache)
    budget = kind.budget
    own = max(budget.available_kv_bytes // stage.bytes_per_block, 0) if stage else kv_cache.num_blocks
    if engine.num_gpu_blocks_override is not None:
        own = engine.num_gpu_blocks_override
    return RankPlan(
        ranks=kind.ranks,
        terms=terms,
        accounts=(*budget.accounts, Account.KV_CACHE),
        budget=replace(budget, totals={**budget.totals, Account.KV_CACHE: cache.n_bytes}),
        activation=kind.activation,
        activation_peak_warm_bytes=kind.activation.warm_bytes,
        num_blocks_own=own,
        kv_bytes=cache.n_bytes,
        kv_blocks=kv_cache.num_blocks,
        load_transient_bytes=load_peak_bytes(kind.context),
        graph_actual_bytes=budget.totals[Account.CUDA_GRAPHS],
        device_used_bytes=device_bytes(terms, PERSISTENT) + _kept_by_warm_up(kind, terms),
    )


FORWARD = frozenset({"attention", "MLP", "MLA", "MoE", "state space", *COMPRESSED_PHASES})
"""Phases of the layers."""


def _kept_by_warm_up(kind: _RankKind, terms: Sequence[MemoryTerm]) -> int:
    """What PyTorch's cache keeps of the last warm-up, so that nvidia-smi shows it: the sampler's, or, where an eager run
    leaves that out, the forward of FlashInfer's autotuning.

    Source: model_executor/warmup/kernel_warmup.py: kernel_warmup (0.31.0 to 0.33.0).
    """
    kept = next((t for t in terms if t.name == SAMPLER_WARMUP), None)
    if kept is None or kept.n_bytes or kind.context.device.sm < 90:
        return kept.n_bytes if kept else 0
    forward = [p for p in kind.activation.phases if p.name in FORWARD]
    return max((device_bytes(p.terms, (Lifetime.PROFILE_TRANSIENT,)) for p in forward), default=0)


def _cache_term(stage: StageKV | None, kv_cache: KVCachePlan) -> MemoryTerm:
    return term(
        "kv_cache", Component.KV_CACHE, "num_blocks * bytes_per_block",
        lifetime=Lifetime.AFTER_PROFILE,
        source="v1/core/kv_cache_utils.py: get_kv_cache_configs; v1/core/kv_cache_planning.py from 0.33.0",
        note="" if stage else "no layer keeps a KV cache",
        num_blocks=kv_cache.num_blocks if stage else 0,
        bytes_per_block=stage.bytes_per_block if stage else 0,
    )  # fmt: skip
