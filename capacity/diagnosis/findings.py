"""Which failure of a start decides, what ran out, and the figures and lines that show it."""

from __future__ import annotations

from vllm_capacity.diagnosis.causes import Cause, Confidence, Finding, RuntimeCause
from vllm_capacity.diagnosis.descriptions import DESCRIBE, out_of_memory
from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Component
from vllm_capacity.logs.failures import FailureKind, Phase
from vllm_capacity.logs.record import Evidence, Failure, StartRecord

_STARTUP = frozenset(Phase) - {Phase.REQUEST, Phase.UNKNOWN}

PAGES: dict[str, str] = {
    Reason.FREE_BELOW_REQUESTED: "free-memory-less-than-desired",
    Reason.LOAD_PEAK: "out-of-memory-while-loading",
    Reason.NO_KV_MEMORY: "no-available-memory-for-the-cache-blocks",
    Reason.ONE_REQUEST_DOES_NOT_FIT: "to-serve-at-least-one-request",
    Reason.MINIMAL_KV_PROFILING: "out-of-memory-in-graph-profiling",
    Reason.GRAPH_CAPTURE: "out-of-memory-capturing-cuda-graphs",
    Reason.SAMPLER_WARMUP: "out-of-memory-warming-up-sampler",
    Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS: "max-num-seqs-exceeds-mamba-cache-blocks",
    Reason.INVALID_LAYOUT: "must-be-divisible-by-tensor-parallel-size",
    Reason.UNSUPPORTED_BY_RELEASE: "model-architectures-not-supported",
    RuntimeCause.REQUEST_OUT_OF_MEMORY: "out-of-memory-while-serving",
    RuntimeCause.KV_CACHE_FULL: "kv-cache-full-preemption",
    RuntimeCause.WORKSPACE_LOCKED: "workspace-is-locked",
    RuntimeCause.NCCL_OUT_OF_MEMORY: "nccl-out-of-memory",
    RuntimeCause.HOST_MEMORY: "host-out-of-memory",
    RuntimeCause.SHARED_MEMORY: "shared-memory",
    RuntimeCause.MEMORY_CHANGED: "error-in-memory-profiling",
    RuntimeCause.OUT_OF_MEMORY: "cuda-out-of-memory",
    RuntimeCause.ENGINE_FAILED: "engine-core-initialization-failed",
}
"""Cause -> page of docs/errors/."""

_KIND_CAUSES: dict[FailureKind, Cause] = {
    FailureKind.WORKSPACE_LOCKED: RuntimeCause.WORKSPACE_LOCKED,
    FailureKind.NCCL_OUT_OF_MEMORY: RuntimeCause.NCCL_OUT_OF_MEMORY,
    FailureKind.HOST_MEMORY: RuntimeCause.HOST_MEMORY,
    FailureKind.SHARED_MEMORY: RuntimeCause.SHARED_MEMORY,
    FailureKind.MEMORY_CHANGED: RuntimeCause.MEMORY_CHANGED,
    FailureKind.OTHER: RuntimeCause.ENGINE_FAILED,
}
_RANK = {
    FailureKind.REFUSAL: 0,
    FailureKind.OUT_OF_MEMORY: 0,
    FailureKind.WORKSPACE_LOCKED: 0,
    FailureKind.NCCL_OUT_OF_MEMORY: 1,
    FailureKind.MEMORY_CHANGED: 1,
    FailureKind.SHARED_MEMORY: 2,
    FailureKind.HOST_MEMORY: 3,
    FailureKind.OTHER: 4,
}


def came_up(start: StartRecord) -> bool:
    """Whether the server or engine served."""
    return start.phase is Phase.REQUEST


def deciding_failure(start: StartRecord) -> Failure | None:
    """The failure that ended the start, or broke a running server; one that the start outlived does not
    count."""
    up = start.evidence.get("server_up")
    served = up.line if up else None
    candidates = [
        failure
        for failure in start.failures
        if not (
            served is not None
            and failure.kind is FailureKind.OUT_OF_MEMORY
            and failure.phase in _STARTUP
            and failure.evidence.line < served
        )
    ]
    return min(candidates, key=lambda f: (_RANK[f.kind], f.evidence.line), default=None)


def survived_failures(start: StartRecord) -> list[Failure]:
    """Failures in the log that ended nothing."""
    decides = deciding_failure(start)
    return [failure for failure in start.failures if failure is not decides and _RANK[failure.kind] == 0]


def cause_of(failure: Failure) -> Cause:
    """The cause a failure stands for."""
    if failure.kind in _KIND_CAUSES:
        return _KIND_CAUSES[failure.kind]
    if failure.reason is not None:
        return failure.reason
    if failure.phase is Phase.REQUEST:
        return RuntimeCause.REQUEST_OUT_OF_MEMORY
    return RuntimeCause.OUT_OF_MEMORY


