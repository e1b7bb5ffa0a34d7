"""What the API is asked, and the pure functions that answer it: a request and the settings in, the document out.

Nothing here reads a file that a request names: a model is an id of the catalogue, an id of the Hub where the server allows
that, or the contents of a config.json. The documents are those of `plan --json`, `size --json` and `explain --json`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from vllm_capacity.errors import InputError
from vllm_capacity.vocabulary import add_meanings
from vllm_capacity.web.settings import WebSettings

if TYPE_CHECKING:
    from vllm_capacity.answer import Plan, RefusedPlan
    from vllm_capacity.device import Device
    from vllm_capacity.engine import EngineArgs
    from vllm_capacity.inputs.model_config import ModelConfig
    from vllm_capacity.request import Inputs
    from vllm_capacity.sizing.ask import Asked

MAX_DEGREES = 16
"""Tensor-parallel sizes of one request."""
NOT_FLAGS = ("model", "config", "usage", "environment", "allow_unmodelled", "others")
PASTED = "config"
"""Name of a pasted config without one; the library's for a mapping."""

Name = Annotated[str, Field(max_length=200)]
Short = Annotated[str, Field(max_length=60)]
Count = Annotated[int, Field(ge=1, le=1 << 40)]
Positive = Annotated[int, Field(ge=1, le=1024)]

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)?", re.ASCII)


class HubNotAllowedError(InputError):
    """The model is not in the catalogue, and this server asks no Hub."""


class _Request(BaseModel):
    """What `plan` and `size` have in common: the model, vLLM's flags and the release."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=add_meanings)

    model: Name | None = Field(
        default=None,
        description="An id of the catalogue (GET models), or of the Hugging Face Hub where the server allows it. "
        "Beside `config` only its name.",
    )
    config: dict[str, JsonValue] | None = Field(
        default=None, description="The contents of a config.json, read as data."
    )
    hf_quant_config: dict[str, JsonValue] | None = Field(
        default=None, description="With `config`: the contents of the hf_quant_config.json beside it."
    )
    revision: Name | None = Field(default=None, description="Branch, tag or commit on the Hub.")
    command: Annotated[str, Field(max_length=1 << 16)] | None = Field(
        default=None,
        description="A pasted start: `vllm serve ...`, `docker run ... vllm/vllm-openai:vX ...`.",
    )
    flags: dict[str, JsonValue] = Field(
        default_factory=dict,
        max_length=400,
        description="vLLM's flags by their long names in snake case, over those of `command`: "
        '{"tensor_parallel_size": 2, "max_model_len": "32k"}.',
    )
    usage: Literal["server", "offline"] | None = Field(
        default=None, description="vllm serve (the default) or the LLM class."
    )
    environment: dict[Name, Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=dict, max_length=400, description="Environment variables of the server."
    )
    vllm_version: Short | None = Field(
        default=None,
        description="Default: that of `command`, of the vLLM beside this tool, else the newest known.",
    )
    allow_unmodelled: bool = Field(default=False, description="Accept flags whose memory is not modelled.")
    calibration: Literal["none"] | None = Field(
        default=None, description='"none": the built-in measurements only, without this machine\'s own.'
    )

    @model_validator(mode="after")
    def _one_model(self) -> _Request:
        if self.hf_quant_config is not None and self.config is None:
            raise ValueError("hf_quant_config stands beside config")
        if self.config is not None and self.revision is not None:
            raise ValueError("revision belongs to a model of the Hub, not to a config")
        for name in NOT_FLAGS:
            if name in self.flags:
                raise ValueError(f"{name} is no entry of flags; it stands at the top")
        return self


class PlanRequest(_Request):
    """One model on one kind of GPU: the options of `vllm-capacity plan`.

    Several tensor-parallel sizes (`"tensor_parallel_size": [1, 2, 4]`) give one plan each.
    """

    weights: Literal["auto", "headers", "config"] = Field(
        default="auto",
        description="Sizes from safetensors headers (on the Hub, where the server allows it) or from the config.",
    )
    gpu: Name | None = Field(
        default=None,
        description="A GPU of the catalogue (GET gpus). Default: the server's own, else H100-80GB.",
    )
    gpu_memory: Short | None = Field(
        default=None, description="Total memory of a GPU that is not in the catalogue."
    )
    compute_capability: Short | None = Field(
        default=None, description="Its compute capability, for example 8.9."
    )
    free_memory: Short | None = Field(
        default=None, description='Free at start-up where others use the GPU too: "60GiB".'
    )
    used_memory: Short | None = Field(default=None, description="Used by others at start-up.")
    concurrency: Count | None = None
    suggestions: bool = Field(default=True, description="Plan single changes too and report those that help.")


class SizeRequest(_Request):
    """Which GPUs hold a model and a load: the options of `vllm-capacity size`, without those that read files."""

    concurrency: Count | None = None
    prompt_tokens: Count | None = None
    prompt_p95: Count | None = None
    output_tokens: Count | None = None
    output_p95: Count | None = None
    concurrent_users: Count | None = None
    prefix_share: float = Field(default=0.0, ge=0, le=1)
    gpus: list[Name] = Field(
        default_factory=list, max_length=200, description="Only these GPUs. Default: the whole catalogue."
    )
    vendor: Literal["nvidia", "amd"] | None = Field(default=None, description="Only this vendor's GPUs.")
    nodes: list[Name] = Field(
        default_factory=list, max_length=200, description='Boxes to buy whole: "h100x8".'
    )
    gpus_per_node: Positive | None = None
    max_gpus: Positive = 16
    variants: bool = Field(
        default=True, description="Consider the model's quantised variants in the catalogue too."
    )
    sort: Literal["gpus", "headroom", "tokens"] = Field(
        default="gpus",
        description="What rows are sorted by: fewest GPUs, most headroom, most KV cache tokens.",
    )
    show_all: bool = Field(
        default=False, description="Also a quantised cache or model where nothing is gained by it."
    )
    every_layout: bool = Field(
        default=False, description="Every layout that holds the demand, not the best per GPU."
    )
    sensitivity: bool = Field(default=True, description="Say what flips the verdict of the first row.")


class ExplainRequest(BaseModel):
    """What is known beside a log."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=add_meanings)

    model: Name | None = Field(default=None, description="Where the log does not name it.")
    gpu: Name | None = Field(default=None, description="Where the log leaves it open.")
    vllm_version: Short | None = Field(default=None, description="Where the log does not name it.")


