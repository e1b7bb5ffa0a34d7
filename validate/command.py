"""What the command `validate` does, once its options are read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from vllm_capacity.errors import InputError
from vllm_capacity.validate import compare as comparing
from vllm_capacity.validate import gpu_state, matrix, planning, runner
from vllm_capacity.validate.compare import Comparison, ExitCode
from vllm_capacity.validate.processes import undisturbed
from vllm_capacity.validate.record import (
    Requests,
    RunRecord,
    RunRequest,
    append_record,
    check_appendable,
    read_records,
)


def execute(options: Mapping[str, Any], flags: Mapping[str, Any]) -> int:
    """Run, replay or work through a matrix; returns the exit code. Raises InputError."""
    chosen = [name for name in ("model", "matrix", "replay") if options.get(name)]
    if len(chosen) != 1:
        raise InputError("give exactly one of --model, --matrix and --replay")
    if options["replay"]:
        return _replay(options)
    settings, gpus = _settings(options)
    if options["matrix"]:
        return _matrix(options, settings, gpus)
    request = _request(options, flags)
    if request.gpus > len(gpus):
        raise InputError(
            f"this layout needs {request.gpus} GPUs, {len(gpus)} are here (--tensor-parallel-size, --gpus)"
        )
    begin = replace(settings, gpu_indices=tuple(gpus[: request.gpus]))
    check_appendable(options["records"])
    record = runner.run(request, begin)
    with undisturbed():
        append_record(options["records"], record)
    if options["refit"]:
        from vllm_capacity.validate.refine import refit_user_file

        click.echo(refit_user_file([record]), err=True)
    comparison = comparing.compare(record.plan, record, options["tolerance"])
    _print([comparison], options["as_json"])
    if record.request.debug_oom:
        from vllm_capacity.validate.debug import verdict

        click.echo("\n".join(verdict(record)))
    return int(comparison.exit_code)


def _settings(options: Mapping[str, Any]) -> tuple[runner.RunnerSettings, list[int]]:
    python = options["python"]
    version = options["vllm_version"] or planning.installed_vllm(python)["vllm"]
    if version is None:
        raise InputError(
            f"--python {python} has no vLLM: pip install 'vllm-capacity[gpu]', or name an "
            "environment that has it with --python PATH"
        )
    states = gpu_state.query_gpus()
    if not states:
        raise InputError(
            "no NVIDIA GPU answers here (nvidia-smi); compare a recorded run with --replay RECORD"
        )
    visible = gpu_state.visible_indices(states)
    gpus = visible
    if options["gpus"]:
        try:
            gpus = [int(part) for part in options["gpus"].split(",")]
        except ValueError:
            raise InputError(f"--gpus {options['gpus']}: write indices, for example 0,1") from None
        missing = [gpu for gpu in gpus if gpu not in visible]
        if missing:
            raise InputError(f"--gpus {options['gpus']}: GPU {missing[0]} is not here")
    from vllm_capacity.validate import tool_version

    settings = runner.RunnerSettings(
        python=python,
        work=Path(options["work"]).resolve(),
        tool_version=tool_version(),
        plan=planning.planner_for(
            version, states, options["calibration"], runner.recorded_environment(os.environ)
        ),
    )
    return settings, gpus


def _request(options: Mapping[str, Any], flags: Mapping[str, Any]) -> RunRequest:
    env = {}
    for pair in options["env"]:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--env {pair}: write NAME=VALUE")
        env[name] = value
    try:
        return RunRequest(
            name=Path(options["model"]).stem
            if Path(options["model"]).exists()
            else options["model"].split("/")[-1],
            model=options["model"],
            flags=dict(flags),
            usage=options["usage"],
            load_format=options["load_format"],
            env=env,
            requests=Requests(
                count=options["count"],
                prompt_tokens=options["prompt_tokens"],
                output_tokens=options["output_tokens"],
            ),
            limit_s=options["limit"],
            peak_tensors=options["peak_tensors"],
            debug_oom=options["debug_oom"],
        )
    except ValidationError as error:
        first = error.errors()[0]
        flag = str(first["loc"][-1]).replace("_", "-").removesuffix("-s").replace("count", "requests")
        raise InputError(f"--{flag}: {first['msg']}") from None


def _matrix(options: Mapping[str, Any], settings: runner.RunnerSettings, gpus: Sequence[int]) -> int:
    requests = matrix.load_matrix(options["matrix"])
    check_appendable(Path(options["records"]))
    comparisons: list[Comparison] = []
    records_path = Path(options["records"])

    def finished(record: RunRecord) -> None:
        comparisons.append(comparing.compare(record.plan, record, options["tolerance"]))
        click.echo(one_line(record, comparisons[-1]), err=options["as_json"])

    earlier = read_records(records_path) if records_path.exists() else []
    left = matrix.seconds_left(requests, earlier, len(gpus))
    click.echo(f"{len(requests)} runs on {len(gpus)} GPU(s), about {left:.0f} s", err=options["as_json"])
    with _progress(requests, earlier) as progress:
        report = matrix.run_matrix(
            requests,
            settings,
            records_path,
            gpus=gpus,
            budget_s=options["budget"],
            progress=progress,
            finished=finished,
        )
    for name, why in report.skipped.items():
        click.echo(f"skipped {name}: {why}", err=options["as_json"])
    if options["as_json"]:
        click.echo(json.dumps([c.as_json() for c in comparisons], indent=2))
    if options["refit"] and report.done:
        from vllm_capacity.validate.refine import refit_user_file

        click.echo(refit_user_file(report.done), err=True)
    codes = [c.exit_code for c in comparisons]
    return int(max(codes, default=ExitCode.WITHIN if report.skipped else ExitCode.NOT_MEASURABLE))


def one_line(record: RunRecord, comparison: Comparison) -> str:
    """A run in one line: name, status, time, KV cache predicted and measured."""
    parts = [f"{record.name}: {record.status.value}", f"{record.durations.get('total_s', 0):.0f} s"]
    row = comparison.row("available_kv")
    if row is not None and row.measured is not None:
        parts.append(f"KV {row.measured / 2**30:.3f} GiB")
        if row.error is not None:
            parts.append(f"predicted {row.error / 2**30:+.3f}")
    for rank in record.ranks[:1]:
        residual = comparing.accounting_residual(rank)
        if residual is not None:
            parts.append(f"accounting {residual:+d} B")
        if rank.probe_errors:
            parts.append(f"probe: {rank.probe_errors[0][:120]}")
    if record.error is not None:
        parts.append(f"{record.error['phase']}: {record.error['type']}: {record.error['message'][:300]}")
    if record.gpu_memory_returned is False:
        parts.append("GPU memory did not come back")
    return " | ".join(parts)


class _progress:  # noqa: N801 - a context manager, used like a function
    """A bar with the time left on a terminal; one line per phase elsewhere."""

    def __init__(self, requests: Sequence[RunRequest], records: Sequence[RunRecord]) -> None:
        self._expected = {r.name: matrix.expected_seconds(r, records) for r in requests}
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        self._seen: dict[str, str] = {}

    def __enter__(self) -> Callable[[str, str, float], None]:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
        return self._tick

    def __exit__(self, *_exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _tick(self, name: str, phase: str, seconds: float) -> None:
        if self._bar is None:
            if self._seen.get(name) != phase:
                self._seen[name] = phase
                click.echo(f"  {name}: {phase} ({seconds:.0f} s)", err=True)
            return
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=self._expected[name])
        done = min(seconds, 0.99 * self._expected[name])
        self._bar.update(self._tasks[name], completed=done, description=f"{name}: {phase}")


def _replay(options: Mapping[str, Any]) -> int:
    records = read_records(Path(options["replay"]))
    if not records:
        raise InputError(f"{options['replay']}: no records")
    comparisons = []
    for record in records:
        plan, error = record.plan, None
        try:
            plan = planning.planner_for(
                options["vllm_version"] or record.versions.get("vllm"),
                record.gpus,
                options["calibration"],
                record.environment,
            )(record.request)
        except InputError as problem:
            error = str(problem)
        if error is not None:
            click.echo(
                f"{record.name}: not planned again ({error}); compared with the recorded plan", err=True
            )
        comparisons.append(comparing.compare(plan, record, options["tolerance"]))
        if not options["as_json"]:
            click.echo(one_line(record, comparisons[-1]))
    _print(comparisons, options["as_json"])
    return int(max(c.exit_code for c in comparisons))


def _print(comparisons: Sequence[Comparison], as_json: bool) -> None:
    if as_json:
        shown = [c.as_json() for c in comparisons]
        click.echo(json.dumps(shown[0] if len(shown) == 1 else shown, indent=2))
        return
    for comparison in comparisons:
        click.echo(comparing.table(comparison))
