"""Pasted start-up lines: what vLLM's own parser would read from them, and the line that a plan stands for.

`vllm serve ...`, `python -m vllm.entrypoints.openai.api_server ...`, `docker run ... vllm/vllm-openai:vX
...`, with variables in front. Flags are read as `FlexibleArgumentParser` does (utils/argparse_utils.py,
0.19.0 to 0.33.0).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.containers import ENGINES, read_run
from vllm_capacity.inputs.engine_args import parse_engine_args, read_json
from vllm_capacity.inputs.flags import Flag, ParsedOption, flags_for, resolve_option
from vllm_capacity.inputs.shell_words import Command, split_text, split_words
from vllm_capacity.releases import get_release, newest_release
from vllm_capacity.releases.release import Release

DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
"""What `vllm serve` without a model serves (config/model.py: ModelConfig.model, 0.19.0 to 0.33.0)."""

_WRAPPERS = ("sudo", "nohup", "exec", "time", "uv", "run", "stdbuf", "-E", "-oL", "-eL")
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_UNSET = re.compile(r"\$\{?[A-Za-z_]")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY", re.IGNORECASE)
_SECRET_FLAGS = frozenset({"api_key", "hf_token"})


@dataclass(frozen=True, slots=True)
class PastedCommand:
    """`release_hint` is the version that the image's tag names; `notes` say what of the line was left out."""

    model: str
    args: EngineArgs
    release_hint: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Start:
    """The part that vLLM's parser sees."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    version: str | None
    notes: tuple[str, ...]


def parse_command_line(
    line: str | Sequence[str], *, release: Release | None = None, read_files: bool = True
) -> PastedCommand:
    """Reads pasted text, or words that a shell has split.

    Flags are those of `release`; without it of the release that the image's tag names, else of the newest.
    Without `read_files`, `--config FILE` is refused.
    Raises InputError, which names the flag and the nearest real one where it is unknown.
    """
    start = _find_start(line)
    if release is None:
        release = get_release(start.version) if start.version else newest_release()
    notes = list(start.notes)
    values = _parse(start.words, release, notes, serve=True, read_files=read_files)
    model = values.pop("model", None)
    if model is None:
        model = DEFAULT_MODEL
        notes.append(f"the line names no model: vLLM serves its default, {DEFAULT_MODEL}")
    values["environment"] = {n: v for n, v in start.environment.items() if not _SECRET.search(n)}
    values["allow_unmodelled"] = True
    args = parse_engine_args(values, release=release)
    return PastedCommand(str(model), _lenient(args), start.version, tuple(notes))


def release_hint(line: str | Sequence[str]) -> str | None:
    """The vLLM version that the image's tag names (`latest` names none)."""
    return _find_start(line).version


def parse_flags(words: Sequence[str], *, release: Release, read_files: bool = True) -> dict[str, Any]:
    """Values by flag name of vLLM flags without a command in front; a model must not be among them.

    Without `read_files`, `--config FILE` is refused.
    """
    return _parse(tuple(words), release, [], serve=False, read_files=read_files)


# -- finding vLLM's part -------------------------------------------------------------------------------------


def _find_start(line: str | Sequence[str]) -> _Start:
    if isinstance(line, str):
        commands = split_text(line)
    elif len(line) == 1 and " " in line[0]:
        commands = split_text(line[0])
    else:
        commands = (split_words(line),)
    starts = [start for command in commands if (start := _start(command)) is not None]
    if not starts:
        raise InputError(
            "no vLLM start-up in the pasted text: it must hold `vllm serve MODEL ...`, `python -m "
            "vllm.entrypoints.openai.api_server ...` or `docker run ... vllm/vllm-openai:vX ...`"
        )
    if len(starts) > 1:
        raise InputError(f"the pasted text starts vLLM {len(starts)} times; paste one start-up")
    return starts[0]


def _start(command: Command) -> _Start | None:
    """vLLM's part of one command; None if it starts something else."""
    words = list(command.words)
    while words and words[0] in _WRAPPERS:
        words.pop(0)
    if not words:
        return None
    program = words[0].rpartition("/")[2]
    if program in ENGINES and "run" in words:
        container = read_run(words[1:])
        inner = _entry(list(container.words)) if container.words else []
        if inner is None:
            inner = list(container.words)
        environment = {**container.environment}
        return _Start(tuple(inner), environment, container.version, container.notes)
    entry = _entry(words)
    return None if entry is None else _Start(tuple(entry), command.environment, None, ())


