"""`vllm-capacity compare`: two plans side by side."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click
from vllm_capacity.cli import common_options
from vllm_capacity.errors import InputError

if TYPE_CHECKING:
    from vllm_capacity.answer import Plan, RefusedPlan


@click.command("compare", context_settings={"ignore_unknown_options": True})
@click.argument("sides", nargs=-1, type=click.UNPROCESSED, metavar="A B [FLAGS OF plan FOR BOTH]")
@common_options.as_json
def command(sides: tuple[str, ...], as_json: bool) -> int:
    """Put two plans side by side, with the difference per term.

    A and B are what follows `plan`, each in quotes; flags after them hold for both.

    \b
    vllm-capacity compare "--vllm-version 0.26.0" "--vllm-version 0.33.0" --model Qwen/Qwen3-8B --gpu H100
    vllm-capacity compare "--gpu H100 --tp 2" "--gpu H200" --model meta-llama/Llama-3.1-70B-Instruct
    """
    from vllm_capacity.report.compare_text import compared, comparison_to_dict, print_comparison

    left, right, common = _sides(sides)
    plans = tuple(_plan([*side, *common]) for side in (left, right))
    rows = compared(*plans)
    titles = (shlex.join(left), shlex.join(right))
    if as_json:
        import json

        click.echo(json.dumps(comparison_to_dict(titles, rows)))
    else:
        from rich.console import Console

        print_comparison(plans, titles, rows, Console(highlight=False, emoji=False))
    return 0


def _sides(words: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    """The first two words of several words (in quotes) are A and B; what is left belongs to both."""
    quoted = [
        i for i, word in enumerate(words) if word.startswith("-") and any(c.isspace() for c in word.strip())
    ]
    if len(quoted) < 2:
        raise InputError('compare needs two sides in quotes, for example "--gpu H100 --tp 2" "--gpu H200"')
    first, second = quoted[:2]
    try:
        left, right = shlex.split(words[first]), shlex.split(words[second])
    except ValueError as error:
        raise InputError(f"compare: {error} in one of the sides") from None
    return left, right, [word for i, word in enumerate(words) if i not in (first, second)]


def _plan(words: list[str]) -> Plan | RefusedPlan:
    """What `plan` makes of these words."""
    from vllm_capacity.cli import plan as plan_command
    from vllm_capacity.cli.engine_options import NAMES
    from vllm_capacity.planner import make_plan
    from vllm_capacity.request import resolve_inputs

    context = plan_command.command.make_context("compare", list(words))
    options = dict(context.params)
    flags = {name: options.pop(name) for name in NAMES}
    inputs = resolve_inputs(options.pop("command_line"), flags, options)
    if len(inputs.degrees) != 1:
        raise InputError("compare: one --tensor-parallel-size on each side")
    from dataclasses import replace

    return make_plan(
        inputs.config, replace(inputs.args, tensor_parallel_size=inputs.degrees[0]), inputs.device, inputs.release,
        release_source=inputs.release_source, used_by_others_bytes=inputs.used_by_others_bytes,
        concurrency=inputs.concurrency, suggestions=False, calibration=inputs.calibration, warnings=inputs.warnings,
    )  # fmt: skip
