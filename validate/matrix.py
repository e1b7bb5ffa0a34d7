"""A matrix of runs: models and flags from a YAML file, done in order, within a time budget, each at most
once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.text_files import read_yaml
from vllm_capacity.validate import runner
from vllm_capacity.validate.processes import undisturbed
from vllm_capacity.validate.record import RunRecord, RunRequest, RunStatus, append_record, read_records

DEFAULT_EXPECT_S = 150.0
MARGIN = 1.1
"""A run is started only if this many times its expected duration is left."""
STOP_S = 60.0
"""Longest wait for a run to end its engine when all are stopped."""
RESERVE_S = 10.0
"""Kept back at the end of a budget for cleaning up."""
SETTLED = frozenset({RunStatus.OK, RunStatus.REFUSED, RunStatus.OOM})
"""What a resumed matrix does not run again."""


class _Sweep(BaseModel):
    """Every model with every variant of flags."""

    model_config = ConfigDict(extra="forbid")
    models: dict[str, str]
    variants: dict[str, dict[str, Any]]


class _Matrix(BaseModel):
    model_config = ConfigDict(extra="forbid")
    note: str = ""
    defaults: dict[str, Any] = Field(default_factory=dict)
    runs: list[dict[str, Any]] = Field(default_factory=list)
    sweeps: list[_Sweep] = Field(default_factory=list)


def load_matrix(path: Path) -> list[RunRequest]:
    """The runs of a matrix file in order. Raises InputError that names the run and the key.

    `defaults` apply to every run (its `flags` and `env` are merged key by key), `runs` are listed one by one,
    and each entry of `sweeps` stands for its models times its variants.
    """
    try:
        matrix = _Matrix.model_validate(read_yaml(path, str(path)))
    except ValidationError as error:
        raise InputError(f"{path}: {_first(error)}") from None
    entries = list(matrix.runs)
    for sweep in matrix.sweeps:
        for short, model in sweep.models.items():
            for variant, fields in sweep.variants.items():
                entries.append({"name": f"{short}-{variant}", "model": model, **fields})
    requests = []
    for entry in entries:
        merged = {**matrix.defaults, **entry}
        for key in ("flags", "env"):
            merged[key] = {**(matrix.defaults.get(key) or {}), **(entry.get(key) or {})}
        try:
            requests.append(RunRequest.model_validate(merged))
        except ValidationError as error:
            raise InputError(f"{path}: run {entry.get('name', '?')!r}: {_first(error)}") from None
    names = [request.name for request in requests]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{path}: run names must differ; twice: {', '.join(twice)}")
    return requests


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def expected_seconds(request: RunRequest, records: Sequence[RunRecord]) -> float:
    """How long a run will take: as long as it did before, else as long as that model did, else what the file
    says.
    """
    done = [r for r in records if r.status in SETTLED and "total_s" in r.durations]
    same = [r.durations["total_s"] for r in done if r.name == request.name]
    if same:
        return max(same)
    if request.expect_s is not None:
        return request.expect_s
    model = [r.durations["total_s"] for r in done if r.request.model == request.model]
    return max(model) if model else DEFAULT_EXPECT_S


def settled(request: RunRequest, records: Sequence[RunRecord]) -> bool:
    """Whether a record of the same run exists (time limits and notes aside)."""
    aside = {"limit_s", "expect_s", "note", "model"}
    wanted = request.model_dump(exclude=aside)
    return any(r.status in SETTLED and r.request.model_dump(exclude=aside) == wanted for r in records)


@dataclass(slots=True)
class Report:
    """What a matrix run did."""

    done: list[RunRecord] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Run name to reason: 'recorded before', 'not enough time left', ..."""


@dataclass(slots=True)
class _Job:
    request: RunRequest
    gpus: tuple[int, ...]
    thread: threading.Thread | None = None
    record: RunRecord | None = None
    error: BaseException | None = None


