"""`vllm-capacity dry-run`: vLLM's own start-up on a machine without a GPU."""

from __future__ import annotations

import sys
from typing import Any

import click
from vllm_capacity.cli import candidates, common_options
from vllm_capacity.cli.engine_options import NAMES, engine_options


@click.command(
    "dry-run",
    cls=candidates.EngineCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@common_options.model
@click.option(
    "--python",
    default=sys.executable,
    metavar="PATH",
    help=f"{common_options.PYTHON} Default: this one.",
)
@click.option("--ranks", default="ends", show_default=True, metavar="ends|all|0,7",
              help="Ranks to run; ends: one per pipeline stage.")  # fmt: skip
@click.option(
    "--top",
    default=10,
    show_default=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="How many to list. Tensors alive at the peak.",
)
@common_options.revision
@common_options.offline
@common_options.gpu
@common_options.gpu_memory
@common_options.compute_capability
@common_options.free_memory
@common_options.used_memory
@click.option("--vllm-version", metavar="X.Y.Z", shell_complete=candidates.releases,
              help=f"{common_options.VLLM_VERSION} Must be the one in --python, which is the default.")  # fmt: skip
@common_options.usage
@common_options.environment
@click.option(
    "--calibration",
    metavar="FILE|none",
    help=f"{common_options.CALIBRATION} Of the terms that come from the plan.",
)
@click.option("--update-golden", metavar="LIST", help="Build the models of a YAML list as test data instead.")
@click.option(
    "--golden-output", metavar="FILE", help="Where that goes; default: golden_VERSION.jsonl beside the list."
)
@click.option("--fresh", is_flag=True, help="Build also what the output holds already.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Everything, as JSON; the form of `plan --json` and a key `dry_run`.",
)
@engine_options
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- vllm serve MODEL ...]")
def command(command_line: tuple[str, ...], **options: Any) -> int:
    """Run vLLM's own start-up without a GPU and say what it allocates.

    \b
    vllm-capacity dry-run --model Qwen/Qwen3-30B-A3B --gpu H200 --tp 2 --python /opt/vllm/bin/python
    vllm-capacity dry-run --ranks all --python /opt/vllm/bin/python -- vllm serve Qwen/Qwen3-8B --max-model-len 32k

    Parameters, KV cache and activation peak are as vLLM's own worker makes them, on tensors without storage. Needs a
    Python with vLLM (a vLLM image on a CPU node will do) and a C compiler; about a minute and 1.5 GB. Takes the flags of
    `plan`. Exit code 0: starts, 1: does not, 3: not every stage was run, 2: bad input or not checked.
    """
    from vllm_capacity.validate.dry_run.command import execute

    return execute(command_line, {name: options.pop(name) for name in NAMES}, options)
