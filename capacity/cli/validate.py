"""The command `validate`: run the real engine on this machine's GPUs and say how far the plan was off."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click


def _flags(extra: tuple[str, ...]) -> dict[str, Any]:
    """vLLM flags as given: --max-model-len 32768 -> {'max_model_len': 32768}."""
    from vllm_capacity.inputs.text_files import parse_yaml

    found: dict[str, Any] = {}
    words = list(extra)
    while words:
        word = words.pop(0)
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


@click.command("validate", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--model", help="Folder, config.json, catalogue id or Hub id.")
@click.option("--matrix", type=click.Path(path_type=Path), help="YAML file of runs (models x flags).")
@click.option("--replay", type=click.Path(path_type=Path), help="Compare recorded runs again; needs no GPU.")
@click.option(
    "--records",
    type=click.Path(path_type=Path),
    default=Path("records.jsonl"),
    show_default=True,
    help="File that records are appended to; runs that it holds are not run again.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    default=Path("validate-work"),
    show_default=True,
    help="Folder for logs and compile caches.",
)
@click.option("--python", default=sys.executable, help="Python of the environment that has vLLM.")
@click.option("--usage", type=click.Choice(["server", "offline"]), default="server", show_default=True)
@click.option(
    "--load-format", default="dummy", show_default=True, help="dummy: no weights needed; auto: real ones."
)
@click.option(
    "--requests", "count", type=int, default=4, show_default=True, help="Requests of the first batch."
)
@click.option("--prompt-tokens", type=int, default=512, show_default=True)
@click.option("--output-tokens", type=int, default=16, show_default=True)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Environment of the engine.")
@click.option("--limit", callback=_seconds, default="10m", show_default=True, help="Time limit of each run.")
@click.option("--budget", callback=_seconds, help="Time for all runs; none is started that would not finish.")
@click.option("--gpus", help="Indices of the GPUs to use, for example 0,1 (default: all).")
@click.option("--tolerance", type=float, default=3.0, show_default=True, help="Per cent of the KV cache.")
@click.option(
    "--peak-tensors", is_flag=True, help="Also record which tensors were alive at the profiling peak."
)
@click.option(
    "--debug-oom", is_flag=True, help="Record memory history and name what grew when memory runs out."
)
@click.option(
    "--refine", "refit", is_flag=True, help="Refit the user's calibration file from all its records."
)
@click.option("--calibration", help="Calibration file for the plan, or 'none'.")
@click.option("--vllm-version", help="Release to plan for (default: the one installed in --python).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(context: click.Context, /, **options: Any) -> int:
    """Run the real vLLM on this machine's GPUs and compare what it used with the plan.

    Takes vLLM's own flags as `plan` does (--tensor-parallel-size, --max-model-len, ...). Exit codes: 0 within
    tolerance or refused as predicted, 1 outside it or a wrong verdict, 2 bad input, 3 not measurable.
    """
    from vllm_capacity.validate.command import execute

    return execute(options, _flags(tuple(context.args)))
