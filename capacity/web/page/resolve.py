"""From the texts of the page to what the planner takes, field by field, so that an error stands where it was made.

The library's own parsers read every text; nothing here knows a flag's grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import CapacityError, InputError
from vllm_capacity.inputs.command_line import parse_command_line, parse_flags
from vllm_capacity.inputs.config_json import apply_overrides, normalise, parse_json
from vllm_capacity.inputs.engine_args import merge_engine_args, parse_engine_args
from vllm_capacity.inputs.environment import check_environment
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.shell_words import split_text
from vllm_capacity.request import choose_release
from vllm_capacity.web.page.state import PageState

if TYPE_CHECKING:
    from vllm_capacity.device import Device
    from vllm_capacity.inputs.model_config import ModelConfig
    from vllm_capacity.releases.release import Release

T = TypeVar("T")

FLAG_OF = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "context": "max_model_len",
    "kv_dtype": "kv_cache_dtype",
    "utilisation": "gpu_memory_utilization",
}
"""Fields that are flags of vLLM, by the flag's name."""
NO_FLAG = {"tp": "1", "pp": "1", "dp": "1", "kv_dtype": "auto"}
"""Values of these fields that stand for "not given": vLLM's defaults."""
MAX_CONCURRENCY = 1_000_000
UNMODELLED = "--allow-unmodelled"
"""A flag of ours, not of vLLM's: accept flags whose memory is not modelled."""
PASTED = "pasted-config"
"""The name of a model that has none."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One line that says what is wrong with one field of the page."""

    field: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the planner takes. `problems` is empty then."""

    config: ModelConfig
    args: EngineArgs
    device: Device
    release: Release
    release_source: str
    concurrency: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flags:
    """The box of flags, read. `model` and `version` are what a whole pasted command names."""

    args: EngineArgs
    model: str | None = None
    version: str | None = None
    notes: tuple[str, ...] = ()


ModelLoader = Callable[[str, Mapping[str, Any]], "ModelConfig"]
"""(name, --hf-overrides) -> config. Raises InputError."""


def resolve(state: PageState, load: ModelLoader) -> Inputs | tuple[Problem, ...]:
    """The planner's inputs, or every field that is wrong. `load` reads a model by its name (`models.py`)."""
    problems: list[Problem] = []
    release, source = _try("release", problems, lambda: choose_release(state.release or None, None)) or (
        None,
        "",
    )
    device = _try("gpu", problems, lambda: _device(state.gpu))
    concurrency = _try("concurrency", problems, lambda: _concurrency(state.concurrency))
    if release is None:
        return tuple(problems)
    known = release
    values: dict[str, Any] = {}
    for field, flag in FLAG_OF.items():
        text = getattr(state, field).strip()
        if text and text != NO_FLAG.get(field):
            value = _try(field, problems, partial(_one_flag, flag, text, known))
            values[flag] = value
    base = _try("flags", problems, lambda: parse_engine_args(values, release=known)) if not problems else None
    flags = _try("flags", problems, lambda: read_flags(state.flags, known, base))
    if flags is None:
        return tuple(problems)
    if state.config.strip() and not flags.model:
        config = _try("config", problems, lambda: pasted_config(state.config, flags.args.hf_overrides))
    else:
        name = flags.model or state.model.strip()
        config = _try("model", problems, lambda: load(name, flags.args.hf_overrides))
    if problems or config is None or device is None:
        return tuple(problems)
    return Inputs(
        config=config, args=flags.args, device=device, release=known, release_source=source,
        concurrency=concurrency or None, notes=flags.notes,
    )  # fmt: skip


def read_flags(text: str, release: Release, base: EngineArgs | None = None) -> Flags:
    """The box of flags over `base`: flags, or a whole `vllm serve` or `docker run` command. Raises InputError."""
    commands = split_text(text)
    words = tuple(word for command in commands for word in command.words)
    model, version = None, None
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str]
    if not words or words[0].startswith("-"):
        own = tuple(word for word in words if word != UNMODELLED)
        values: dict[str, Any] = dict(parse_flags(own, release=release, read_files=False)) if own else {}
        environment = {name: value for command in commands for name, value in command.environment.items()}
    else:
        line = parse_command_line(text, release=release, read_files=False)
        values, environment = given_flags(line.args), line.args.environment
        model, version, notes = line.model, line.release_hint, line.notes
    allow = UNMODELLED in words
    args = merge_engine_args(
        base, {**values, "environment": environment, "allow_unmodelled": allow}, release=release
    )
    check_environment(args.environment, release, allow_unmodelled=allow)
    return Flags(args, model, version, notes)


def given_flags(args: EngineArgs) -> dict[str, Any]:
    """What `args` says beyond "not given", by the flags' names; without the environment."""
    given = dict(args.others)
    for item in fields(EngineArgs):
        if item.name in ("usage", "environment", "others"):
            continue
        value = getattr(args, item.name)
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if value != default:
            given[item.name] = value
    return given


def pasted_config(text: str, overrides: Mapping[str, Any]) -> ModelConfig:
    """A config.json as data: it is read as JSON, and nothing that it names is opened. Raises InputError."""
    root = parse_json(text, "the pasted config")
    return normalise(PASTED, apply_overrides(root, overrides), source="a pasted config.json")


def _try(field: str, problems: list[Problem], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except CapacityError as error:
        problems.append(Problem(field, str(error)))
        return None


def _one_flag(flag: str, text: str, release: Release) -> Any:
    """The value of one field, as `EngineArgs` holds it; None where the text is a spelling of "not given"."""
    return getattr(parse_engine_args({flag: text}, release=release), flag)


def _device(name: str) -> Device:
    if not name.strip():
        raise InputError("Choose a GPU")
    return find_device(name.strip())


def _concurrency(text: str) -> int:
    """0 where none is asked for."""
    text = text.strip().replace(",", "")
    if not text:
        return 0
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:12]) <= MAX_CONCURRENCY:
        raise InputError(f"{text[:40]!r} is no number of requests: write one from 1 to {MAX_CONCURRENCY:,}")
    return int(text)