def _entry(words: list[str]) -> list[str] | None:
    """The words after `vllm serve` or the server's module; None if the command is neither."""
    inner = split_words(words)
    words = list(inner.words)
    program = words[0].rpartition("/")[2] if words else ""
    if program == "vllm":
        if words[1:2] != ["serve"]:
            what = words[1] if len(words) > 1 else ""
            raise InputError(f"vllm {what}: only `vllm serve` starts a server that can be planned")
        return words[2:]
    if program.startswith("python") and "-m" in words:
        index = words.index("-m")
        module = words[index + 1] if index + 1 < len(words) else ""
        rest = words[index + 2 :]
        if module in _MODULES:
            return rest
        if module in ("vllm.entrypoints.cli.main", "vllm") and rest[:1] == ["serve"]:
            return rest[1:]
    return None


# -- vLLM's parser -------------------------------------------------------------------------------------------


def _parse(
    words: tuple[str, ...], release: Release, notes: list[str], *, serve: bool, read_files: bool
) -> dict[str, Any]:
    """Flag values by name. `FlexibleArgumentParser.parse_args`: the last one counts, dotted keys become
    one JSON.
    """
    words = _with_config_file(words, read_files)
    values: dict[str, Any] = {}
    dotted: dict[str, tuple[Flag, dict[str, Any]]] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "--":
            continue
        if not word.startswith("-") or _NUMBER.match(word):
            if not serve or "model" in values:
                raise InputError(f"unrecognized argument: {word!r:.60}; a value stands after its flag")
            values["model"] = _known(word, None)
            continue
        option = resolve_option(word, release)
        if option.path:
            text, position = _one_value(word, option, words, position)
            _merge(dotted, word, option, text)
            continue
        value, position = _value(word, option, words, position)
        name = option.flag.name
        if name in _SECRET_FLAGS:
            continue
        if option.flag.kind == "append":
            value = (*values.get(name, ()), value)
        values[name] = value
    for flag, keys in dotted.values():
        if flag.name in values:
            notes.append(f"{flag.aliases[0]} is given as a whole and by keys: vLLM reads the keys only")
        values[flag.name] = keys
    values.pop("config", None)
    return values


def _value(word: str, option: ParsedOption, words: Sequence[str], position: int) -> tuple[Any, int]:
    flag = option.flag
    if flag.kind in ("bool", "store_true"):
        if option.value is not None:
            raise InputError(f"{word}: {flag.aliases[0]} takes no value; write {flag.aliases[0]} or --no-...")
        return not option.negated, position
    if flag.kind == "bool_or_str":
        if option.value is None and (position >= len(words) or _is_option(words[position])):
            return True, position
        return _one_value(word, option, words, position)
    if flag.kind == "list":
        if option.value is not None:
            return (_known(option.value, flag),), position
        end = position
        while end < len(words) and not _is_option(words[end]):
            end += 1
        if end == position:
            raise InputError(f"{word}: expected at least one value")
        return tuple(_known(w, flag) for w in words[position:end]), end
    return _one_value(word, option, words, position)


def _one_value(word: str, option: ParsedOption, words: Sequence[str], position: int) -> tuple[str, int]:
    if option.value is not None:
        return _known(option.value, option.flag), position
    if position >= len(words) or (_is_option(words[position]) and not option.path):
        raise InputError(f"{word}: expected a value")
    return _known(words[position], option.flag), position + 1


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and " " not in word and not _NUMBER.match(word)


def _known(word: str, flag: Flag | None) -> str:
    """The word; InputError where it holds a shell variable that the text does not set and that matters."""
    if _UNSET.search(word) and (flag is None or flag.effect != "no_effect"):
        raise InputError(f"{word!r:.60}: the pasted text does not set this variable; write its value")
    return word


def _merge(
    dotted: dict[str, tuple[Flag, dict[str, Any]]], word: str, option: ParsedOption, text: str
) -> None:
    """Dotted keys of one spelling add up to one object; a list grows (`recursive_dict_update`)."""
    value: Any
    if option.append:
        value = text.split(",")
    else:
        try:
            value = read_json(text)
        except ValueError:
            value = text
    for key in reversed(option.path):
        value = {key: value}
    spelling = word.partition("=")[0].partition(".")[0].replace("_", "-")
    _update(dotted.setdefault(spelling, (option.flag, {}))[1], value)


