"""`vllm-capacity dry-run`: vLLM's own start-up on a machine without a GPU."""

from __future__ import annotations

import sys
from typing import Any

import click
from vllm_capacity.cli.engine_options import NAMES, engine_options


@click.command("dry-run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@click.option(
    "--model", metavar="MODEL", help="A folder, a config.json, a catalogue id, or a Hugging Face id."
)
@click.option(
    "--python", default=sys.executable, metavar="PATH", help="Python of an environment that has vLLM."
)
@click.option("--ranks", default="ends", show_default=True, metavar="ends|all|0,7",
              help="Ranks to run; ends: one per pipeline stage.")  # fmt: skip
@click.option(
    "--top",
    default=10,
    show_default=True,
    type=click.IntRange(min=0),
    help="Tensors alive at the peak to list.",
)
@click.option("--revision", metavar="REV", help="Branch, tag or commit on the Hub.")
@click.option("--offline", is_flag=True, help="Never ask the Hub.")
@click.option("--gpu", metavar="NAME", help="A GPU of the catalogue. Default: the local one, else H100-80GB.")
@click.option("--gpu-memory", metavar="SIZE", help="Total memory of a GPU that is not in the catalogue.")
@click.option("--compute-capability", metavar="X.Y", help="Its compute capability, with --gpu-memory.")
@click.option("--free-memory", metavar="SIZE", help="Free at start-up, where others use the GPU too.")
@click.option("--used-memory", metavar="SIZE", help="Used by others at start-up.")
@click.option("--vllm-version", metavar="X.Y.Z", help="Must be the one in --python; default: that one.")
@click.option(
    "--usage", type=click.Choice(["server", "offline"]), help="vllm serve (default) or the LLM class."
)
@click.option(
    "--env", "environment", multiple=True, metavar="NAME=VALUE", help="An environment variable of the server."
)
@click.option(
    "--calibration", metavar="FILE|none", help="Correction factors of the terms that come from the plan."
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
    help="Everything, as JSON: the shape of `plan --json` and a key `dry_run`.",
)
@engine_options
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- vllm serve MODEL ...]")
def command(command_line: tuple[str, ...], **options: Any) -> int:
    """Run vLLM's own worker without a GPU, without weights: parameters, KV cache and activation peak as vLLM makes them.

    \b
    vllm-capacity dry-run --model Qwen/Qwen3-30B-A3B --gpu H200 --tp 2 --python /opt/vllm/bin/python

    Needs a Python with vLLM (a vLLM image on a CPU node will do) and a C compiler; about a minute and 1.5 GB. Takes the
    flags of `plan`. Exit code 0: starts, 1: does not, 3: not every stage was run, 2: bad input or not checked.
    """
    from vllm_capacity.validate.dry_run.command import execute

    return execute(command_line, {name: options.pop(name) for name in NAMES}, options)
