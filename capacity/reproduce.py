"""The line that makes an answer again: this tool's options first, then the `vllm serve` line that was planned.

It names what would else be looked up on the machine (the release, the GPU) and never holds a credential.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from vllm_capacity.engine import EngineArgs
from vllm_capacity.inputs.command_line import emit_command_line
from vllm_capacity.inputs.environment import planned
from vllm_capacity.releases.release import Release

_CREDENTIALS = ("api_key", "hf_token")


def fit_to_show(args: EngineArgs, release: Release) -> EngineArgs:
    """The same plan without what others must not see: credentials, and variables that no plan depends on."""
    return replace(
        args,
        environment=planned(args.environment, release),
        others={name: value for name, value in args.others.items() if name not in _CREDENTIALS},
    )


def serve_line(model: str, args: EngineArgs, release: Release) -> str:
    """The `vllm serve` line as it may be handed on."""
    return emit_command_line(model, fit_to_show(args, release), release)


def reproducing_command(
    verb: str, options: Sequence[str], model: str, args: EngineArgs, release: Release
) -> str:
    """`verb` is plan or size; `options` are this tool's own, as words."""
    own = shlex.join(["vllm-capacity", verb, *options, "--vllm-version", release.version])
    return f"{own} -- {serve_line(model, args, release)}"
