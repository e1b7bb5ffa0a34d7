"""From the journals that the engine's processes wrote to a run's measurements and status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_capacity.validate.logs import anonymous, is_oom, oom_reason, refusal
from vllm_capacity.validate.record import Profiling, RankRecord, RunStatus

RUNNERS = {"vllm.v1.worker.gpu.model_runner": "V2", "vllm.v1.worker.gpu_model_runner": "V1"}
EXPECTED = (
    "profiling",
    "graph_estimate",
    "capture_bytes",
    "kv_cache",
    "model_memory_usage",
    "model",
    "workspaces",
)
"""Facts that a complete start leaves; those that are missing are listed as absent."""


@dataclass(slots=True)
class EngineJournal:
    """What the process that owned one engine wrote."""

    phase: str = "spawn"
    started_s: float | None = None
    requests: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    done: bool = False
    versions: dict[str, str | None] = field(default_factory=dict)


def read_events(path: Path) -> list[dict[str, Any]]:
    """The journal's events; a line that a crash cut short is left out."""
    events = []
    if not path.exists():
        return []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events


def engine_journal(events: Sequence[dict[str, Any]]) -> EngineJournal:
    """The engine process's own story."""
    journal = EngineJournal()
    for event in events:
        kind = event["event"]
        if kind == "phase":
            journal.phase = event["phase"]
        elif kind == "started":
            journal.started_s = event.get("start_seconds")
            journal.phase = "started"
        elif kind == "requests":
            journal.requests = {k: v for k, v in event.items() if k not in ("event", "seconds")}
        elif kind == "error" and journal.error is None:
            journal.error = _error(event)
        elif kind == "done":
            journal.done = True
    return journal


def _error(event: dict[str, Any]) -> dict[str, str]:
    return {key: anonymous(str(event.get(key, "")))[:2000] for key in ("phase", "type", "message")}


def rank_record(
    rank: int, dp_rank: int, events: Sequence[dict[str, Any]]
) -> tuple[RankRecord, dict[str, str | None]]:
    """One rank's measurements and the versions it saw."""
    facts: dict[str, Any] = {}
    stages: dict[str, dict[str, float | int]] = {}
    seconds: dict[str, float] = {}
    errors: list[str] = []
    error: dict[str, str] | None = None
    workspaces: dict[str, list[int]] = {}
    for event in events:
        kind = event["event"]
        if kind == "stage":
            stages[event["stage"]] = event["snapshot"]
        elif kind == "phase":
            seconds[event["phase"]] = event["seconds"]
        elif kind == "probe_error":
            errors.append(anonymous(f"{event['what']}: {event['message']}"))
        elif kind == "error" and error is None:
            error = _error(event)
        elif kind == "fact":
            name = event["name"]
            if name.startswith("workspaces"):
                workspaces[name.removeprefix("workspaces").strip("_") or "started"] = event["value"]
            else:
                facts[name] = event["value"]
    position = facts.get("position") or {}
    record = RankRecord(
        rank=rank,
        dp_rank=dp_rank,
        tp_rank=position.get("tp_rank"),
        pp_rank=position.get("pp_rank"),
        model_runner=RUNNERS.get(facts.get("runner") or "", facts.get("runner")),
        stages=stages,
        requested_memory=facts.get("requested_memory"),
        model_memory_usage=facts.get("model_memory_usage"),
        profiling=Profiling.model_validate(facts["profiling"]) if facts.get("profiling") else None,
        graph_actual=facts.get("capture_bytes"),
        kv_cache=facts.get("kv_cache"),
        workspaces=workspaces,
        model=facts.get("model"),
        buffers={
            k: facts[k] for k in ("runner_init_buffers", "loaded_buffers", "runner_buffers") if facts.get(k)
        },
        attention_backends=facts.get("attention_backends") or {},
        settings=facts.get("settings") or {},
        device=facts.get("device"),
        peak_tensors=facts.get("peak_tensors_at_failure") or facts.get("peak_tensors"),
        error=error,
        probe_errors=errors,
        absent=[n for n in EXPECTED if n not in facts and not (n == "workspaces" and workspaces)],
        phase_seconds=seconds,
    )
    return record, facts.get("versions") or {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run."""

    status: RunStatus
    reason: str | None
    error: dict[str, str] | None
    phase: str


def outcome(
    engines: Sequence[EngineJournal],
    ranks: Sequence[RankRecord],
    log_tail: str,
    *,
    timed_out: bool,
    exit_codes: Sequence[int | None],
) -> Outcome:
    """The status from what the processes wrote, what vLLM logged and how the processes ended."""
    last_phases = [max(r.phase_seconds, key=lambda p: r.phase_seconds[p]) for r in ranks if r.phase_seconds]
    phase = engines[0].phase if engines else "spawn"
    if phase == "start" and last_phases:
        phase = last_phases[0]
    if engines and all(engine.done for engine in engines):
        return Outcome(RunStatus.OK, None, None, "done")
    rank_error = next((r.error for r in ranks if r.error), None)
    engine_error = next((e.error for e in engines if e.error), None)
    if timed_out:
        error = (
            rank_error
            or engine_error
            or {"phase": phase, "type": "Timeout", "message": "killed at its time limit"}
        )
        return Outcome(RunStatus.TIMEOUT, None, error, phase)
    texts = [e["message"] for e in (rank_error, engine_error) if e] + [log_tail]
    error = (
        rank_error
        or engine_error
        or {
            "phase": phase,
            "type": "Died",
            "message": f"the engine's process ended with {list(exit_codes)}",
        }
    )
    for text in texts:
        reason = refusal(text)
        if reason is not None:
            return Outcome(RunStatus.REFUSED, reason.value, error, phase)
    for text in [f"{e['type']}: {e['message']}" for e in (rank_error, engine_error) if e] + [log_tail]:
        if is_oom(text):
            where = rank_error["phase"] if rank_error else phase
            out = oom_reason(where, text)
            return Outcome(RunStatus.OOM, out.value if out else None, error, phase)
    return Outcome(RunStatus.FAILED, None, error, phase)
