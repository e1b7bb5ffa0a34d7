"""The ledger of a dry-run: terms that vLLM's own code made, and those that only the analytical plan knows.

Seen: every tensor that Python makes. Unseen: what CUDA, NCCL and the driver take, graphs, memory inside kernels, the
allocator's rounding beyond 512 bytes, and what compiling does to the peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm_capacity.answer import Plan, Status
from vllm_capacity.budget import Account, account_of
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.validate.dry_run import exactness
from vllm_capacity.weights.groups import role_of

ROUNDING = 512
"""kMinBlockSize, c10/cuda/CUDACachingAllocator.cpp."""
SEEN = "vLLM's own code, run on tensors without storage"
UNSEEN = "from the analytical plan: not visible without a GPU"
COMPILED = "from the analytical plan: the dry-run profiles eagerly"
KEPT_FROM_PLAN = (
    "allocator_rounding",
    "draft_rounding",
    "cublas_workspace",
    "cublaslt_workspace",
    "allocator_fragmentation",
)
"""Terms of PyTorch's allocator that no operator makes."""
_REPLACED = (Lifetime.LOAD, Lifetime.RUNNER_INIT, Lifetime.PROFILE_TRANSIENT, Lifetime.PROFILE_PERSISTENT)


def rank_terms(
    built: Mapping[str, Any], planned: Sequence[MemoryTerm], *, compiled: bool, plan: Plan | None, stage: int
) -> tuple[MemoryTerm, ...]:
    """The ledger of one rank. `planned` is the plan's for the same rank, empty where there is none."""
    terms = [*_weights(built), *_runner(built), *_activation(built)]
    if plan is not None and plan.release.has("profile_max_split_size"):
        terms += _unsplit(built)
    if compiled and plan is not None and planned:
        terms.append(_compiling(built, planned, plan, stage))
    for t in planned:
        if t.component is Component.KV_CACHE:
            continue
        seen = (
            t.allocator is Allocator.TORCH
            and t.lifetime in _REPLACED
            and t.component is not Component.CUDA_GRAPHS
        )
        if not seen or t.name in KEPT_FROM_PLAN:
            terms.append(replace(t, note=f"{UNSEEN}; {t.note}" if t.note else UNSEEN))
    return tuple(terms)


def is_unseen(t: MemoryTerm) -> bool:
    return t.note.startswith((UNSEEN, COMPILED))


def beyond_tensors(t: MemoryTerm) -> int:
    """Bytes of a planned term that PyTorch's allocator counts beyond the tensors: a dry-run's `weights_exact_bytes` has the
    tensors alone.
    """
    values = dict(t.values)
    if t.name in ("allocator_rounding", "draft_rounding"):
        return t.n_bytes
    if t.name == "lora_adapters":
        return int(values.get("blocks", 0))
    if t.name == "lora_metadata" and "slots" in values:
        slots, fused = int(values["slots"]), int(values["fused"])
        return 6 * ROUNDING - 2 * 4 * (3 * slots + 4) + fused * (ROUNDING - 4 * (slots + 1))
    return 0


def role(name: str) -> str:
    """The plan's name for a group of parameters, from a parameter's path with layers starred."""
    if ".experts." in name:
        return "experts"
    whole = role_of(name.removeprefix("model."))
    inner = name.rpartition(".*.")[2].removeprefix("language_model.").removeprefix("model.")
    return whole if whole == "encoder" else role_of(inner)


def _weights(built: Mapping[str, Any]) -> list[MemoryTerm]:
    sums: dict[str, int] = {}
    for group in built["groups"]:
        name = role(group["name"])
        sums[name] = sums.get(name, 0) + group["bytes"]
    other = built["weights_exact_bytes"] - sum(sums.values())
    if other:
        sums["other_weights"] = other
    note = _not_exact(exactness.weights_reasons(built))
    return [
        term(
            name,
            Component.WEIGHTS,
            "measured",
            lifetime=Lifetime.LOAD,
            source=SEEN,
            note=note,
            measured=n_bytes,
        )
        for name, n_bytes in sums.items()
    ]


