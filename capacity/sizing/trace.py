"""Real requests from a JSONL or CSV file, read line by line: lengths, and how many were in flight at the busiest moment."""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, TextIO

from vllm_capacity.errors import InputError
from vllm_capacity.sizing.demand import Demand, from_lengths

MAX_LINE = 1 << 22
"""Characters of one line; a longer one is no request."""

PROMPT = ("prompttokens", "inputtokens", "inputlength", "promptlen", "promptlength", "contexttokens", "requesttokens",
          "numprefilltokens", "inputlen")  # fmt: skip
OUTPUT = ("outputtokens", "completiontokens", "outputlength", "outputlen", "generatedtokens", "responsetokens",
          "numdecodetokens", "generationtokens")  # fmt: skip
START = ("timestamp", "start", "starttime", "arrival", "arrivaltime", "arrivedat", "time")
END = ("end", "endtime", "finished", "finishedat")
DURATION = ("duration", "latency", "e2elatency", "durations", "seconds")
"""Names of columns, letters only: those of the Azure, BurstGPT, Mooncake and OpenAI usage formats among them."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; times in seconds, None where the trace does not say."""

    prompt: int
    output: int
    start: float | None
    duration: float | None


def demand_of_trace(
    path: Path,
    *,
    concurrent: int | None = None,
    output_speed: float | None = None,
    time_unit: str = "s",
    prefix_share: float = 0.0,
) -> Demand:
    """The demand behind a trace. Raises InputError with the line where it cannot be read.

    How many requests are in flight: `concurrent` where given; else from each request's start and end (or duration), or its
    start and `output_speed` tokens per second. The lengths are then those in flight at the busiest moment, by tokens.
    """
    totals, starts, durations = array("q"), array("d"), array("d")
    prompt_sum = timed = 0
    for request in read_trace(path, time_unit):
        totals.append(request.prompt + request.output)
        prompt_sum += request.prompt
        duration = request.output / output_speed if output_speed else request.duration
        if request.start is not None and duration is not None:
            timed += 1
        starts.append(request.start if request.start is not None else -1.0)
        durations.append(duration if duration is not None else 0.0)
    n = len(totals)
    if not n:
        raise InputError(f"{path} holds no request")
    what = f"{n:,} requests of {path.name}"
    if concurrent is not None:
        counts = _counts(totals)
        how = (f"{what}, {concurrent:,} of them in flight at once (as given)",)
        sequences = concurrent
    elif timed == n:
        at, members, tokens = _busiest(starts, durations, totals)
        counts = _counts(array("q", (totals[i] for i in members)))
        sequences = len(members)
        speed = f", output at {output_speed:g} tokens/s" if output_speed else ""
        how = (
            f"{what}{speed}; busiest moment {at - min(starts):,.1f} s after the first: {sequences:,} in flight, "
            f"{tokens:,} tokens",
        )
    else:
        raise InputError(
            f"{path}: {n - timed:,} of {n:,} requests lack a start or a duration; give --concurrent-users, or "
            "--output-speed (tokens per second of one request) where only the start is known"
        )
    return from_lengths(
        counts, sequences, longest=max(totals), mean_prompt=prompt_sum / n, prefix_share=prefix_share, how=how
    )


def _counts(totals: array[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for total in totals:
        counts[total] = counts.get(total, 0) + 1
    return counts


def _busiest(
    starts: array[float], durations: array[float], totals: array[int]
) -> tuple[float, list[int], int]:
    """(time, requests, their tokens) when most tokens are in flight; one that ends as another starts is gone."""
    order = sorted(range(len(starts)), key=starts.__getitem__)
    running: list[tuple[float, int]] = []
    tokens = most = 0
    when = 0.0
    for i in order:
        while running and running[0][0] <= starts[i]:
            tokens -= totals[heappop(running)[1]]
        heappush(running, (starts[i] + durations[i], i))
        tokens += totals[i]
        if tokens > most:
            most, when = tokens, starts[i]
    members = [i for i in order if starts[i] <= when < starts[i] + durations[i] or starts[i] == when]
    return when, members, sum(totals[i] for i in members)


def read_trace(path: Path, time_unit: str = "s") -> Iterator[Request]:
    """The requests of a .csv, .tsv, .jsonl or .json-lines file in file order, without keeping them. Raises InputError."""
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6}[time_unit]
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = (
                _csv_rows(file, path) if path.suffix.lower() in (".csv", ".tsv") else _json_rows(file, path)
            )
            for number, row in rows:
                yield _request(row, f"{path}, line {number}", scale)
    except OSError as error:
        raise InputError(f"--trace {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"--trace {path} is not text in UTF-8") from None


def _csv_rows(file: TextIO, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    try:
        header = [_key(name) for name in next(reader, [])]
        for row in reader:
            if row:
                yield reader.line_num, dict(zip(header, row, strict=False))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from None


def _json_rows(file: TextIO, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise InputError(f"{path}, line {number} is longer than {MAX_LINE:,} characters")
        if line.isspace():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(f"{path}, line {number} is not JSON") from None
        if not isinstance(value, dict):
            raise InputError(f"{path}, line {number} is not a JSON object")
        usage = value.get("usage")
        flat = {**value, **usage} if isinstance(usage, dict) else value
        yield number, {_key(name): item for name, item in flat.items()}


_LETTERS = re.compile(r"[^a-z]")
_KEYS: dict[str, str] = {}


def _key(name: str) -> str:
    """'Request tokens', 'request_tokens' and 'RequestTokens' are one name."""
    found = _KEYS.get(name)
    if found is None:
        found = _LETTERS.sub("", name.lower())
        if len(_KEYS) < 4096:
            _KEYS[name] = found
    return found


def _request(row: Mapping[str, Any], where: str, scale: float) -> Request:
    prompt, output = _first(row, PROMPT), _first(row, OUTPUT)
    if prompt is None or output is None:
        missing = "prompt" if prompt is None else "output"
        raise InputError(f"{where} has no {missing} tokens; name the columns prompt_tokens and output_tokens")
    start, end, duration = (_time(_first(row, names), where, scale) for names in (START, END, DURATION))
    if duration is None and start is not None and end is not None:
        duration = end - start
    if duration is not None and duration < 0:
        raise InputError(f"{where} ends before it starts")
    return Request(_count(prompt, where), _count(output, where), start, duration)


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        value = row.get(name)
        if value is not None and value != "":
            return value
    return None


def _count(value: Any, where: str) -> int:
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{where}: {value!r:.40} is not a number of tokens") from None
    if isinstance(value, bool) or not 0 <= number < 1 << 40:
        raise InputError(f"{where}: {value!r:.40} is not a number of tokens")
    return number


def _time(value: Any, where: str, scale: float) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value) * scale
    except (TypeError, ValueError):
        try:
            seconds = datetime.fromisoformat(str(value).strip()).timestamp()
        except ValueError:
            raise InputError(f"{where}: {value!r:.40} is not a time") from None
    if seconds != seconds or abs(seconds) == float("inf"):
        raise InputError(f"{where}: {value!r:.40} is not a time")
    return seconds
