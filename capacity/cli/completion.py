"""`vllm-capacity completion`: the script that teaches a shell to complete."""

from __future__ import annotations

import click
from vllm_capacity.errors import InputError

PROGRAM = "vllm-capacity"
VARIABLE = "_VLLM_CAPACITY_COMPLETE"
"""click's own name for it: the script sets it to ask for completions."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that makes a shell complete commands, flags, models, GPUs and releases.

    \b
    vllm-capacity completion bash > ~/.local/share/bash-completion/completions/vllm-capacity
    vllm-capacity completion zsh > ~/.zfunc/_vllm-capacity
    vllm-capacity completion fish > ~/.config/fish/completions/vllm-capacity.fish

    A new shell reads it; zsh needs that folder in fpath before compinit.
    """
    from click.shell_completion import ShellComplete, get_completion_class
    from vllm_capacity.cli import group

    shells = get_completion_class(shell)
    if shells is None:
        raise InputError(f"completion {shell}: this version of click cannot write it; use bash, zsh or fish")
    click.echo(ShellComplete.source(shells(group, {}, PROGRAM, VARIABLE)))