def finding_of(start: StartRecord, failure: Failure) -> Finding:
    """The finding of a failure, in words and figures."""
    cause = cause_of(failure)
    evidence = [failure.evidence]
    for field in _FIGURES_OF.get(cause, ()):
        shown = start.evidence.get(field)
        if shown is not None and shown not in evidence:
            evidence.append(shown)
    component, headline, explanation, missing = DESCRIBE.get(cause, out_of_memory)(start, failure)
    return Finding(
        cause=cause,
        component=component,
        phase=failure.phase,
        headline=headline,
        explanation=explanation,
        confidence=_confidence(failure),
        evidence=tuple(sorted(evidence, key=lambda e: e.line)[:8]),
        figures={**_logged(start, cause), **failure.values, **_grows_with(failure)},
        missing_bytes=missing,
        page=f"docs/errors/{PAGES[cause]}.md",
    )


def _grows_with(failure: Failure) -> dict[str, float | int | str]:
    """The flag that the failing allocation is proportional to, where the stack shows it."""
    if failure.phase is Phase.REQUEST and _LOGPROBS & set(failure.frames):
        return {"grows_with": "max_num_batched_tokens"}
    return {}


_LOGPROBS = frozenset({"_get_prompt_logprobs_dict"})


def _confidence(failure: Failure) -> Confidence:
    if failure.kind is FailureKind.OTHER:
        return Confidence.LOW
    if failure.kind is not FailureKind.OUT_OF_MEMORY or failure.phase_from in ("traceback", "message"):
        return Confidence.HIGH
    return Confidence.MEDIUM if failure.phase_from == "progress" else Confidence.LOW


_BUDGET_FIELDS = (
    "requested_gib",
    "weights_gib",
    "profiled_weights_gib",
    "activation_peak_gib",
    "non_torch_gib",
    "consumed_gib",
    "graph_estimate_gib",
    "available_kv_gib",
)
_FIGURES_OF: dict[Cause, tuple[str, ...]] = {
    Reason.NO_KV_MEMORY: _BUDGET_FIELDS,
    Reason.ONE_REQUEST_DOES_NOT_FIT: ("available_kv_gib", "weights_gib", "graph_estimate_gib"),
    Reason.SAMPLER_WARMUP: ("available_kv_gib", "graph_actual_gib", "free_gib"),
    Reason.GRAPH_CAPTURE: ("available_kv_gib", "graph_estimate_gib", "graph_progress", "free_gib"),
    Reason.MINIMAL_KV_PROFILING: ("weights_gib", "block_size"),
    Reason.LOAD_PEAK: ("loaded_model", "weights_gib"),
    RuntimeCause.REQUEST_OUT_OF_MEMORY: ("available_kv_gib", "kv_usage", "free_gib"),
    RuntimeCause.WORKSPACE_LOCKED: ("workspace_mib",),
}


def _logged(start: StartRecord, cause: Cause) -> dict[str, float | int | str]:
    values: dict[str, float | int | str] = {}
    for field in _FIGURES_OF.get(cause, ()):
        value = start.smallest(field) if field not in ("loaded_model", "graph_progress", "kv_usage") else None
        if value is not None:
            values[field] = value
    return values


def full_cache_finding(start: StartRecord) -> Finding | None:
    """Requests were preempted, or the cache was full while requests waited: slow, not broken."""
    running = start.running
    if not running.preempted and not (running.lines_with_full_cache >= 2 and running.waiting_max):
        return None
    evidence: list[Evidence] = [
        start.evidence[key] for key in ("preempted", "kv_usage") if key in start.evidence
    ]
    tokens, concurrency, length = (
        start.count("kv_cache_size_tokens"),
        start.smallest("max_concurrency"),
        start.count("concurrency_max_model_len"),
    )
    headline = (
        f"The KV cache was full: usage up to {running.kv_usage_max_percent or 0:g} %, {running.preempted:,} "
        "preemptions, up to "
        f"{running.waiting_max:,} requests waiting"
    )
    explanation = (
        "Nothing leaks: the pool is allocated once and usage is how many of its blocks are taken. When it "
        "is full, requests wait "
        "or are preempted and computed again."
    )
    if tokens and concurrency and length:
        explanation += (
            f" It holds {concurrency:g} requests of {length:,} tokens; with up to {running.running_max:,} "
            "running at once, "
            f"{int(concurrency * length / max(running.running_max, 1)):,} tokens were left for each."
        )
    return Finding(
        cause=RuntimeCause.KV_CACHE_FULL,
        component=Component.KV_CACHE,
        phase=Phase.REQUEST,
        headline=headline,
        explanation=explanation,
        confidence=Confidence.HIGH,
        evidence=tuple(evidence),
        figures={
            "kv_usage_max_percent": running.kv_usage_max_percent or 0.0,
            "preempted": running.preempted,
            "waiting_max": running.waiting_max,
            "running_max": running.running_max,
        },
        page=f"docs/errors/{PAGES[RuntimeCause.KV_CACHE_FULL]}.md",
    )
