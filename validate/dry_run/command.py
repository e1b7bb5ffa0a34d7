"""What `vllm-capacity dry-run` and `plan --check dry-run` do, once their options are read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from vllm_capacity.errors import InputError
from vllm_capacity.validate.dry_run import as_plan, golden, text
from vllm_capacity.validate.dry_run.differences import Difference, differences
from vllm_capacity.validate.dry_run.run import dry_run
from vllm_capacity.validate.dry_run.selftest import check_release
from vllm_capacity.validate.planning import NO_CURRENT_FOLDER

if TYPE_CHECKING:
    from vllm_capacity.request import Inputs

EXIT_CODES = {"starts": 0, "does_not_start": 1, "too_close": 3}
PROBE = f"{NO_CURRENT_FOLDER}; from importlib.metadata import version; print(version('vllm'))"


def installed_release(python: str) -> str:
    """The vLLM release in that Python, without importing it. Raises InputError: none there, or one not checked."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"--python {python}: cannot be started ({error})") from None
    if done.returncode != 0:
        raise InputError(
            f"--python {python} has no vLLM: name the Python of an environment with vLLM, or run inside a vLLM image"
        )
    version = done.stdout.strip().split("+")[0]
    check_release(version)
    return version


def execute(command_line: Sequence[str], flags: Mapping[str, Any], options: Mapping[str, Any]) -> int:
    """Run and print one dry-run, or update golden data; returns the exit code. Raises InputError."""
    if options["update_golden"]:
        return _update_golden(options)
    from vllm_capacity.request import resolve_inputs

    version = options["vllm_version"] or installed_release(options["python"])
    inputs = resolve_inputs(
        command_line, flags, {**options, "vllm_version": version, "allow_unmodelled": True}
    )
    if len(inputs.degrees) != 1:
        raise InputError("--tensor-parallel-size: dry-run takes one at a time")
    answer = run_inputs(inputs, inputs.degrees[0], options)
    if options["as_json"]:
        click.echo(json.dumps(answer))
    else:
        for line in text.lines(answer, options["top"]):
            click.echo(line)
    return EXIT_CODES[answer["verdict"]["status"]]


def run_inputs(inputs: Inputs, tp: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """The dry-run of resolved inputs, as JSON."""
    quiet = options["as_json"]
    run = dry_run(
        inputs,
        replace(inputs.args, tensor_parallel_size=tp),
        options["python"],
        ranks=options.get("ranks") or "ends",
        top=max(options.get("top") or 0, 0),
        tell=lambda line: None if quiet else click.echo(f"  {line}", err=True),
    )
    return as_plan.to_dict(run)


def check(
    command_line: Sequence[str], flags: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[Difference, ...]]:
    """`plan --check dry-run`: the plan as JSON, and where vLLM's own start-up differs. Raises InputError."""
    from vllm_capacity.planner import make_plan
    from vllm_capacity.report.json_report import plan_to_dict
    from vllm_capacity.request import resolve_inputs

    python = options["python"]
    version = options.get("vllm_version") or installed_release(python)
    inputs = resolve_inputs(command_line, flags, {**options, "vllm_version": version})
    args = replace(inputs.args, tensor_parallel_size=inputs.degrees[0])
    answer = make_plan(
        inputs.config, args, inputs.device, inputs.release, release_source="installed in --python",
        used_by_others_bytes=inputs.used_by_others_bytes, suggestions=False, calibration=inputs.calibration,
    )  # fmt: skip
    plan = plan_to_dict(answer)
    run = run_inputs(
        inputs, inputs.degrees[0], {"python": python, "as_json": options.get("as_json", False), "top": 0}
    )
    return plan, differences(plan, run)


def print_check(rows: Sequence[Difference]) -> None:
    for line in text.difference_lines(rows):
        click.echo(line)


def _update_golden(options: Mapping[str, Any]) -> int:
    version = installed_release(options["python"])
    path = Path(options["update_golden"])
    output = Path(options["golden_output"] or path.with_name(f"golden_{version}.jsonl"))
    failed = golden.update(path, output, options["python"], tell=click.echo, fresh=options["fresh"])
    click.echo(f"{output}: {failed} case(s) failed")
    return 1 if failed else 0
