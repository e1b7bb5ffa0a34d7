"""From options and pasted lines to the values the planner takes, shared by every command that plans."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.units import gib, parse_size

if TYPE_CHECKING:
    from vllm_capacity.calibration import Calibration
    from vllm_capacity.device import Device
    from vllm_capacity.engine import EngineArgs
    from vllm_capacity.inputs.model_config import ModelConfig
    from vllm_capacity.releases.release import Release

MANY_SHARDS = 8
"""From so many files on, reading their headers shows a progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything a plan needs, resolved. `degrees` are the tensor-parallel sizes to plan."""

    model: str
    config: ModelConfig
    args: EngineArgs
    degrees: tuple[int, ...]
    device: Device
    used_by_others_bytes: int
    release: Release
    release_source: str
    concurrency: int | None
    calibration: Calibration
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Those of the warnings that say what of a pasted text was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What flags and a pasted line say, without a GPU."""

    model: str | None
    args: EngineArgs
    release: Release
    release_source: str
    notes: tuple[str, ...]


def engine_args_of(command_line: Sequence[str], given: Mapping[str, Any], options: Mapping[str, Any]) -> Line:
    """Flags (`given`, as text) over those that click did not know over a pasted line. Raises InputError.

    Of `options`: `pasted` is the line as one text where it is no part of `command_line`; without `read_files`,
    `--config FILE` is refused.
    """
    from vllm_capacity.inputs.command_line import parse_command_line
    from vllm_capacity.inputs.environment import check_environment

    own, pasted = ([], [options["pasted"]]) if options.get("pasted") else _split(command_line)
    release, release_source = choose_release(options.get("vllm_version"), _release_hint(pasted))
    read_files = bool(options.get("read_files", True))
    line = parse_command_line(pasted, release=release, read_files=read_files) if pasted else None
    args = _engine_args(given, own, line.args if line else None, options, release)
    check_environment(args.environment, release, allow_unmodelled=bool(args.other("allow_unmodelled")))
    return Line(
        model=options.get("model") or (line.model if line else None), args=args, release=release,
        release_source=release_source, notes=tuple(line.notes) if line else (),
    )  # fmt: skip


Load = Callable[[str, "EngineArgs"], "tuple[ModelConfig, tuple[str, ...]]"]
"""From a model's name and the flags to its config, with warnings."""


def resolve_inputs(
    command_line: Sequence[str],
    flags: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    load: Load | None = None,
    default_device: Device | None = None,
) -> Inputs:
    """`command_line` holds flags that click does not know and, after `--`, a pasted line; `flags` are vLLM's, as text.

    `load` reads the model in place of `--model`'s rules; `default_device` stands where no GPU is named. Raises InputError.
    """
    from vllm_capacity.calibration import load_calibration

    given = {name: value for name, value in flags.items() if value is not None}
    degrees = degrees_of(given)
    line = engine_args_of(command_line, given, options)
    model, args, release, release_source = line.model, line.args, line.release, line.release_source
    if not model:
        raise InputError(
            "--model is missing: give a folder, a config.json, a catalogue id or a Hugging Face id"
        )
    named = any(options.get(name) for name in ("gpu", "gpu_memory", "compute_capability"))
    device = default_device if default_device is not None and not named else choose_device(options)
    config, header_warnings = load(model, args) if load else _load(model, args, options)
    return Inputs(
        model=model,
        config=add_draft(config, args, options, bundled_only=load is not None),
        args=args,
        degrees=degrees or (args.tensor_parallel_size,),
        device=device,
        used_by_others_bytes=used_by_others(device, options),
        release=release,
        release_source=release_source,
        concurrency=options.get("concurrency"),
        calibration=load_calibration(options.get("calibration")),
        warnings=(*line.notes, *header_warnings),
        notes=line.notes,
    )


def _load(model: str, args: EngineArgs, options: Mapping[str, Any]) -> tuple[ModelConfig, tuple[str, ...]]:
    from vllm_capacity.inputs.models import load_model

    config = load_model(
        model,
        revision=options.get("revision"),
        hf_overrides=args.hf_overrides,
        offline=bool(options.get("offline")),
    )
    return add_headers(config, model, options)


def add_draft(
    config: ModelConfig, args: EngineArgs, options: Mapping[str, Any], *, bundled_only: bool = False
) -> ModelConfig:
    """The config with that of the draft model which `--speculative-config` names, where it can be read."""
    if not args.other("speculative_config"):
        return config
    from vllm_capacity.inputs.models import with_draft

    return with_draft(config, args, offline=bool(options.get("offline")), bundled_only=bundled_only)


def add_headers(
    config: ModelConfig, model: str, options: Mapping[str, Any]
) -> tuple[ModelConfig, tuple[str, ...]]:
    """The config with what the checkpoint's headers say (`--weights`), and warnings. Raises InputError."""
    from vllm_capacity.inputs.checkpoint import load_headers, with_headers

    mode = str(options.get("weights") or "auto")
    with _shards_read(mode) as progress:
        headers, warnings = load_headers(
            model,
            mode,
            revision=options.get("revision"),
            offline=bool(options.get("offline")),
            progress=progress,
        )
    return (config if headers is None else with_headers(config, headers)), warnings


