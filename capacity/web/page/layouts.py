"""The tab that compares layouts: the answer of `size` for the demand of the form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vllm_capacity.errors import CapacityError
from vllm_capacity.report.html import size_page
from vllm_capacity.report.size_data import answer_to_dict
from vllm_capacity.reproduce import reproducing_command
from vllm_capacity.sizing.ask import Report, ask
from vllm_capacity.sizing.context_curve import context_curves
from vllm_capacity.web.page.answers import field_of, model_loader
from vllm_capacity.web.page.resolve import UNMODELLED, Inputs, Problem, given_flags, resolve
from vllm_capacity.web.page.state import PageState

if TYPE_CHECKING:
    from vllm_capacity.web.settings import WebSettings

CURVES = 5
"""Rows whose curve the page to hand on draws: more lines cannot be told apart."""
MOST_GPUS = 16
"""Of one replica, as the command's default."""
FREE = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Flags that the comparison chooses."""


@dataclass(frozen=True, slots=True)
class Layouts:
    """What `size` found, and the command line that finds it again."""

    report: Report
    command: str

    @property
    def document(self) -> Mapping[str, Any]:
        """What `size --json` prints."""
        return answer_to_dict(self.report)

    def page(self) -> str:
        """The page to hand on."""
        curves = context_curves(self.report.question, self.report.rows[:CURVES])
        return size_page(replace(self.report, warnings=()), self.command, curves=curves)


def layouts_answer(state: PageState, settings: WebSettings) -> Layouts | tuple[Problem, ...]:
    """Every layout on the chosen GPU, or the best one of every GPU of the catalogue; or every field that is wrong."""
    inputs = resolve(state, model_loader(settings))
    missing = _missing(state)
    if not isinstance(inputs, Inputs):
        return (*missing, *inputs)
    if missing:
        return missing
    flags = {name: value for name, value in given_flags(inputs.args).items() if name not in FREE}
    allow = bool(flags.pop("allow_unmodelled", False))
    options = {
        "model": inputs.config.name,
        "vllm_version": inputs.release.version,
        "environment": tuple(f"{name}={value}" for name, value in inputs.args.environment.items()),
        "allow_unmodelled": allow or UNMODELLED in state.flags,
        "concurrency": inputs.concurrency,
        "gpus": None if state.every_gpu else inputs.device.name,
        "max_gpus": MOST_GPUS,
        "no_variants": True,
        "every_layout": not state.every_gpu,
        "no_sensitivity": True,
        "share_work": False,
    }
    try:
        asked = ask((), flags, options, load=lambda _name, _args: (inputs.config, ()))
        return Layouts(asked.answer(), _command(state, inputs, flags))
    except CapacityError as error:
        return (Problem(field_of(str(error), state), str(error)),)


def _command(state: PageState, inputs: Inputs, flags: Mapping[str, Any]) -> str:
    options = ["--concurrency", str(inputs.concurrency), "--no-variants"]
    if not state.every_gpu:
        options += ["--gpu", inputs.device.name, "--every-layout"]
    if "kv_cache_dtype" in flags:
        options += ["--kv-cache-dtype", str(flags["kv_cache_dtype"])]
    args = replace(inputs.args, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1)
    name = "config.json" if state.config.strip() else inputs.config.name
    return reproducing_command("size", options, name, replace(args, kv_cache_dtype="auto"), inputs.release)


def _missing(state: PageState) -> tuple[Problem, ...]:
    problems = []
    if not state.concurrency.strip():
        problems.append(Problem("concurrency", "How many requests at once?"))
    if not state.context.strip() and "--max-model-len" not in state.flags:
        problems.append(Problem("context", "How long are they?"))
    return tuple(problems)
