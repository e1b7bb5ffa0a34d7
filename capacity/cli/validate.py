"""The command `validate`: run the real engine on this machine's GPUs and say how far the plan was off."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from vllm_capacity.cli import candidates, common_options


def _flags(extra: tuple[str, ...]) -> dict[str, Any]:
    """vLLM flags as given: --max-model-len 32768 -> {'max_model_len': 32768}."""
    from vllm_capacity.inputs.text_files import parse_yaml

    found: dict[str, Any] = {}
    words = list(extra)
    while words:
        word = words.pop(0)
        if word.startswith("-") and word[1:] in SHORT:
            word = f"-{word}"  # -tp, as vLLM takes it
        if not word.startswith("--"):
            raise click.UsageError(f"unexpected argument {word!r}")
        name, _, value = word[2:].partition("=")
        if value:
            parsed: Any = parse_yaml(value, f"--{name}")
        elif words and not words[0].startswith("--"):
            parsed = parse_yaml(words.pop(0), f"--{name}")
        elif name.startswith("no-"):
            name, parsed = name[3:], False
        else:
            parsed = True
        found[SHORT.get(name, name.replace("-", "_"))] = parsed
    return found


SHORT = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "enable_expert_parallel",
    "dcp": "decode_context_parallel_size",
    "q": "quantization",
    "cc": "compilation_config",
    "model-len": "max_model_len",
}


def _seconds(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    factor = {"s": 1, "m": 60, "h": 3600}.get(value[-1:])
    try:
        return float(value[:-1]) * factor if factor else float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a duration; write for example 90s, 10m or 1h") from None


@click.command(
    "validate",
    cls=candidates.EngineCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@common_options.model
@click.option(
    "--matrix", metavar="FILE", type=click.Path(path_type=Path), help="YAML file of runs (models x flags)."
)
@click.option("--replay", metavar="FILE", type=click.Path(path_type=Path),
              help="Compare recorded runs again; needs no GPU.")  # fmt: skip
@click.option(
    "--records",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=Path("records.jsonl"),
    show_default=True,
    help=f"{common_options.RECORDS} Runs that it holds are not run again.",
)
@click.option(
    "--work",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    default=Path("validate-work"),
    show_default=True,
    help="Folder for logs and compile caches.",
)
@click.option("--python", default=sys.executable, metavar="PATH",
              help=f"{common_options.PYTHON} Default: this one.")  # fmt: skip
@click.option("--usage", type=click.Choice(["server", "offline"]), default="server",
              help="vllm serve (default) or the LLM class.")  # fmt: skip
@click.option(
    "--load-format",
    default="dummy",
    show_default=True,
    metavar="FORMAT",
    help="dummy: no weights needed; auto: real ones.",
)
@click.option(
    "--requests",
    "count",
    type=int,
    metavar="N",
    default=4,
    show_default=True,
    help="Requests of the first batch.",
)
@click.option("--prompt-tokens", type=int, metavar="N", default=512, show_default=True,
              help=f"{common_options.PROMPT_TOKENS} All have this one.")  # fmt: skip
@click.option("--output-tokens", type=int, metavar="N", default=16, show_default=True,
              help=f"{common_options.OUTPUT_TOKENS} All have this one.")  # fmt: skip
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE",
              help="An environment variable of the server.")  # fmt: skip
@click.option("--limit", callback=_seconds, default="10m", show_default=True, metavar="TIME",
              help="Time limit of each run: 90s, 10m, 1h.")  # fmt: skip
@click.option("--budget", callback=_seconds, metavar="TIME",
              help="Time for all runs; none is started that would not finish.")  # fmt: skip
@click.option("--gpus", metavar="0,1,...", help="Indices of the GPUs to use, for example 0,1. Default: all.")
@click.option("--tolerance", type=float, metavar="X", default=3.0, show_default=True,
              help="How far the KV cache tokens may be off, in per cent.")  # fmt: skip
@click.option(
    "--peak-tensors", is_flag=True, help="Also record which tensors were alive at the profiling peak."
)
@click.option(
    "--debug-oom", is_flag=True, help="Record memory history and name what grew when memory runs out."
)
@click.option(
    "--refine", "refit", is_flag=True, help="Refit the user's calibration file from all its records."
)
@common_options.calibration
@click.option("--vllm-version", metavar="X.Y.Z", shell_complete=candidates.releases,
              help=f"{common_options.VLLM_VERSION} Default: the one in --python.")  # fmt: skip
@common_options.as_json
@click.pass_context
def command(context: click.Context, /, **options: Any) -> int:
    """Run the real vLLM on this machine's GPUs and compare what it used with the plan.

    \b
    vllm-capacity validate --model Qwen/Qwen3-8B --max-model-len 32k
    vllm-capacity validate --replay records.jsonl

    Takes vLLM's own flags as `plan` does (--tensor-parallel-size, --max-model-len, ...). Exit codes: 0 within
    tolerance or refused as predicted, 1 outside it or a wrong verdict, 2 bad input, 3 not measurable.
    """
    from vllm_capacity.validate.command import execute

    return execute(options, _flags(tuple(context.args)))
