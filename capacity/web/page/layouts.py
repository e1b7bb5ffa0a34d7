"""The tab that compares layouts: the answer of `size` for the demand of the form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_capacity.errors import CapacityError
from vllm_capacity.report.size_data import answer_to_dict
from vllm_capacity.sizing.ask import ask
from vllm_capacity.web.page.answers import field_of, model_loader
from vllm_capacity.web.page.resolve import UNMODELLED, Inputs, Problem, given_flags, resolve
from vllm_capacity.web.page.state import PageState

if TYPE_CHECKING:
    from vllm_capacity.web.settings import WebSettings

MOST_GPUS = 16
"""Of one replica, as the command's default."""
FREE = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Flags that the comparison chooses."""


@dataclass(frozen=True, slots=True)
class Layouts:
    """`document` is what `size --json` prints."""

    document: Mapping[str, Any]


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
        return Layouts(answer_to_dict(asked.answer()))
    except CapacityError as error:
        return (Problem(field_of(str(error), state), str(error)),)


def _missing(state: PageState) -> tuple[Problem, ...]:
    problems = []
    if not state.concurrency.strip():
        problems.append(Problem("concurrency", "How many requests at once?"))
    if not state.context.strip() and "--max-model-len" not in state.flags:
        problems.append(Problem("context", "How long are they?"))
    return tuple(problems)
