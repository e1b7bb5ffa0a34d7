"""The flags of `vllm serve` of each release, what argparse is told about them and what they do to GPU memory.

`generated.json` is written by `tools/generate_flags.py` from the wheels; `effects.py` is kept by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.flags.effects import EFFECTS, KEY_EFFECTS, Effect
from vllm_capacity.releases.release import Release

__all__ = ["Flag", "ParsedOption", "check_keys", "flags_for", "resolve_option"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag of one release. `name` is its long name in snake case, `aliases` all spellings that argparse
    knows.

    `kind` is how its value is read: bool (also --no-NAME), store_true, bool_or_str (value optional), int,
    human_int (32k = 32,000, 32K = 32,768), human_int_or_auto, float, str, list (one or more values, each an
    `item`), append, json, json_or_str, config (JSON of a config class). `lower`: the value is put in lower
    case with '-' as '_'.
    """

    name: str
    aliases: tuple[str, ...]
    kind: str
    effect: Effect
    reason: str
    choices: tuple[str | int, ...] = ()
    item: str = "str"
    lower: bool = False


@dataclass(frozen=True, slots=True)
class ParsedOption:
    """One option of a command line: `--no-x` is `negated`; `-cc.mode=3` has path ('mode',) and value '3'.

    `append` is true for `--list.key+ a,b`. `value` is None if it does not stand in the same word.
    """

    flag: Flag
    negated: bool = False
    path: tuple[str, ...] = ()
    append: bool = False
    value: str | None = None


@cache
def _data() -> Mapping[str, Any]:
    data: dict[str, Any] = json.loads(Path(__file__).with_name("generated.json").read_bytes())
    data["order"] = {version: index for index, version in enumerate(data["releases"])}
    return data


def _generated() -> tuple[dict[str, int], dict[str, list[dict[str, Any]]]]:
    """Releases with their place in time, and the runs of each flag."""
    return _data()["order"], _data()["flags"]


@cache
def flags_for(release: Release) -> Mapping[str, Flag]:
    """Every flag of that release's `vllm serve`, by name."""
    order, rows = _generated()
    now = order[release.version]
    return {
        name: _flag(name, run)
        for name, runs in rows.items()
        for run in runs
        if order[run["since"]] <= now <= order[run["until"]]
    }


def _flag(name: str, run: Mapping[str, Any]) -> Flag:
    effect, reason = EFFECTS[name]
    return Flag(
        name=name,
        aliases=tuple(run["options"]),
        kind=run["kind"],
        effect=effect,
        reason=reason,
        choices=tuple(run.get("choices", ())),
        item=run.get("item", "str"),
        lower=run.get("lower", False),
    )


@cache
def _spellings(release: Release) -> Mapping[str, tuple[Flag, bool]]:
    """What argparse would match: every option string, with --no-NAME for booleans -> (flag, negated)."""
    found: dict[str, tuple[Flag, bool]] = {}
    for flag in flags_for(release).values():
        for option in flag.aliases:
            found[option] = (flag, False)
            if flag.kind == "bool" and option.startswith("--"):
                found["--no-" + option[2:]] = (flag, True)
    return found


def resolve_option(word: str, release: Release) -> ParsedOption:
    """The flag that vLLM's parser takes `word` for (utils/argparse_utils.py: FlexibleArgumentParser;
    argparse).

    Underscores count as dashes up to the first dot; a long name may be cut short while it stays unambiguous;
    `-O3` is `--optimization-level 3`; `--config.key value` reaches into JSON. Raises InputError for anything
    else.
    """
    if word.startswith("-O") and word != "-O":
        level = word[3:] if word[2] == "=" else word[2:]
        return ParsedOption(flags_for(release)["optimization_level"], value=level)
    if word == "-O":
        return ParsedOption(flags_for(release)["optimization_level"])
    key, equals, value = word.partition("=")
    key, append = (key[:-1], True) if key.endswith("+") and "." in key else (key, False)
    head, *path = key.split(".") if key.startswith("-") else [key]
    if head.startswith("--"):
        head = "--" + head[2:].replace("_", "-")
    flag, negated, rest = _match(head, release)
    if path and flag.kind not in ("config", "json", "json_or_str"):
        raise InputError(f"{word}: {flag.aliases[0]} takes no keys; give it a value")
    attached = value if equals else rest
    return ParsedOption(flag, negated=negated, path=tuple(path), append=append, value=attached)


def _match(option: str, release: Release) -> tuple[Flag, bool, str | None]:
    """(flag, negated, value written right after a one-letter option): argparse's order of trying."""
    spellings = _spellings(release)
    if option in spellings:
        return *spellings[option], None
    if not option.startswith("--") and option[:2] in spellings:
        return *spellings[option[:2]], option[2:]
    starts = [name for name in spellings if name.startswith(option)] if len(option) > 1 else []
    targets = {spellings[name] for name in starts}
    if len(targets) == 1:
        return *targets.pop(), None
    if targets:
        raise InputError(f"ambiguous option: {option} could match {', '.join(sorted(starts))}")
    raise InputError(_unknown(option, release))


def _unknown(option: str, release: Release) -> str:
    import difflib  # only on the way to an error

    _, rows = _generated()
    for runs in rows.values():
        if option in (spelling for run in runs for spelling in run["options"]):
            spans = [run for run in runs if option in run["options"]]
            first, last = spans[0]["since"], spans[-1]["until"]
            span = f"{first} to {last}" if first != last else first
            return (
                f"{option} is not a flag of vLLM {release.version}; it is one of {span} (see --vllm-version)"
            )
    near = difflib.get_close_matches(option, _spellings(release), n=1)
    hint = f"; did you mean {near[0]}?" if near else "; see `vllm serve --help=all`"
    return f"{option} is not a flag of vLLM {release.version}{hint}"


def check_keys(
    flag: str, value: Mapping[str, Any], release: Release, *, allow_unmodelled: bool = False
) -> tuple[str, ...]:
    """Refuse keys of a JSON config that cannot be planned; return those whose effect on memory is left out.

    `flag` is the flag's name; configs whose keys are not listed one by one pass. Raises InputError for a key
    that the release does not know and, unless `allow_unmodelled`, for one that may change memory and is not
    modelled.
    """
    order, rows = _data()["order"], _data()["keys"]
    now = order[release.version]
    known = {
        key
        for key, runs in rows.items()
        if any(order[first] <= now <= order[last] for first, last, _ in runs)
    }
    left_out: list[str] = []
    for key, item in value.items():
        name = f"{flag}.{key}"
        if name not in known:
            if not any(row.startswith(f"{flag}.") for row in rows):
                return ()
            raise InputError(_unknown_key(name, known, release))
        effect, reason = KEY_EFFECTS[name]
        if effect == "unmodelled" and isinstance(item, Mapping) and item:
            inner = [KEY_EFFECTS.get(f"{name}.{key}", (effect, reason)) for key in item]
            effect = effect if any(each[0] == "unmodelled" for each in inner) else "no_effect"
        if effect == "unmodelled" and not allow_unmodelled:
            head, dot, tail = name.partition(".")
            raise InputError(
                f"--{head.replace('_', '-')}{dot}{tail} may change memory in a way that is not modelled "
                f"({reason}); leave it out, or pass --allow-unmodelled to plan without it"
            )
        left_out += [name] if effect == "unmodelled" else []
        if isinstance(item, Mapping):
            left_out += check_keys(name, item, release, allow_unmodelled=allow_unmodelled)
    return tuple(left_out)


def _unknown_key(name: str, known: set[str], release: Release) -> str:
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name} is not a key that vLLM {release.version} knows{hint}"
