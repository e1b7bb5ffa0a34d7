"""A whole dry-run: chosen ranks on the engine side, then the analytical plan for what that cannot see, then vLLM's own
KV planner over both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vllm_capacity.answer import Plan, RankPlan
from vllm_capacity.budget import RankBudget, rank_budget
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.ledger import MemoryTerm
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.planner import make_plan
from vllm_capacity.releases.release import Release
from vllm_capacity.request import Inputs
from vllm_capacity.validate.dry_run import ranks as choosing
from vllm_capacity.validate.dry_run import terms as making
from vllm_capacity.validate.dry_run.golden import parallel_of
from vllm_capacity.validate.dry_run.job import Job, describe_gpu, make_job, with_draft_folder, write_model
from vllm_capacity.validate.dry_run.selftest import MODEL, self_test
from vllm_capacity.validate.dry_run.session import RankFailedError, Session
from vllm_capacity.validate.dry_run.stub import build_stub

REFUSALS = ("ValueError", "ValidationError", "NotImplementedError", "AssertionError")
CONFIGURING = ("vllm/config/", "vllm/engine/arg_utils.py", "pydantic")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """One rank: what vLLM did there (`built`), and the ledger made of it."""

    rank: int
    stage: int
    built: Mapping[str, Any]
    """The engine side's figures: weights as configured, the profile from an eager run."""
    terms: tuple[MemoryTerm, ...]
    budget: RankBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What vLLM itself did with one model in one layout."""

    config: ModelConfig
    args: EngineArgs
    parallel: ParallelConfig
    device: Device
    release: Release
    versions: Mapping[str, str]
    ranks: tuple[RankRun, ...]
    kv_cache: Mapping[str, Any] | None
    """vLLM's KV plan; None where it refused (`refusal`) or where a stage was not run."""
    refusal: str
    plan: Plan | None
    """The analytical plan that the unseen terms come from."""
    plan_error: str
    warnings: tuple[str, ...]


def dry_run(
    inputs: Inputs,
    args: EngineArgs,
    python: str,
    *,
    ranks: str = "ends",
    top: int = 10,
    tell: Callable[[str], None] = lambda _text: None,
) -> DryRun:
    """Raises InputError: no vLLM there, a release that was not checked, a failed self-test, a worker that broke down."""
    parallel = parallel_of(args)
    chosen = choosing.choose_ranks(ranks, parallel)
    tell("starting vLLM (about half a minute)")
    with (
        tempfile.TemporaryDirectory(prefix="vllm-capacity-model-") as folder,
        _session(python, inputs.device, parallel) as session,
    ):
        if session.vllm_version != inputs.release.version:
            raise InputError(
                f"--python has vLLM {session.vllm_version}, asked for is {inputs.release.version}; leave --vllm-version out "
                "or name another Python"
            )
        self_test(session)
        given = with_draft_folder(args, Path(folder))
        job = make_job(write_model(inputs.model, Path(folder) / "model"), given, inputs.release)
        plan, plan_error = _plan(inputs, args)
        refusal, built = "", {}
        try:
            for rank in chosen:
                tell(f"rank {rank} of {parallel.num_gpus}")
                built[rank] = _run_rank(session, job, rank, args, top)
        except RankFailedError as error:
            if not _is_refusal(error):
                raise
            refusal = str(error)
        runs = tuple(_rank_run(rank, built[rank], parallel, inputs, args, plan) for rank in built)
        kv_cache = None
        if not refusal and choosing.stages_run(chosen, parallel):
            try:
                kv_cache = session.plan_kv(chosen, [run.budget.available_kv_bytes for run in runs])
            except RankFailedError as error:
                if error.kind != "ValueError":
                    raise
                refusal = str(error)
        versions, unprepared = session.versions, session.unprepared
    return DryRun(
        config=inputs.config,
        args=args,
        parallel=parallel,
        device=inputs.device,
        release=inputs.release,
        versions=versions,
        ranks=runs,
        kv_cache=kv_cache,
        refusal=refusal,
        plan=plan,
        plan_error=plan_error,
        warnings=_warnings(runs, plan_error, unprepared),
    )