def run_matrix(
    requests: Sequence[RunRequest],
    settings: runner.RunnerSettings,
    records_path: Path,
    *,
    gpus: Sequence[int],
    budget_s: float | None = None,
    progress: Callable[[str, str, float], None] | None = None,
    finished: Callable[[RunRecord], None] | None = None,
    run: Callable[..., RunRecord] = runner.run,
) -> Report:
    """Run what is not recorded yet, as many at once as the `gpus` allow, and append each record as it comes.

    A run is started only if its expected duration fits into what is left of the budget, and killed at its
    limit or at the budget's end. Runs that share a compile cache never overlap. A GPU whose memory did not
    come back is not used again.
    """
    earlier = read_records(records_path) if records_path.exists() else []
    begin = time.monotonic()
    report = Report()
    free = list(gpus)
    pending: list[RunRequest] = []
    for request in requests:
        if settled(request, earlier):
            report.skipped[request.name] = "recorded before"
        elif request.gpus > len(gpus):
            report.skipped[request.name] = f"needs {request.gpus} GPUs"
        else:
            pending.append(request)
    active: list[_Job] = []
    lost = 0
    settings = replace(settings, stop=threading.Event())
    try:
        while pending or active:
            for job in [j for j in active if j.thread is not None and not j.thread.is_alive()]:
                active.remove(job)
                if job.error is not None:
                    if not isinstance(job.error, InputError):
                        raise job.error
                    report.skipped[job.request.name] = str(job.error)
                    free += job.gpus
                    continue
                assert job.record is not None
                with undisturbed():
                    append_record(records_path, job.record)
                earlier.append(job.record)
                report.done.append(job.record)
                if finished is not None:
                    finished(job.record)
                if job.record.gpu_memory_returned is False:
                    lost += len(job.gpus)
                else:
                    free += job.gpus
            left = None if budget_s is None else budget_s - RESERVE_S - (time.monotonic() - begin)
            chosen_run = _next(pending, free, active, earlier, left, len(gpus) - lost, report)
            if chosen_run is not None:
                chosen = tuple(sorted(free)[: chosen_run.gpus])
                free = [gpu for gpu in free if gpu not in chosen]
                limit = chosen_run.limit_s if left is None else min(chosen_run.limit_s, left)
                job = _Job(chosen_run.model_copy(update={"limit_s": limit}), chosen)
                job.thread = threading.Thread(target=_work, args=(job, settings, run, progress), daemon=True)
                active.append(job)
                job.thread.start()
            elif active:
                time.sleep(0.2)
    except BaseException:
        _stop(active, settings, records_path)
        raise
    return report


def _stop(active: Sequence[_Job], settings: runner.RunnerSettings, records_path: Path) -> None:
    """Ends the engines of all runs; what was measured to the end is still recorded."""
    assert settings.stop is not None
    settings.stop.set()
    with undisturbed():
        for job in active:
            if job.thread is not None:
                job.thread.join(timeout=STOP_S)
            if job.record is not None:
                with suppress(InputError):
                    append_record(records_path, job.record)


def _next(
    pending: list[RunRequest],
    free: Sequence[int],
    active: Sequence[_Job],
    records: Sequence[RunRecord],
    left: float | None,
    usable: int,
    report: Report,
) -> RunRequest | None:
    """Take the next run that may start now; those that no longer fit are taken out with the reason."""
    busy = {job.request.compile_cache for job in active} - {None}
    for request in list(pending):
        if request.gpus > usable:
            report.skipped[request.name] = "a GPU's memory did not come back"
            pending.remove(request)
        elif left is not None and expected_seconds(request, records) * MARGIN > left:
            report.skipped[request.name] = "not enough time left"
            pending.remove(request)
        elif request.gpus > len(free):
            return None
        elif request.compile_cache not in busy:
            pending.remove(request)
            return request
    return None


def _work(
    job: _Job,
    settings: runner.RunnerSettings,
    run: Callable[..., RunRecord],
    progress: Callable[[str, str, float], None] | None,
) -> None:
    def tick(phase: str, seconds: float) -> None:
        if progress is not None:
            progress(job.request.name, phase, seconds)

    try:
        job.record = run(job.request, replace(settings, gpu_indices=job.gpus), tick)
    except BaseException as error:
        job.error = error


def seconds_left(requests: Sequence[RunRequest], records: Sequence[RunRecord], lanes: int) -> float:
    """A guess of how long the runs still take on so many GPUs."""
    total = sum(expected_seconds(r, records) * r.gpus for r in requests if not settled(r, records))
    return total / max(lanes, 1)