@contextmanager
def _shards_read(mode: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr while the headers of many shards arrive; nothing where stderr is no terminal."""
    import sys

    if mode != "headers" or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("safetensors headers"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("shards", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=total >= MANY_SHARDS)

        yield show


def degrees_of(given: dict[str, Any]) -> tuple[int, ...]:
    text = str(given.pop("tensor_parallel_size", "") or "")
    if not text:
        return ()
    try:
        degrees = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--tensor-parallel-size {text}: give one number or several with commas, for example 1,2,4"
        ) from None
    if min(degrees) < 1:
        raise InputError(f"--tensor-parallel-size {text}: must be at least 1")
    return tuple(dict.fromkeys(degrees))


def _split(command_line: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags that click did not know, and the pasted line: it starts at the first word that is no flag's value."""
    words = list(command_line)
    for index, word in enumerate(words):
        previous_is_flag = index > 0 and words[index - 1].startswith("-") and "=" not in words[index - 1]
        if word in ("vllm", "docker", "podman", "python", "python3", "env", "export", "sudo", "nohup") or (
            "=" in word and not word.startswith("-") and not previous_is_flag
        ):
            return words[:index], words[index:]
    if words and " " in words[-1] and "vllm" in words[-1]:
        return words[:-1], words[-1:]
    return words, []


def _release_hint(pasted: Sequence[str]) -> str | None:
    if not pasted:
        return None
    from vllm_capacity.inputs.command_line import release_hint

    return release_hint(pasted)


def choose_release(asked: str | None, hint: str | None) -> tuple[Release, str]:
    """--vllm-version, else the pasted image's tag, else the installed vLLM's, else the newest known; and why."""
    from vllm_capacity.releases import get_release, newest_release

    if asked:
        return get_release(asked), "--vllm-version"
    if hint:
        return get_release(hint), "the image's tag"
    installed = installed_vllm(tuple(sys.path))
    if installed:
        return get_release(installed), "installed"
    return newest_release(), "newest known; none is installed"


@lru_cache(maxsize=8)
def installed_vllm(path: tuple[str, ...]) -> str | None:
    """The version of the first vLLM on an import path, as `importlib.metadata` finds it but without its imports."""
    for folder in path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("vllm-") and name.endswith(".dist-info"):
                return name.removesuffix(".dist-info").split("-")[1].split("+")[0]
    return None


def choose_device(options: Mapping[str, Any]) -> Device:
    """--gpu, else --gpu-memory with --compute-capability, else the local GPU, else H100-80GB; `source` says which."""
    from vllm_capacity.inputs.gpus import DEFAULT_GPU, custom_device, find_device

    name, memory, capability = (
        options.get("gpu"),
        options.get("gpu_memory"),
        options.get("compute_capability"),
    )
    if name:
        if memory or capability:
            raise InputError("--gpu and --gpu-memory/--compute-capability exclude each other")
        return find_device(name)
    if memory or capability:
        if not (memory and capability):
            raise InputError(
                "--gpu-memory and --compute-capability belong together, for example 24GiB and 8.9"
            )
        return custom_device(_size("--gpu-memory", memory), _capability(capability))
    from vllm_capacity.inputs.local_gpu import local_device

    local = local_device()
    if local is not None:
        return local
    device = find_device(DEFAULT_GPU)
    return replace(device, source=f"no GPU given and none here: {DEFAULT_GPU}; {device.source}")


def _size(flag: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise InputError(f"{flag}: {error}") from None


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise InputError(f"--compute-capability {text}: write it as X.Y, for example 8.9")
    return int(major), int(minor)


def used_by_others(device: Device, options: Mapping[str, Any]) -> int:
    """Bytes that other processes hold: --used-memory, or the total less --free-memory."""
    free, used = options.get("free_memory"), options.get("used_memory")
    if free and used:
        raise InputError("--free-memory and --used-memory exclude each other")
    if used:
        n_bytes = _size("--used-memory", used)
    elif free:
        n_bytes = device.cuda_total_bytes - _size("--free-memory", free)
    else:
        return 0
    if not 0 <= n_bytes <= device.cuda_total_bytes:
        flag = "--used-memory" if used else "--free-memory"
        raise InputError(f"{flag} must lie between 0 and the GPU's {gib(device.cuda_total_bytes)}")
    return n_bytes


def _engine_args(
    given: Mapping[str, Any],
    own: Sequence[str],
    base: EngineArgs | None,
    options: Mapping[str, Any],
    release: Release,
) -> EngineArgs:
    """Flags of the pasted line, overridden by the command's own."""
    from vllm_capacity.inputs.command_line import parse_flags
    from vllm_capacity.inputs.engine_args import merge_engine_args

    read_files = bool(options.get("read_files", True))
    values: dict[str, Any] = parse_flags(own, release=release, read_files=read_files) if own else {}
    values.update(given)
    if options.get("usage"):
        values["usage"] = options["usage"]
    environment = dict(_pair(pair) for pair in options.get("environment") or ())
    if environment:
        values["environment"] = environment
    if options.get("allow_unmodelled"):
        values["allow_unmodelled"] = True
    return merge_engine_args(base, values, release=release)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InputError(f"--env {text}: write it as NAME=VALUE")
    return name, value