def _runner(built: Mapping[str, Any]) -> list[MemoryTerm]:
    return [
        term(
            "runner_buffers",
            Component.RUNNER_BUFFERS,
            "measured",
            lifetime=Lifetime.RUNNER_INIT,
            source=SEEN,
            measured=built["runner_buffers_bytes"],
        )
    ]


def _activation(built: Mapping[str, Any]) -> list[MemoryTerm]:
    profile = built.get("profile")
    if profile is None:
        return []
    peak = profile["vllm_peak_bytes"]
    if peak is None:
        peak = profile["peak_bytes"]
    kept = min(profile["kept_bytes"], peak)
    note = _not_exact(exactness.activation_reasons(built))
    return [
        term("eager_peak", Component.ACTIVATION, "peak - kept", lifetime=Lifetime.PROFILE_TRANSIENT, source=SEEN, note=note,
             peak=peak, kept=kept),
        term("kept_after_profile", Component.WORKSPACE, "kept", lifetime=Lifetime.PROFILE_PERSISTENT, source=SEEN, note=note,
             kept=kept),
    ]  # fmt: skip


def _unsplit(built: Mapping[str, Any]) -> list[MemoryTerm]:
    """What PyTorch counts beyond the tensors alive at the peak where the profile run does not split large blocks."""
    rest = (built.get("profile") or {}).get("unsplit_bytes", 0)
    return [
        term("unsplit_blocks", Component.ACTIVATION, "rest", lifetime=Lifetime.PROFILE_TRANSIENT,
             source="v1/worker/gpu_worker.py: determine_available_memory (max_split_size_mb=20)", note=UNSEEN, rest=rest),
    ] if rest else []  # fmt: skip


def _compiling(built: Mapping[str, Any], planned: Sequence[MemoryTerm], plan: Plan, stage: int) -> MemoryTerm:
    """What a compiled run's peak is above (or below) the eager one, by the analytical model.

    Its compiled peak where that is above what was seen; else what it says that compiling takes away. So an error of its
    eager peak never gets into a compiled run that it knows.
    """
    compiled = _activation_bytes(planned, plan)
    here = next(kind for kind in eager_plan(plan).ranks if kind.ranks[0][1] == stage)
    eager = here.budget.totals[Account.ACTIVATION]
    cublas = sum(t.n_bytes for t in planned if t.name in KEPT_FROM_PLAN[1:3])
    seen = sum(t.n_bytes for t in _activation(built)) + cublas
    return term(
        "compiled_less_eager",
        Component.ACTIVATION,
        "compiled - seen if compiled > seen else min(compiled - eager, 0)",
        lifetime=Lifetime.PROFILE_TRANSIENT,
        source="activations/peak.py of this tool, with and without torch.compile",
        note=COMPILED,
        compiled=compiled,
        seen=seen,
        eager=eager,
    )


def eager_plan(plan: Plan) -> Plan:
    """The same plan with --enforce-eager."""
    from vllm_capacity.planner import make_plan

    other = make_plan(
        plan.config,
        replace(plan.engine.args, enforce_eager=True),
        plan.device,
        plan.release,
        used_by_others_bytes=plan.used_by_others_bytes,
        suggestions=False,
    )
    assert isinstance(other, Plan), Status.DOES_NOT_START
    return other


def _activation_bytes(planned: Sequence[MemoryTerm], plan: Plan) -> int:
    return sum(t.n_bytes for t in planned if account_of(t, plan.release) is Account.ACTIVATION)


def graph_term(n_bytes: int) -> MemoryTerm:
    """The plan's estimate, as the accounting takes it."""
    return term(
        "graph_estimate",
        Component.CUDA_GRAPHS,
        "estimate",
        lifetime=Lifetime.AFTER_PROFILE,
        source="v1/worker/gpu_model_runner.py: profile_cudagraph_memory",
        note=UNSEEN,
        estimate=n_bytes,
    )


def _not_exact(why: Sequence[str]) -> str:
    return f"not exact: {'; '.join(why)}" if why else ""