def _update(target: dict[str, Any], update: Mapping[str, Any]) -> None:
    for key, value in update.items():
        old = target.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            _update(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            target[key] = old + value
        else:
            target[key] = value


def _with_config_file(words: tuple[str, ...], read_files: bool) -> tuple[str, ...]:
    """`--config FILE`: its entries stand before the flags of the line (`_pull_args_from_config`), so the
    line wins.
    """
    for index, word in enumerate(words):
        if word == "--config" or word.startswith("--config="):
            if not read_files:
                raise InputError("--config names a file, which is not read here; write its flags out")
            attached = word.partition("=")[2]
            path = attached or (words[index + 1] if index + 1 < len(words) else "")
            if not path:
                raise InputError("--config: no config file specified")
            rest = words[:index] + words[index + (1 if attached else 2) :]
            model = rest[:1] if rest and not rest[0].startswith("-") else ()
            entries = _config_words(Path(path))
            if model and "--model" in entries:
                at = entries.index("--model")
                del entries[at : at + 2]
            return (*model, *entries, *rest[len(model) :])
    return words


def _config_words(path: Path) -> list[str]:
    """`load_config_file`: a flat YAML file as flags; true becomes the bare flag, false and empty lists
    nothing.
    """
    from vllm_capacity.inputs.text_files import read_yaml  # few lines need it

    if path.suffix not in (".yaml", ".yml"):
        raise InputError(f"--config {path}: the file must be of a yaml or yml type")
    entries = read_yaml(path, f"--config {path}")
    if not isinstance(entries, dict):
        raise InputError(f"--config {path} must map flags to values")
    words: list[str] = []
    for key, value in entries.items():
        if value is False or value == []:
            continue
        words.append(f"--{key}")
        if value is True:
            continue
        if isinstance(value, dict):
            try:
                words.append(json.dumps(value))
            except TypeError as error:
                raise InputError(f"--config {path}: {key} holds what JSON cannot ({error})") from None
        else:
            words += [str(item) for item in (value if isinstance(value, list) else [value])]
    return words


def _lenient(args: EngineArgs) -> EngineArgs:
    """Pasted flags that are not modelled stay in `others`; `merge_engine_args` decides about them."""
    others = {n: v for n, v in args.others.items() if n != "allow_unmodelled"}
    return replace(args, others=others)


# -- emission ------------------------------------------------------------------------------------------------


def emit_command_line(model: str, args: EngineArgs, release: Release) -> str:
    """The `vllm serve` line that `parse_command_line` reads back as `model` and `args` (usage 'server').

    Only what differs from "not given" is written. Raises InputError for a flag that the release does not
    have.
    """
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(args.environment.items())]
    words += ["vllm", "serve", shlex.quote(model)]
    known = flags_for(release)
    given: dict[str, Any] = {}
    for item in fields(EngineArgs):
        if item.name in ("usage", "environment", "others"):
            continue
        value = getattr(args, item.name)
        default = {} if item.name in ("compilation_config", "hf_overrides") else item.default
        if value is not None and value != default:
            given[item.name] = value
    given.update((n, v) for n, v in args.others.items() if v is not None and n != "allow_unmodelled")
    for name, value in given.items():
        flag = known.get(name)
        if flag is None:
            raise InputError(f"--{name.replace('_', '-')} is not a flag of vLLM {release.version}")
        words += [shlex.quote(word) for word in _emit(flag, value)]
    return " ".join(words)


def _emit(flag: Flag, value: Any) -> list[str]:
    option = next((o for o in flag.aliases if o.startswith("--")), flag.aliases[0])
    if flag.kind in ("bool", "store_true"):
        if value:
            return [option]
        return ["--no-" + option[2:]] if flag.kind == "bool" else []
    if flag.kind == "bool_or_str" and value is True:
        return [option]
    if flag.kind == "list":
        texts = [str(item) for item in (value if isinstance(value, (list, tuple)) else [value])]
        return _pair(option, texts[0]) if len(texts) == 1 else [option, *texts] if texts else []
    if flag.kind == "append":
        return [word for item in value for word in _pair(option, str(item))]
    if flag.kind == "human_int_or_auto" and value == -1:
        return [option, "auto"]
    if isinstance(value, (Mapping, list, tuple)):
        return _pair(option, json.dumps(value, sort_keys=True))
    return _pair(option, repr(value) if isinstance(value, float) else str(value))


def _pair(option: str, text: str) -> list[str]:
    return [f"{option}={text}"] if _is_option(text) or text == "" else [option, text]