def _session(python: str, device: Device, parallel: ParallelConfig) -> Session:
    if device.vendor != "nvidia":
        raise InputError(f"dry-run imitates NVIDIA GPUs only; {device.name} is not one")
    return Session(
        python, describe_gpu(device), stub=build_stub(), warm_up=MODEL, devices=max(8, parallel.num_gpus)
    )


def _run_rank(session: Session, job: Job, rank: int, args: EngineArgs, top: int) -> dict[str, Any]:
    """An eager run in one go. A compiled one: weights and specs as configured, the profile from an eager run, because the
    compiled path cannot run on tensors without storage (docs/dry-run.md).
    """
    built = session.rank(job.message(rank, profile=args.enforce_eager, force_eager=False, top=top))
    if args.enforce_eager:
        return built
    eager = session.rank(job.message(rank, profile=True, force_eager=True, top=top))
    # the planner is to see the configured run: it is asked last
    configured = (
        session.rank(job.message(rank, profile=False, force_eager=False, top=top))
        if _differs(built, eager)
        else built
    )
    return {
        **configured,
        "profile": eager["profile"],
        "profile_exactness": eager["profile_exactness"],
        "notes": eager["notes"],
    }


def _differs(built: Mapping[str, Any], eager: Mapping[str, Any]) -> bool:
    """Whether the eager run would plan another KV cache, so that the configured one must be the last that ran."""
    return any(built[key] != eager[key] for key in ("kv_layers", "backends")) or (
        built["resolved"]["block_size"] != eager["resolved"]["block_size"]
    )


def _is_refusal(error: RankFailedError) -> bool:
    """vLLM said no while it made its configuration, before there was a tensor."""
    return (
        error.kind in REFUSALS
        and bool(error.where)
        and any(place.startswith(CONFIGURING) or "/pydantic/" in place for place in error.where[-3:])
    )


def _plan(inputs: Inputs, args: EngineArgs) -> tuple[Plan | None, str]:
    try:
        plan = make_plan(
            inputs.config, args, inputs.device, inputs.release, release_source=inputs.release_source,
            used_by_others_bytes=inputs.used_by_others_bytes, suggestions=False, calibration=inputs.calibration,
        )  # fmt: skip
    except InputError as error:
        return None, str(error)
    return (plan, "") if isinstance(plan, Plan) else (None, plan.verdict.message)


def _rank_run(
    rank: int,
    built: Mapping[str, Any],
    parallel: ParallelConfig,
    inputs: Inputs,
    args: EngineArgs,
    plan: Plan | None,
) -> RankRun:
    stage = choosing.stage_of(rank, parallel)
    beside = _planned(plan, rank, parallel)
    terms = making.rank_terms(
        built, beside.terms if beside else (), compiled=not args.enforce_eager, plan=plan, stage=stage
    )
    graphs = beside.budget.graph_applied_bytes if beside else 0
    utilization = plan.engine.gpu_memory_utilization if plan else built["resolved"]["gpu_memory_utilization"]
    budget = rank_budget(
        terms,
        inputs.release,
        cuda_total_bytes=inputs.device.cuda_total_bytes,
        used_by_others_bytes=inputs.used_by_others_bytes,
        utilization=utilization,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        graph_estimate=making.graph_term(graphs),
        graph_estimate_enabled=True,
    )
    return RankRun(rank=rank, stage=stage, built=built, terms=terms, budget=budget)


def _planned(plan: Plan | None, rank: int, parallel: ParallelConfig) -> RankPlan | None:
    if plan is None:
        return None
    per_stage = parallel.tp * parallel.pcp
    place = (rank % per_stage, choosing.stage_of(rank, parallel), rank // parallel.world_size)
    return next((kind for kind in plan.ranks if place in kind.ranks), None)


def _warnings(runs: tuple[RankRun, ...], plan_error: str, unprepared: tuple[str, ...]) -> tuple[str, ...]:
    found = [f"a kernel library could not be prepared: {text}" for text in unprepared]
    if plan_error:
        found.append(
            f"no analytical plan ({plan_error}): CUDA context, kernels, NCCL and graphs are missing, so less is left for "
            "the KV cache than is said here"
        )
    return (*found, *dict.fromkeys(note for run in runs for note in run.built["notes"]))
