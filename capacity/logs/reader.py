"""One pass over a log: lines in, one `LogRecord` out, in constant memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, BinaryIO

from vllm_capacity.errors import Reason
from vllm_capacity.logs.arguments import parse_engine_config, parse_non_default
from vllm_capacity.logs.failures import (
    FailureKind,
    Found,
    Phase,
    phase_of_frames,
    phase_of_words,
    read_failure,
)
from vllm_capacity.logs.formats import Value, read_line
from vllm_capacity.logs.lines import Line, clean_lines, clean_texts
from vllm_capacity.logs.prose import read_prose
from vllm_capacity.logs.record import Evidence, Failure, Figures, LogRecord, Running, StartRecord

KEPT_STARTS = 8
KEPT_PROCESSES = 256
KEPT_FAILURES = 24
KEPT_FRAMES = 64
KEPT_TEXT = 600

_FRAME = re.compile(r'^\s*File ".*?", line \d+, in (\S+)')
_FIGURES = frozenset(Figures.model_fields)
_SMALLEST = frozenset({"available_kv_gib", "kv_cache_size_tokens", "max_concurrency"})
"""Printed once per pipeline stage or engine by one process: the smallest decides."""
_COMMAND = re.compile(r"(?:^|[+$#>] |\s)((?:[A-Z][A-Z0-9_]*=\S+ )*vllm serve \S.*)$")

_HUB_CACHE = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/")
"""A model given as its folder in the Hub's cache."""

_NEXT: dict[str, Phase] = {
    "engine_version": Phase.INIT,
    "loading_model": Phase.LOAD,
    "model_loading": Phase.PROFILE,
    "model_loading_v0": Phase.PROFILE,
    "graph_profile": Phase.GRAPH_ESTIMATE,
    "available_kv": Phase.KV_ALLOCATION,
    "kv_reserved": Phase.KV_ALLOCATION,
    "profile_v0_rest": Phase.KV_ALLOCATION,
    "graph_progress": Phase.GRAPH_CAPTURE,
    "graph_capture": Phase.SAMPLER_WARMUP,
    "graph_pool": Phase.SAMPLER_WARMUP,
    "summary_free": Phase.SAMPLER_WARMUP,
    "server_up": Phase.REQUEST,
    "kv_usage": Phase.REQUEST,
}
"""Line -> the step that comes after it."""

_ORDER = list(Phase)

REASON_OF_PHASE: dict[Phase, Reason | None] = {
    Phase.LOAD: Reason.LOAD_PEAK,
    Phase.REPACK: Reason.LOAD_PEAK,
    Phase.PROFILE: Reason.NO_KV_MEMORY,
    Phase.KV_ALLOCATION: Reason.NO_KV_MEMORY,
    Phase.GRAPH_ESTIMATE: Reason.MINIMAL_KV_PROFILING,
    Phase.MINIMAL_KV: Reason.MINIMAL_KV_PROFILING,
    Phase.GRAPH_CAPTURE: Reason.GRAPH_CAPTURE,
    Phase.KERNEL_WARMUP: Reason.SAMPLER_WARMUP,
    Phase.SAMPLER_WARMUP: Reason.SAMPLER_WARMUP,
}
"""What the verdict calls running out of memory in a step; serving and worker start have no entry there."""


def read_log(stream: BinaryIO) -> LogRecord:
    """The record of a log given as bytes, plain or gzip. Never raises for what the bytes hold."""
    return _read(clean_lines(stream))


def read_lines(texts: Iterable[str]) -> LogRecord:
    """The record of text lines."""
    return _read(clean_texts(texts))


def _read(lines: Iterable[Line]) -> LogRecord:
    reader = LogReader()
    for line in lines:
        reader.feed(line)
    return reader.record()


