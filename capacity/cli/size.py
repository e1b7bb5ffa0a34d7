"""`vllm-capacity size`: which GPUs to buy for a model and a load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from vllm_capacity.cli import candidates, common_options
from vllm_capacity.cli.engine_options import NAMES, engine_options
from vllm_capacity.cli.report_option import prepare, report_option, write_size_report

if TYPE_CHECKING:
    from vllm_capacity.sizing.row import Row
    from vllm_capacity.sizing.search import Question

PLOTTED = 5
"""Rows drawn by --plot: more lines cannot be told apart."""
SORTS = ("cost", "gpus", "headroom", "tokens")


@click.command(
    "size",
    cls=candidates.EngineCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@common_options.model
@common_options.revision
@common_options.offline
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help=common_options.CONCURRENCY)
@click.option("--prompt-tokens", type=click.IntRange(min=1), metavar="N",
              help=f"{common_options.PROMPT_TOKENS} Of a workload.")  # fmt: skip
@click.option("--prompt-p95", type=click.IntRange(min=1), metavar="N",
              help="Its 95th percentile, in tokens. Default: the mean.")  # fmt: skip
@click.option("--output-tokens", type=click.IntRange(min=1), metavar="N",
              help=f"{common_options.OUTPUT_TOKENS} Of a workload.")  # fmt: skip
@click.option("--output-p95", type=click.IntRange(min=1), metavar="N",
              help="Its 95th percentile, in tokens. Default: the mean.")  # fmt: skip
@click.option("--concurrent-users", type=click.IntRange(min=1), metavar="N",
              help="Requests in flight at once, of a workload or a trace.")  # fmt: skip
@click.option(
    "--trace", metavar="FILE", type=click.Path(path_type=Path), help="Real requests, .jsonl or .csv."
)
@click.option(
    "--time-unit",
    type=click.Choice(["s", "ms", "us"]),
    default="s",
    show_default=True,
    help="Of numbers in the trace's time columns.",
)
@click.option(
    "--output-speed",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Tokens per second of one request, for a trace without durations.",
)
@click.option(
    "--prefix-share",
    type=float,
    default=0.0,
    metavar="0..1",
    help="Share of each prompt that all requests have in common.",
)
@click.option("--gpu", "gpus", metavar="A,B", shell_complete=candidates.gpus,
              help=f"{common_options.GPU} Only these. Default: all of them.")  # fmt: skip
@click.option("--vendor", metavar="NAME", help="Only GPUs of that vendor: nvidia or amd.")
@click.option("--node", "boxes", metavar="GPUxN,...", help="Boxes to buy whole, for example h100x8,l40sx4.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), metavar="N",
              help=f"{common_options.GPUS_PER_NODE} Any GPU is then bought in whole boxes.")  # fmt: skip
@click.option(
    "--max-gpus",
    type=click.IntRange(1, 1024),
    metavar="N",
    default=16,
    show_default=True,
    help="Most GPUs of one replica.",
)
@click.option(
    "--no-variants", is_flag=True, help="Leave out the model's quantised variants in the catalogue."
)
@click.option(
    "--prices", metavar="FILE", type=click.Path(path_type=Path), help="Prices, as docs/sizing.md shows."
)
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default=None,
    help="Least cost, fewest GPUs, most headroom or most KV cache tokens first. Default: cost with --prices, else gpus.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N", default=12, show_default=True,
              help="How many to list. Rows of the table.")  # fmt: skip
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Every row, also a quantised cache or model where nothing is gained by it.",
)
@click.option(
    "--every-layout", is_flag=True, help="Every layout that holds the demand, not only the best per GPU."
)
@common_options.vllm_version
@common_options.usage
@common_options.environment
@common_options.calibration
@common_options.allow_unmodelled
@click.option("--no-sensitivity", is_flag=True, help="Leave out what flips the verdict of the first row.")
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Picture to write, .svg or .png. KV cache tokens and requests at once against max_model_len.",
)
@report_option
@common_options.as_json
@click.option("--csv", "as_csv", is_flag=True, help="One line per row, with the columns of --json.")
@engine_options
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- vllm serve MODEL ...]")
def command(command_line: tuple[str, ...], **options: Any) -> int:
    """Say which GPUs hold a model and its load, how many, in which layout, and with how much room.

    \b
    vllm-capacity size --model meta-llama/Llama-3.1-70B-Instruct --max-model-len 32K --concurrency 64
    vllm-capacity size --model Qwen/Qwen3-8B --prompt-tokens 3000 --output-tokens 500 --concurrent-users 200
    vllm-capacity size --model openai/gpt-oss-120b --trace requests.jsonl --node h100x8

    Every flag of `vllm serve` is accepted; sizes that are given (--tp, --pp, --dp, -ep, --kv-cache-dtype) are kept.
    Exit code 0: at least one row starts and holds the load, 1: none, 2: bad input.
    """
    from vllm_capacity.sizing.ask import ask

    flags = {name: options.pop(name) for name in NAMES}
    prepare(options["report"], options)
    asked = ask(command_line, flags, options)
    with _progress(not options["as_json"] and not options["as_csv"]) as progress:
        report = asked.answer(progress)
    if options["plot"]:
        _plot(asked.question, report.rows[:PLOTTED], options["plot"])
    if options["report"]:
        write_size_report(options["report"], report, flags, int(options["top"]))
    if options["as_json"]:
        import json

        from vllm_capacity.report.size_data import answer_to_dict

        click.echo(json.dumps(answer_to_dict(report)))
    elif options["as_csv"]:
        from vllm_capacity.report.size_data import answer_to_csv

        click.echo(answer_to_csv(report), nl=False)
    else:
        from rich.console import Console
        from vllm_capacity.report.size_text import print_answer

        print_answer(report, Console(highlight=False, emoji=False), top=int(options["top"]))
    return 0 if any(row.starts for row in report.rows) else 1


def _plot(question: Question, rows: tuple[Row, ...], path: Path) -> None:
    from vllm_capacity.report.plots import plot_curves
    from vllm_capacity.sizing.context_curve import context_curves

    name = question.models[0].name
    plot_curves(
        context_curves(question, rows), path, title=f"{name}, vLLM {question.release.version}",
        demanded=question.demand.sequences, longest=question.demand.longest_tokens,
    )  # fmt: skip


class _progress:  # noqa: N801 - a context manager, used like a function
    """A bar on stderr, on a terminal only."""

    def __init__(self, wanted: bool) -> None:
        import sys

        self._wanted = wanted and sys.stderr.isatty()
        self._bar: Any = None

    def __enter__(self) -> Any:
        if not self._wanted:
            return None
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("planning {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._bar.start()
        task = self._bar.add_task("", total=None)
        return lambda done, total, what: self._bar.update(
            task, completed=done, total=total, description=what, refresh=True
        )  # no thread of its own: the search may fork

    def __exit__(self, *_exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