# -- answers ----------------------------------------------------------------------------------------------------


def plan_document(request: PlanRequest, settings: WebSettings) -> dict[str, Any]:
    """What `plan --json` prints. Raises InputError, HubNotAllowedError, RefusedError."""
    from vllm_capacity.report.json_report import plans_to_dict

    return plans_to_dict(plans_of(request, settings)[1])


def plans_of(request: PlanRequest, settings: WebSettings) -> tuple[Inputs, tuple[Plan | RefusedPlan, ...]]:
    """The resolved inputs and one plan per tensor-parallel size. Raises as `plan_document`."""
    from dataclasses import replace

    from vllm_capacity.planner import make_plan

    inputs = inputs_of(request, settings)
    return inputs, tuple(
        make_plan(
            inputs.config,
            replace(inputs.args, tensor_parallel_size=tp),
            inputs.device,
            inputs.release,
            release_source=inputs.release_source,
            used_by_others_bytes=inputs.used_by_others_bytes,
            concurrency=inputs.concurrency,
            suggestions=request.suggestions,
            calibration=inputs.calibration,
            warnings=inputs.warnings,
        )
        for tp in inputs.degrees
    )


def inputs_of(request: PlanRequest, settings: WebSettings) -> Inputs:
    """Everything that a plan takes. Raises as `plan_document`."""
    from vllm_capacity.request import resolve_inputs

    names = ("gpu", "gpu_memory", "compute_capability", "free_memory", "used_memory", "concurrency")
    options = _options(request) | {name: getattr(request, name) for name in names}
    return resolve_inputs(
        (),
        _flags(request),
        options,
        load=_loader(request, settings, request.weights),
        default_device=default_device(),
    )


def size_document(request: SizeRequest, settings: WebSettings) -> dict[str, Any]:
    """What `size --json` prints. Raises as `plan_document`."""
    from vllm_capacity.report.size_data import answer_to_dict

    return answer_to_dict(asked(request, settings).answer())


def asked(request: SizeRequest, settings: WebSettings) -> Asked:
    """The question of a request, to be answered. Raises as `plan_document`."""
    from vllm_capacity.sizing.ask import ask

    names = (
        "concurrency", "prompt_tokens", "prompt_p95", "output_tokens", "output_p95", "concurrent_users", "prefix_share",
        "vendor", "gpus_per_node", "max_gpus", "sort", "show_all", "every_layout",
    )  # fmt: skip
    options = _options(request) | {name: getattr(request, name) for name in names}
    options |= {
        "gpus": ",".join(request.gpus),
        "boxes": ",".join(request.nodes),
        "no_variants": not request.variants,
        "no_sensitivity": not request.sensitivity,
        "share_work": False,  # a worker has no children
    }
    return ask((), _flags(request), options, load=_loader(request, settings, "config"))


