"""docs/commands.md: every command with its options, read from the command line's own definitions."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc

import click
from vllm_capacity.cli import COMMANDS, group

INTRODUCTION = """\
# Commands

The same as `--help` of each command. Where a command plans, any other flag of `vllm serve` is accepted under its own name.
Bad input is one line on stderr and exit code 2; 130 is Ctrl-C, 143 SIGTERM, 141 a reader of the output that went away
(`| head`). `vllm-capacity --version` names the vLLM releases that it knows.

This page is written by `tools/write_docs.py`.
"""


def _paragraphs(command: click.Command) -> Iterator[str]:
    """The help: its examples (paragraphs after a \\b) as code, the rest as prose."""
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        lines = paragraph.splitlines()
        if lines and lines[0] == "\b":
            yield "```sh\n" + "\n".join(line.strip() for line in lines[1:]) + "\n```"
        else:
            yield " ".join(paragraph.split())


def _value(option: click.Option) -> str:
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        return ", ".join(f"`{choice}`" for choice in option.type.choices)
    words = {"integer": "N", "float": "X", "text": "TEXT", "path": "FILE"}
    return option.metavar or words.get(option.type.name.partition(" ")[0], option.type.name.upper())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _options(command: click.Command) -> Iterator[str]:
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if not options:
        return
    yield "| option | value | meaning |"
    yield "|---|---|---|"
    for option in options:
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        yield f"| {names} | {_cell(_value(option))} | {_cell(' '.join((option.help or '').split()))} |"


def page() -> str:
    context = click.Context(group, info_name="vllm-capacity")
    parts = [INTRODUCTION]
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None, name
        parts.append(
            "\n\n".join([f"## {name}", *_paragraphs(command), "\n".join(_options(command))]).rstrip() + "\n"
        )
    return "\n".join(parts)
