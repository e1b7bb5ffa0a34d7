"""What the library says to a state of the page. These functions run in a worker process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.calibration import load_calibration
from vllm_capacity.context_curve import ContextPoint, context_curve
from vllm_capacity.errors import CapacityError, InputError
from vllm_capacity.planner import make_plan
from vllm_capacity.reproduce import reproducing_command, serve_line
from vllm_capacity.web.page.resolve import FLAG_OF, Inputs, ModelLoader, Problem, resolve
from vllm_capacity.web.page.state import PageState
from vllm_capacity.web.requests import named_model

if TYPE_CHECKING:
    from vllm_capacity.inputs.model_config import ModelConfig
    from vllm_capacity.web.settings import WebSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The plan, the `vllm serve` line that it stands for, the command that makes it again, the plan at other lengths."""

    plan: Plan | RefusedPlan
    serve: str
    command: str
    curve: tuple[ContextPoint, ...]


def plan_answer(state: PageState, settings: WebSettings) -> Answer | tuple[Problem, ...]:
    """The plan of a state, or every field that is wrong."""
    inputs = resolve(state, model_loader(settings))
    if not isinstance(inputs, Inputs):
        return inputs
    calibration = load_calibration(None)
    try:
        plan = make_plan(
            inputs.config, inputs.args, inputs.device, inputs.release, release_source=inputs.release_source,
            concurrency=inputs.concurrency, calibration=calibration, warnings=inputs.notes,
        )  # fmt: skip
        serve = serve_line(inputs.config.name, inputs.args, inputs.release)
    except CapacityError as error:
        return (Problem(field_of(str(error), state), str(error)),)
    curve = context_curve(plan, calibration) if isinstance(plan, Plan) else ()
    return Answer(plan=plan, serve=serve, command=_command(state, inputs), curve=curve)


def _command(state: PageState, inputs: Inputs) -> str:
    """The command line that gives the same plan."""
    options = ["--gpu", inputs.device.name]
    if inputs.concurrency:
        options += ["--concurrency", str(inputs.concurrency)]
    name = "config.json" if state.config.strip() else inputs.config.name
    return reproducing_command("plan", options, name, inputs.args, inputs.release)


def model_loader(settings: WebSettings) -> ModelLoader:
    """Reads a model by its name, as the API does."""

    def load(name: str, overrides: Mapping[str, Any]) -> ModelConfig:
        if not name:
            raise InputError("Choose a model, or paste its config.json")
        return named_model(name, None, overrides, settings)

    return load


def field_of(message: str, state: PageState) -> str:
    """The field of the page that an error of the planner is about: the flag it starts with, else the model."""
    word = message.split(":")[0].split()[0] if message else ""
    if word.startswith("--"):
        name = word.removeprefix("--").replace("-", "_")
        return next(
            (field for field, flag in FLAG_OF.items() if flag == name and getattr(state, field)), "flags"
        )
    return "config" if state.config.strip() else "model"
