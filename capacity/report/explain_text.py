"""A diagnosis for people and as plain data. Nothing here computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from vllm_capacity._version import __version__
from vllm_capacity.diagnosis.causes import Basis, Diagnosis, Finding, PredictedRow, Remedy
from vllm_capacity.diagnosis.observations import logged_budget
from vllm_capacity.logs.record import Evidence, LogRecord
from vllm_capacity.units import GIB, gib
from vllm_capacity.vocabulary import QUANTITIES

SCHEMA_VERSION = 1
WIDTH = 118


def explain_lines(record: LogRecord, diagnosis: Diagnosis) -> Iterator[str]:
    """The report, line by line: cause, evidence, remedies, where the memory went, what the log leaves out."""
    start = diagnosis.start
    finding = diagnosis.finding
    if finding is None:
        yield _no_finding(diagnosis)
    else:
        yield f"{finding.headline}."
        component = f", component {finding.component.value}" if finding.component else ""
        yield f"  cause {finding.cause.value}{component}, confidence {finding.confidence.value}"
        yield from _wrapped(finding.explanation, "  ")
    yield ""
    about = [start.model or "model unknown", f"vLLM {start.version or 'of unknown version'}"]
    if diagnosis.start_count > 1:
        about.append(f"last of {diagnosis.start_count} starts in {record.lines:,} lines")
    yield "Run: " + ", ".join(about)
    budget = logged_budget(start)
    if budget:
        yield f"Logged budget: {budget}"
    if finding is not None:
        yield from _finding(finding, diagnosis)
    if diagnosis.observations:
        yield ""
        yield "Also seen"
        for observation in diagnosis.observations:
            yield from _wrapped(f"{observation.topic}: {observation.text}", "  - ", "    ")
            for evidence in observation.evidence[:2]:
                yield f"      {_line(evidence)}"
    if diagnosis.predicted:
        yield ""
        yield "Predicted against logged (per GPU)"
        for row in diagnosis.predicted:
            yield _predicted(row)
    if diagnosis.assumptions or diagnosis.missing:
        yield ""
        yield "Not in this log"
        for text in (*diagnosis.missing, *diagnosis.assumptions):
            yield from _wrapped(text, "  - ", "    ")


def _no_finding(diagnosis: Diagnosis) -> str:
    if diagnosis.came_up:
        return "Nothing is wrong in this log."
    return f"No error in this log, but the start does not end in it; next would be: {diagnosis.start.phase.value}."


def _finding(finding: Finding, diagnosis: Diagnosis) -> Iterator[str]:
    yield ""
    yield "Evidence"
    for evidence in finding.evidence:
        yield f"  {_line(evidence)}"
    yield ""
    if diagnosis.remedies:
        yield "What helps, cheapest first"
        for remedy in diagnosis.remedies:
            yield f"  {_remedy(remedy)}"
    else:
        yield "No single change of flags is known to help."
    yield f"More: {finding.page}"


def _remedy(remedy: Remedy) -> str:
    name = " ".join(remedy.flags) or remedy.change
    words = f" ({remedy.change})" if remedy.flags else ""
    basis = "" if remedy.basis is Basis.PLANNED else " [from the log's figures alone]"
    return f"{name}{words}: {remedy.effect}{basis}"


def _line(evidence: Evidence) -> str:
    text = evidence.text if len(evidence.text) <= 220 else evidence.text[:217] + "..."
    return f"line {evidence.line}: {text}"


def _predicted(row: PredictedRow) -> str:
    scale, unit = (GIB, "GiB") if row.unit == "bytes" else (1, row.unit)
    digits = 0 if row.unit == "tokens" else 2
    predicted, logged, error = (n / scale for n in (row.predicted, row.logged, row.predicted - row.logged))
    relative = f" ({100 * error / logged:+.1f} %)" if logged else ""
    return (
        f"  {QUANTITIES[row.name].word:<24}{predicted:>14,.{digits}f}{logged:>14,.{digits}f} {unit:<9}"
        f"{error:+,.{digits}f}{relative}"
    )


def _wrapped(text: str, first: str, rest: str | None = None) -> Iterator[str]:
    import textwrap

    rest = first if rest is None else rest
    yield from (
        textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False) or []
    )


def diagnosis_to_dict(record: LogRecord, diagnosis: Diagnosis) -> dict[str, Any]:
    """All of a diagnosis, with the typed record it was made from; bytes are integers."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "verdict": "healthy" if diagnosis.finding is None else "problem",
        "came_up": diagnosis.came_up,
        "finding": None if diagnosis.finding is None else _finding_dict(diagnosis.finding),
        "remedies": [asdict(remedy) for remedy in diagnosis.remedies],
        "observations": [
            {"topic": o.topic, "text": o.text, "evidence": [e.model_dump() for e in o.evidence]}
            for o in diagnosis.observations
        ],
        "predicted": [asdict(row) for row in diagnosis.predicted],
        "missing": list(diagnosis.missing),
        "assumptions": list(diagnosis.assumptions),
        "start_count": diagnosis.start_count,
        "lines": record.lines,
        "start": diagnosis.start.model_dump(mode="json", exclude_none=True),
    }


def _finding_dict(finding: Finding) -> dict[str, Any]:
    return {
        "cause": finding.cause.value,
        "component": None if finding.component is None else finding.component.value,
        "phase": finding.phase.value,
        "headline": finding.headline,
        "explanation": finding.explanation,
        "confidence": finding.confidence.value,
        "figures": dict(finding.figures),
        "missing_bytes": finding.missing_bytes,
        "missing": None if finding.missing_bytes is None else gib(finding.missing_bytes),
        "page": finding.page,
        "evidence": [evidence.model_dump() for evidence in finding.evidence],
    }
