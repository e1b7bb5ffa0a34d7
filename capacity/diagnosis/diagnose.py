"""A log's record in, a diagnosis out."""

from __future__ import annotations

from vllm_capacity.diagnosis.causes import Diagnosis
from vllm_capacity.diagnosis.findings import came_up, deciding_failure, finding_of, full_cache_finding
from vllm_capacity.diagnosis.observations import missing_lines, observations
from vllm_capacity.diagnosis.predicted import predicted_rows
from vllm_capacity.diagnosis.rebuild import Given, Rebuilt, rebuild
from vllm_capacity.diagnosis.remedies import remedies
from vllm_capacity.errors import InputError
from vllm_capacity.logs.record import LogRecord


def diagnose(record: LogRecord, given: Given | None = None) -> Diagnosis:
    """What happened in the last start of a log. Raises InputError where nothing of vLLM's is in it."""
    diagnosis, _ = diagnose_with_run(record, given)
    return diagnosis


def diagnose_with_run(record: LogRecord, given: Given | None = None) -> tuple[Diagnosis, Rebuilt | None]:
    """The diagnosis and the run it was planned with (None where the log does not show enough of it)."""
    start = record.last
    if start is None:
        raise InputError(
            f"nothing in these {record.lines:,} lines is vLLM's about memory: is it the engine's log (INFO "
            "level, from the start)?"
        )
    rebuilt, missing, assumed = rebuild(start, given or Given())
    failure = deciding_failure(start)
    finding = finding_of(start, failure) if failure is not None else full_cache_finding(start)
    diagnosis = Diagnosis(
        start=start,
        start_count=record.start_count,
        came_up=came_up(start),
        finding=finding,
        remedies=remedies(start, finding, rebuilt) if finding is not None else (),
        observations=observations(start, record.starts[:-1], rebuilt),
        missing=(*missing, *missing_lines(start)),
        assumptions=assumed,
        predicted=predicted_rows(start, rebuilt) if rebuilt is not None else (),
    )
    return diagnosis, rebuilt