def explain_document(log: bytes, request: ExplainRequest, settings: WebSettings) -> dict[str, Any]:
    """What `explain --json` prints of a log, plain or gzip. Raises InputError where it is none of vLLM's."""
    from vllm_capacity.diagnosis.diagnose import diagnose
    from vllm_capacity.diagnosis.rebuild import Given
    from vllm_capacity.logs.reader import read_log
    from vllm_capacity.report.explain_text import diagnosis_to_dict

    record = read_log(io.BytesIO(log))
    given = Given(
        model=request.model,
        gpu=request.gpu,
        vllm_version=request.vllm_version,
        load=lambda name, overrides: named_model(name, None, overrides, settings),
        read_files=False,
    )
    return diagnosis_to_dict(record, diagnose(record, given))


# -- models -----------------------------------------------------------------------------------------------------


def named_model(
    name: str, revision: str | None, overrides: Mapping[str, Any], settings: WebSettings
) -> ModelConfig:
    """The config of a catalogue id, or of a Hub id where the server allows it; never of a path.

    Raises InputError, HubNotAllowedError.
    """
    from vllm_capacity.inputs.catalogue import find_entry, load_entry, suggestions
    from vllm_capacity.inputs.models import load_model

    if len(name) > 96 or "--" in name or ".." in name or not _ID.fullmatch(name):
        raise InputError(
            f"{name!r:.100} is no id of a model; this server reads no paths and no addresses: "
            "paste the contents of config.json instead"
        )
    entry = find_entry(name)
    if entry is not None and revision is None:
        return load_entry(entry, overrides)
    if not settings.allow_hub:
        close = suggestions(name)
        hint = f"Did you mean {', '.join(close)}? " if close and entry is None else ""
        what = f"revision {revision!r:.60} of {name}" if entry is not None else name
        raise HubNotAllowedError(
            f"{what} is not in the bundled catalogue, and this server asks no Hub. {hint}"
            "Paste the contents of its config.json, or start the server with --allow-hub"
        )
    with _hub():
        return load_model(name, revision=revision, hf_overrides=overrides, local=False)


def pasted_model(
    name: str,
    config: Mapping[str, Any],
    hf_quant_config: Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
) -> ModelConfig:
    """The contents of a config.json, as data. Raises InputError, RefusedError."""
    from vllm_capacity.inputs.config_json import apply_overrides, check_depth, normalise

    check_depth(config, "the config")
    return normalise(
        name,
        apply_overrides(config, overrides),
        source="a config given as a mapping",
        quantization=hf_quant_config,
    )


def _loader(
    request: _Request, settings: WebSettings, weights: str
) -> Callable[[str, EngineArgs], tuple[ModelConfig, tuple[str, ...]]]:
    def load(name: str, args: EngineArgs) -> tuple[ModelConfig, tuple[str, ...]]:
        if request.config is not None:
            return pasted_model(name, request.config, request.hf_quant_config, args.hf_overrides), ()
        config = named_model(name, request.revision, args.hf_overrides, settings)
        if not settings.allow_hub:
            if weights == "headers":
                raise HubNotAllowedError(
                    "weights from headers need the Hub, which this server does not ask; "
                    "leave `weights` out, or start the server with --allow-hub"
                )
            return config, ()
        from vllm_capacity.inputs.checkpoint import load_headers, with_headers

        with _hub():
            headers, warnings = load_headers(name, weights, revision=request.revision, local=False)
        return (config if headers is None else with_headers(config, headers)), warnings

    return load


def _hub() -> Any:
    """Lets the worker's guard through to the Hub, where there is a guard."""
    import sys

    guard = sys.modules.get("vllm_capacity.web.guard")
    return nullcontext() if guard is None else guard.opened()


@cache
def default_device() -> Device:
    """The GPU of a plan that names none: this machine's, else the default; asked once."""
    from vllm_capacity.request import choose_device

    return choose_device({})


# -- as the command line has it -----------------------------------------------------------------------------------


def _flags(request: _Request) -> dict[str, Any]:
    flags: dict[str, Any] = dict(request.flags)
    degrees = flags.get("tensor_parallel_size")
    if isinstance(degrees, list):
        if len(degrees) > MAX_DEGREES:
            raise InputError(f"tensor_parallel_size: at most {MAX_DEGREES} sizes in one request")
        flags["tensor_parallel_size"] = ",".join(str(degree) for degree in degrees)
    return flags


def _options(request: _Request) -> dict[str, Any]:
    return {
        "model": request.model or (PASTED if request.config is not None else None),
        "revision": request.revision,
        "usage": request.usage,
        "environment": tuple(f"{name}={value}" for name, value in request.environment.items()),
        "vllm_version": request.vllm_version,
        "allow_unmodelled": request.allow_unmodelled,
        "calibration": request.calibration,
        "pasted": request.command,
        "read_files": False,
    }
