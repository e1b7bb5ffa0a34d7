"""`vllm-capacity plan`: the main job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from vllm_capacity.answer import Plan, RefusedPlan, Status
from vllm_capacity.cli import candidates, common_options
from vllm_capacity.cli.engine_options import NAMES, engine_options
from vllm_capacity.cli.report_option import prepare, report_option, write_plan_report
from vllm_capacity.errors import InputError

if TYPE_CHECKING:
    from vllm_capacity.request import Inputs

EXIT_CODES = {Status.STARTS: 0, Status.DOES_NOT_START: 1, Status.TOO_CLOSE: 3}


@click.command(
    "plan",
    cls=candidates.EngineCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@common_options.model
@common_options.revision
@common_options.offline
@click.option(
    "--weights",
    type=click.Choice(["auto", "headers", "config"]),
    default="auto",
    help="Sizes from safetensors headers or from the config; auto: headers where they are local or cached.",
)
@common_options.gpu
@common_options.gpu_memory
@common_options.compute_capability
@common_options.free_memory
@common_options.used_memory
@common_options.vllm_version
@common_options.usage
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N",
              help=f"{common_options.CONCURRENCY} Says whether they fit.")  # fmt: skip
@common_options.environment
@common_options.calibration
@common_options.allow_unmodelled
@click.option("--no-suggestions", is_flag=True, help="Leave out the re-planned changes.")
@click.option("--explain", metavar="TERM", shell_complete=candidates.components,
              help="Print a term's or component's formula with its numbers and source.")  # fmt: skip
@click.option(
    "--check", type=click.Choice(["dry-run"]), help="Run vLLM's own start-up too; print what differs."
)
@click.option(
    "--python",
    default=None,
    metavar="PATH",
    help=f"{common_options.PYTHON} With --check. Default: this one.",
)
@common_options.as_json
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Picture to write, .svg or .png. A stacked bar per GPU.",
)
@report_option
@click.option(
    "--emit",
    type=click.Choice(["serve", "compose", "kubernetes"]),
    help="A deployment snippet, not the plan.",
)
@click.option("--gpus-per-node", type=click.IntRange(min=1), metavar="N", default=8,
              help=f"{common_options.GPUS_PER_NODE} With --emit. Default: 8.")  # fmt: skip
@engine_options
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- vllm serve MODEL ...]")
@click.pass_context
def command(
    ctx: click.Context, /, command_line: tuple[str, ...], as_json: bool, explain: str | None, **options: Any
) -> int:
    """Say whether a model starts, how much KV cache it gets, and where every byte goes.

    \b
    vllm-capacity plan --model Qwen/Qwen3-30B-A3B --gpu H100-80GB --tp 2
    vllm-capacity plan -- vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 32k

    Every flag of `vllm serve` is accepted under its own name. Exit code 0: starts, 1: does not, 3: too close to call,
    2: bad input.
    """
    from vllm_capacity.planner import make_plan
    from vllm_capacity.request import resolve_inputs

    if options["check"]:
        if options["report"]:
            raise InputError("--report and --check exclude each other: the page holds the plan alone")
        return _check(command_line, as_json, options)
    prepare(options["report"], options)
    inputs = resolve_inputs(command_line, {name: options.pop(name) for name in NAMES}, options)
    plans: list[Plan | RefusedPlan] = [
        make_plan(
            inputs.config,
            replace(inputs.args, tensor_parallel_size=tp),
            inputs.device,
            inputs.release,
            release_source=inputs.release_source,
            used_by_others_bytes=inputs.used_by_others_bytes,
            concurrency=inputs.concurrency,
            suggestions=not options["no_suggestions"],
            calibration=inputs.calibration,
            warnings=inputs.warnings,
        )
        for tp in inputs.degrees
    ]
    if options["plot"]:
        from vllm_capacity.report.plots import plot_plans

        plot_plans(plans, options["plot"])
    if options["report"]:
        write_plan_report(options["report"], plans, inputs, options)
    if explain:
        _print_explanation(plans, explain)
    elif options["emit"]:
        _print_snippet(plans, inputs, options["emit"], int(options["gpus_per_node"]))
    elif as_json:
        import json

        from vllm_capacity.report.json_report import plans_to_dict

        click.echo(json.dumps(plans_to_dict(plans)))
    else:
        from rich.console import Console
        from vllm_capacity.report.text import print_plans
        from vllm_capacity.reproduce import serve_line

        serve = serve_line(
            inputs.model, replace(inputs.args, tensor_parallel_size=inputs.degrees[0]), inputs.release
        )
        print_plans(plans, Console(highlight=False, emoji=False), serve_line=serve)
    return exit_code(plans)


def _check(command_line: tuple[str, ...], as_json: bool, options: dict[str, Any]) -> int:
    """The plan beside a dry-run: exit code 1 where any figure that both know differs."""
    import json
    import sys

    from vllm_capacity.validate.dry_run.command import check, print_check

    options["python"] = options["python"] or sys.executable
    plan, rows = check(command_line, {name: options.pop(name) for name in NAMES}, options)
    if as_json:
        click.echo(json.dumps({"plan": plan, "check": [row.as_json() for row in rows]}))
    else:
        print_check(rows)
    return int(any(not row.equal for row in rows))


def exit_code(plans: list[Plan | RefusedPlan]) -> int:
    """Of several plans the best counts: the question was which of them starts."""
    statuses = {plan.verdict.status for plan in plans}
    for status in (Status.STARTS, Status.TOO_CLOSE, Status.DOES_NOT_START):
        if status in statuses:
            return EXIT_CODES[status]
    return 2


def _print_snippet(plans: list[Plan | RefusedPlan], inputs: Inputs, kind: str, gpus_per_node: int) -> None:
    """Of one layout; one that does not start has nothing to deploy."""
    from vllm_capacity.emit import deployment, emit

    if len(plans) != 1:
        raise InputError("--emit writes one deployment: give a single --tensor-parallel-size")
    plan = plans[0]
    if isinstance(plan, RefusedPlan) or plan.verdict.status is Status.DOES_NOT_START:
        raise InputError(f"--emit: it does not start, there is nothing to deploy. {plan.verdict.message}")
    args = replace(inputs.args, tensor_parallel_size=inputs.degrees[0])
    click.echo(emit(kind, deployment(plan, inputs.model, args, gpus_per_node=gpus_per_node)), nl=False)


def _print_explanation(plans: list[Plan | RefusedPlan], name: str) -> None:
    from vllm_capacity.report.text import explain as explain_term

    known: set[str] = set()
    found = False
    for plan in plans:
        if isinstance(plan, RefusedPlan):
            continue
        for line in explain_term(plan, name):
            click.echo(line)
            found = True
        known |= {t.name for rank in plan.ranks for t in rank.terms}
        known |= {t.component.value for rank in plan.ranks for t in rank.terms}
    if not found:
        raise InputError(f"--explain {name}: no such term; this plan has {', '.join(sorted(known))}")
