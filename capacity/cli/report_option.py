"""`--report FILE.html` of `plan` and `size`: the page, and the command that makes it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from vllm_capacity.answer import Plan, RefusedPlan

if TYPE_CHECKING:
    from vllm_capacity.request import Inputs
    from vllm_capacity.sizing.ask import Report

F = TypeVar("F", bound=Callable[..., Any])

CURVES = 5
"""Rows of `size` whose curve is drawn: more lines cannot be told apart."""

_OTHER_OUTPUT = {
    "report",
    "as_json",
    "as_csv",
    "plot",
    "emit",
    "explain",
    "check",
    "python",
    "model",
    "environment",
}
"""What does not change the answer, and what the `vllm serve` line of the command already says."""


def report_option(function: F) -> F:
    """The option itself."""
    option = click.option(
        "--report",
        metavar="FILE.html",
        type=click.Path(path_type=Path),
        help="One self-contained page to hand on, also in print.",
    )
    return option(function)


def prepare(path: Path | None, options: MutableMapping[str, Any]) -> None:
    """Refuses a path that cannot be written before any work, and names the GPU that is only assumed: the page's command must
    not depend on the machine. Raises InputError."""
    if path is None:
        return
    from vllm_capacity.report.html.write import check_path

    check_path(path)
    if "gpu_memory" in options and not any(
        options.get(name) for name in ("gpu", "gpu_memory", "compute_capability")
    ):
        from vllm_capacity.inputs.gpus import DEFAULT_GPU
        from vllm_capacity.inputs.local_gpu import local_device

        if local_device() is None:
            options["gpu"] = DEFAULT_GPU


def write_plan_report(
    path: Path, plans: Sequence[Plan | RefusedPlan], inputs: Inputs, options: Mapping[str, Any]
) -> None:
    """The page of `plans`. Raises InputError."""
    from vllm_capacity.context_curve import context_curve
    from vllm_capacity.report.html import plans_page
    from vllm_capacity.report.html.write import write_page
    from vllm_capacity.reproduce import reproducing_command

    words = ["--gpu", options["gpu"]] if options.get("gpu") else []
    words += typed_options({"gpus_per_node", "gpu"})
    args = inputs.args
    if len(inputs.degrees) == 1:
        args = replace(args, tensor_parallel_size=inputs.degrees[0])
    else:
        words += ["--tensor-parallel-size", ",".join(map(str, inputs.degrees))]
    command = reproducing_command(
        "plan", [*words, "--report", path.name], inputs.model, args, inputs.release
    )  # fmt: skip
    # What was not read of a pasted text concerns who pasted it: the command holds what was read.
    shown = [
        plan
        if isinstance(plan, RefusedPlan)
        else replace(plan, warnings=tuple(w for w in plan.warnings if w not in inputs.notes))
        for plan in plans
    ]
    curves = [context_curve(plan, inputs.calibration) if isinstance(plan, Plan) else () for plan in plans]
    write_page(path, plans_page(shown, command, curves=curves))


def write_size_report(path: Path, report: Report, flags: Mapping[str, Any], top: int) -> None:
    """The page of an answer of `size`. Raises InputError."""
    from vllm_capacity.report.html import size_page
    from vllm_capacity.report.html.write import write_page
    from vllm_capacity.reproduce import reproducing_command
    from vllm_capacity.sizing.context_curve import context_curves

    question = report.question
    words = typed_options(set())
    for name in _KEPT_SIZES:
        if flags.get(name) is not None:
            words += ["--" + name.replace("_", "-"), str(flags[name])]
    expert = flags.get("enable_expert_parallel")
    if expert is not None:
        words.append("--enable-expert-parallel" if expert else "--no-enable-expert-parallel")
    command = reproducing_command(
        "size",
        [*words, "--report", path.name],
        question.models[0].name,
        question.args,
        question.release,
    )  # fmt: skip
    curves = context_curves(question, report.rows[:CURVES])
    write_page(path, size_page(replace(report, warnings=()), command, curves=curves, top=top))


_KEPT_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "kv_cache_dtype")
"""vLLM's flags that `size` keeps where they are given to it as options."""


def typed_options(leave_out: set[str]) -> list[str]:
    """This tool's own options as they were typed, with what changes no answer left out."""
    from click.core import ParameterSource
    from vllm_capacity.cli.engine_options import NAMES

    context = click.get_current_context()
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        if (
            not isinstance(parameter, click.Option)
            or name in _OTHER_OUTPUT | leave_out | set(NAMES) | {"vllm_version"}
            or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE
        ):
            continue
        value, option = context.params[name], parameter.opts[0]
        if parameter.is_flag:
            words.append(option)
        else:
            for item in value if parameter.multiple else [value]:
                words += [option, str(item)]
    return words