class LogReader:
    """Collects a record line by line; what it keeps is bounded, whatever the log's length."""

    def __init__(self) -> None:
        self._record = LogRecord()
        self._start: StartRecord | None = None
        self._frames: dict[str, list[str]] = {}
        self._engines: dict[str, int | None] = {}
        self._phases: dict[str, Phase] = {}
        self._has_args = False

    def record(self) -> LogRecord:
        return self._record

    def feed(self, line: Line) -> None:
        """Takes one clean line."""
        self._record.lines = max(self._record.lines, line.number)
        text = line.text
        if self._traceback(line):
            return
        recognised = self._announcement(line)
        named: set[str] = set()
        for kind, values in read_line(text):
            recognised = True
            named.update(values)
            self._figures(line, kind, values)
        if not line.level:
            for kind, values in read_prose(text):
                if named.isdisjoint(values):
                    recognised = True
                    self._figures(line, kind, values)
        found = read_failure(text)
        if found is not None:
            recognised = True
            self._failure(line, found)
        if recognised:
            self._record.recognised += 1
            self._current(line).last_line = line.number
        if self._start is not None and line.level == "DEBUG":
            self._start.debug = True

    # -- starts
    # ------------------------------------------------------------------------------------------------

    def _current(self, line: Line) -> StartRecord:
        return self._start if self._start is not None else self._new_start(line)

    def _new_start(self, line: Line) -> StartRecord:
        start = StartRecord(first_line=line.number, last_line=line.number)
        record = self._record
        record.start_count += 1
        record.starts.append(start)
        if len(record.starts) > KEPT_STARTS:
            del record.starts[KEPT_STARTS // 2]
        self._start = start
        self._engines, self._phases, self._has_args = {}, {}, False
        return start

    def _announcement(self, line: Line) -> bool:
        """Lines that begin a start or say what is started."""
        text = line.text
        if "non-default args" in text:
            if self._has_args or self._engines:
                self._new_start(line)
            start = self._current(line)
            self._has_args = True
            start.non_default = _bounded(parse_non_default(text))
            self._model(start, start.non_default.get("model") or start.non_default.get("model_tag"))
            start.evidence["non_default"] = _evidence(line)
            return True
        if "LLM engine (v" in text:
            known = self._engines.get(line.process, -1)
            if known != -1 and (known != line.pid or line.pid is None):
                self._new_start(line)
            start = self._current(line)
            self._engines[line.process] = line.pid
            start.engines = list(self._engines)[:KEPT_PROCESSES]
            config = parse_engine_config(text)
            start.engine_config = _bounded(config)
            self._model(start, config.get("model"))
            start.evidence["engine_config"] = _evidence(line)
            return True
        if "vllm serve " in text:
            command = _COMMAND.search(text)
            if command and len(command[1]) < 8000:
                if self._engines:
                    self._new_start(line)
                self._current(line).command = command[1]
                return True
        return False

    @staticmethod
    def _model(start: StartRecord, model: object) -> None:
        if isinstance(model, str) and start.model is None:
            cached = _HUB_CACHE.search(model)
            start.model = f"{cached[1]}/{cached[2]}" if cached else model[:300]

    # -- figures
    # -----------------------------------------------------------------------------------------------

    def _figures(self, line: Line, kind: str, values: dict[str, Value]) -> None:
        if kind == "api_version" and (self._engines or self._has_args):
            self._new_start(line)
        start = self._current(line)
        phase = _NEXT.get(kind)
        if phase is not None:
            self._phases[_process_key(line)] = phase
            if _ORDER.index(phase) > _ORDER.index(start.phase):
                start.phase = phase
        if _running(start.running, kind, values):
            start.evidence.setdefault("kv_usage", _evidence(line))
            if "preempted_requests" in values:
                start.evidence["preempted"] = _evidence(line)
            return
        key = _process_key(line)
        if key not in start.processes:
            # A worker calls itself "Worker" until it knows its rank: the same process under its new name.
            early = start.processes.pop(f"Worker pid={line.pid}", None)
            if early is None and len(start.processes) >= KEPT_PROCESSES:
                return
            start.processes[key] = early or Figures()
        figures = start.processes[key]
        for name, value in values.items():
            field = name.removesuffix("_text")
            if field not in _FIGURES:
                continue
            old = getattr(figures, field)
            if field in _SMALLEST and old is not None and isinstance(value, (int, float)) and value >= old:
                continue
            if (
                field == "workspace_mib"
                and old is not None
                and isinstance(value, (int, float))
                and value < old
            ):
                continue
            setattr(figures, field, value[:KEPT_TEXT] if isinstance(value, str) else value)
            start.evidence[field] = _evidence(line)
        version = values.get("version_text")
        if isinstance(version, str) and start.version is None:
            start.version = version[:60]

    # -- failures
    # ----------------------------------------------------------------------------------------------

    def _traceback(self, line: Line) -> bool:
        text = line.text
        if text.startswith("Traceback (most recent call last)"):
            self._frames[_process_key(line)] = []
            if len(self._frames) > KEPT_PROCESSES:
                self._frames.clear()
            return True
        if "File" in text:
            frame = _FRAME.match(text)
            if frame:
                frames = self._frames.setdefault(_process_key(line), [])
                frames.append(frame[1][:120])
                if len(frames) > KEPT_FRAMES:
                    del frames[0]
                return True
        return False

    def _failure(self, line: Line, found: Found) -> None:
        start = self._current(line)
        frames = self._frames.pop(_process_key(line), [])
        phase, source = phase_of_frames(frames), "traceback"
        if phase is None:
            phase, source = phase_of_words(line.text), "message"
        if phase is None and found.kind is FailureKind.OUT_OF_MEMORY:
            phase, source = self._reached(line, start), "progress"
        if phase is None or phase is Phase.UNKNOWN:
            phase, source = Phase.UNKNOWN, ""
        reason = found.reason
        if reason is None and found.kind is FailureKind.OUT_OF_MEMORY:
            reason = REASON_OF_PHASE.get(phase)
        if found.reason is Reason.SAMPLER_WARMUP and phase is Phase.PROFILE:
            reason = Reason.NO_KV_MEMORY  # the profile run warms the sampler, too
        known = next((f for f in start.failures if f.kind is found.kind and _same(f, found, phase)), None)
        if known is not None:
            known.count += 1
            better = source in ("traceback", "message") and known.phase_from in ("progress", "")
            if (not known.frames and frames) or better:
                known.frames, known.phase, known.phase_from, known.reason = (
                    frames or known.frames,
                    phase,
                    source,
                    reason,
                )
            for name, value in found.values.items():
                known.values.setdefault(name, value)
            return
        if len(start.failures) < KEPT_FAILURES:
            start.failures.append(
                Failure(
                    kind=found.kind,
                    reason=reason,
                    phase=phase,
                    phase_from=source,
                    values=found.values,
                    frames=frames,
                    process=line.process,
                    evidence=_evidence(line),
                )
            )

    def _reached(self, line: Line, start: StartRecord) -> Phase:
        """How far the process came; progress bars carry no prefix and count for every process."""
        own = self._phases.get(_process_key(line))
        if own is None:
            return start.phase
        return max(own, self._phases.get("", own), key=_ORDER.index)


def _same(failure: Failure, found: Found, phase: Phase) -> bool:
    """Whether a failure repeats one: the same refusal, or an out-of-memory error of the same step."""
    if found.kind is FailureKind.REFUSAL:
        return failure.reason is found.reason
    if found.kind is FailureKind.OUT_OF_MEMORY:
        unknown = Phase.UNKNOWN in (failure.phase, phase) or "progress" in (failure.phase_from,)
        return failure.phase is phase or unknown or not found.values
    return True


def _running(running: Running, kind: str, values: dict[str, Value]) -> bool:
    """Adds a periodic line's figures; False where the line is none."""
    numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
    if kind == "kv_usage":
        usage = float(numbers["kv_usage_percent"])
        running.lines += 1
        running.kv_usage_last_percent = usage
        running.kv_usage_max_percent = max(usage, running.kv_usage_max_percent or 0.0)
        running.lines_with_full_cache += usage >= 99.0
    elif kind == "running":
        running.running_max = max(running.running_max, int(numbers["running_reqs"]))
    elif kind in ("waiting", "pending"):
        running.waiting_max = max(running.waiting_max, int(numbers["waiting_reqs"]))
        running.swapped_max = max(running.swapped_max, int(numbers.get("swapped_reqs", 0)))
    elif kind == "preemptions":
        running.preempted += int(numbers["preempted_requests"])
    elif kind == "preempted_v0":
        running.preempted = max(running.preempted, int(numbers["preempted_requests"]))
    elif kind == "prefix_hits":
        running.prefix_hit_percent = numbers["prefix_hit_percent"]
    elif kind == "cpu_kv_usage":
        running.cpu_kv_usage_percent = numbers["cpu_kv_usage_percent"]
    elif kind == "throughput":
        running.prompt_tokens_per_second = numbers["prompt_tokens_per_second"]
        running.generation_tokens_per_second = numbers["generation_tokens_per_second"]
    elif kind == "iteration":
        running.iterations = int(numbers["iteration_requests"])
        running.iteration_ms = numbers["iteration_ms"]
        for name in ("context_tokens", "context_requests", "generation_requests", "generation_tokens"):
            field = f"iteration_{name}_max"
            setattr(running, field, max(getattr(running, field) or 0, int(numbers[name])))
    elif kind == "iteration_encoder":
        for name, value in numbers.items():
            field = f"iteration_{name.removesuffix('_items')}_max"
            setattr(running, field, max(getattr(running, field) or 0, int(value)))
    else:
        return False
    return True


def _process_key(line: Line) -> str:
    return f"Worker pid={line.pid}" if line.process == "Worker" and line.pid is not None else line.process


def _evidence(line: Line) -> Evidence:
    return Evidence(line=line.number, text=line.text.strip()[:KEPT_TEXT])


def _bounded(values: dict[str, Any]) -> dict[str, Any]:
    return dict(list(values.items())[:200])
