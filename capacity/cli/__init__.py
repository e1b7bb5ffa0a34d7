"""The command line: one module per command, each a thin shell over the library.

Commands are imported when they are called, so that `plan` pays for nothing but itself. Bad input is one line on stderr and
exit code 2, never a traceback.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click
from vllm_capacity._version import __version__
from vllm_capacity.cli import process
from vllm_capacity.errors import CapacityError

COMMANDS = {
    "plan": "Say whether a model starts, how much KV cache it gets, and where every byte goes.",
    "size": "Say which GPUs hold a model and its load, how many, in which layout, and with how much room.",
    "compare": "Put two plans side by side, with the difference per term.",
    "explain": "Say where the memory of a run went, why it failed, and the smallest change that fixes it.",
    "validate": "Run the real vLLM on this machine's GPUs and compare what it used with the plan.",
    "refine": "Fit correction factors from the RECORDS that `validate` wrote.",
    "dry-run": "Run vLLM's own start-up without a GPU and say what it allocates.",
    "web": "Serve the calculator as a page and an HTTP API.",
    "models": "Search the bundled model catalogue by part of a name.",
    "gpus": "Search the GPU catalogue by part of a name.",
    "schema": "Print the JSON Schema of what a command prints with `--json`.",
    "completion": "Print the script that makes a shell complete commands, flags, models, GPUs and releases.",
}
"""Command -> first sentence of its help; the module of the same name holds it as `command`."""

BAD_INPUT = 2


class _LazyGroup(click.Group):
    """Lists commands from a table and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"vllm_capacity.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from vllm_capacity.releases import supported_releases

    click.echo(f"vllm-capacity {__version__} (vLLM {', '.join(supported_releases())})")
    ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
              help="Show this tool's version and the vLLM releases it knows.")  # fmt: skip
def group() -> None:
    """Will this model start under vLLM on these GPUs, how much KV cache will it get, and where does every byte go?

    \b
    vllm-capacity plan --model Qwen/Qwen3-30B-A3B --gpu H100-80GB --tp 2
    vllm-capacity plan -- vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 32k

    Exit codes of every command: 2 bad input (one line on stderr), 130 Ctrl-C, 143 SIGTERM, 141 the reader of the output
    went away (`| head`); the others are told by each command.
    """


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns through `sys.exit` with its exit code."""
    trouble = process.prepare()
    sys.exit(_fail(trouble) if trouble else run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Runs the command line; gives the exit code. Every deliberate error becomes one line on stderr."""
    try:
        result: Any = group.main(args=arguments, prog_name="vllm-capacity", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt) as stop:
        if isinstance(
            stop.__cause__, EOFError
        ):  # click's idea of an interruption; nothing here asks questions
            return _fail(f"a file ends too early: {stop.__cause__}")
        return _fail("interrupted", process.INTERRUPTED)
    except process.Terminated as stop:
        return _fail(f"ended by {stop}", stop.code)
    except click.ClickException as error:
        return _fail(_usage(error))
    except CapacityError as error:
        return _fail(str(error))
    except SystemExit as stop:
        if stop.code != 1 or "_VLLM_CAPACITY_COMPLETE" in os.environ:
            raise
        return _reader_gone()  # how click and rich report a broken pipe
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:
        process.abandon_output()
        return _fail(f"{error.filename or 'the output'} cannot be read or written: {error.strerror or error}")
    except RecursionError:
        return _fail("the input is nested too deeply")
    except MemoryError:
        return _fail("out of memory: the input is too large for this machine")


def _reader_gone() -> int:
    """The reader of our output went away (`| head`): nothing to say, and no verdict by the exit code either."""
    process.abandon_output()
    return process.BROKEN_PIPE


def _usage(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{message} (see `{error.ctx.command_path} --help`)"
    return message


def _fail(message: str, code: int = BAD_INPUT) -> int:
    print(f"vllm-capacity: error: {message}", file=sys.stderr)
    return code
