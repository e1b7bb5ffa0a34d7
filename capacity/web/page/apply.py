"""From a suggestion's flags, or a pasted command, to the fields of the page: one click changes what it says, and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from vllm_capacity.errors import CapacityError
from vllm_capacity.inputs.command_line import emit_command_line
from vllm_capacity.inputs.engine_args import parse_engine_args
from vllm_capacity.releases import supported_releases
from vllm_capacity.releases.release import Release
from vllm_capacity.web.page.resolve import FLAG_OF, UNMODELLED, given_flags, read_flags
from vllm_capacity.web.page.state import PageState, with_texts

_FIELD_OF = {flag: field for field, flag in FLAG_OF.items()}


def apply_flags(state: PageState, flags: Sequence[str], release: Release) -> PageState:
    """The state with the flags of a suggestion in force. Raises InputError where the state's own flags do not parse."""
    changed = read_flags(shlex.join(flags), release)
    mine = read_flags(state.flags, release)
    return _with_values(
        state, given_flags(mine.args) | given_flags(changed.args), mine.args.environment, release
    )


def absorb(state: PageState, release: Release, *, only_commands: bool = False) -> PageState:
    """The state with a whole command of the flags' box, and flags that have a field of their own, put where they belong.

    The same state where the box does not parse yet: it is read as typed then.
    """
    if not state.flags.strip():
        return state
    try:
        flags = read_flags(state.flags, release)
        values = given_flags(flags.args)
        if flags.model is None and (only_commands or not (values.keys() & _FIELD_OF.keys())):
            return state
        version = flags.version if flags.version in supported_releases() else None
        state = _with_values(state, values, flags.args.environment, release)
    except CapacityError:
        return state
    if flags.model is not None:
        state = replace(state, model=flags.model, config="")
    return replace(state, release=version) if version else state


def use_layout(state: PageState, gpu: str, command: str, release: Release) -> PageState:
    """The state that plans one row of the comparison for `state`: its GPU and its `vllm serve` line."""
    bare = PageState(release=state.release, concurrency=state.concurrency, gpu=gpu, flags=command)
    taken = absorb(bare, release)
    allow = f" {UNMODELLED}" if UNMODELLED in state.flags else ""
    return replace(taken, model=state.model, config=state.config, flags=(taken.flags + allow).strip())


def _with_values(
    state: PageState, values: dict[str, object], environment: object, release: Release
) -> PageState:
    fields = {_FIELD_OF[flag]: _text(flag, values[flag]) for flag in values if flag in _FIELD_OF}
    rest = {name: value for name, value in values.items() if name not in _FIELD_OF}
    args = parse_engine_args({**rest, "environment": environment, "allow_unmodelled": True}, release=release)
    line = emit_command_line("MODEL", args, release)
    before, _, after = line.partition("vllm serve MODEL")
    words = [before.strip(), after.strip(), UNMODELLED if values.get("allow_unmodelled") else ""]
    return with_texts(state, {**fields, "flags": " ".join(word for word in words if word)})


def _text(flag: str, value: object) -> str:
    if flag == "max_model_len" and value == -1:
        return "auto"
    if flag == "gpu_memory_utilization" and isinstance(value, float):
        return f"{value:g}"
    return str(value)
