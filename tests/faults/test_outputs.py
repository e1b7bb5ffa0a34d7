"""Where the output goes: full disks, closed and broken pipes, odd locales, narrow terminals, no colours."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from faults.running import COMMAND, MODEL, environment, one_line, run

SIZE = (
    "size",
    "--model",
    "Qwen/Qwen3-8B",
    "--gpu",
    "H100-80GB",
    "--max-model-len",
    "8192",
    "--concurrency",
    "8",
)
COMMANDS = {
    "plan": ("plan", *MODEL),
    "plan --json": ("plan", *MODEL, "--json"),
    "plan --explain": ("plan", *MODEL, "--explain", "weights"),
    "plan --emit": ("plan", *MODEL, "--emit", "serve"),
    "size": SIZE,
    "compare": ("compare", "--tp 1", "--tp 2", *MODEL),
    "models": ("models",),
    "gpus": ("gpus", "--json"),
    "schema": ("schema",),
    "help": ("plan", "--help"),
    "version": ("--version",),
}
PLAIN_ASCII = {
    "C without UTF-8 mode": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "POSIX": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "ASCII asked for": {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"},
}
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_under_the_output_is_one_line(name: str) -> None:
    with Path("/dev/full").open("w") as full:
        one_line(run(*COMMANDS[name], stdout=full), "No space left on device")


def test_a_closed_output_is_one_line() -> None:
    closed = ("sh", "-c", 'exec "$@" >&-', "sh")
    one_line(run(*COMMANDS["plan"], prefix=closed), "standard output is closed")


def test_with_all_streams_closed_no_file_takes_their_numbers(tmp_path: Path) -> None:
    """A plot would else be opened as file 1 or 2, where messages go."""
    plot = tmp_path / "plot.svg"
    done = run(*COMMANDS["plan"], "--plot", str(plot), prefix=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"))
    assert done.code == 2
    assert not plot.exists()


def test_an_answer_without_an_error_stream_is_still_given() -> None:
    done = run(*COMMANDS["plan --json"], prefix=("sh", "-c", 'exec "$@" 2>&-', "sh"))
    assert done.code == 0
    assert json.loads(done.out)


@pytest.mark.parametrize("name", ["plan", "plan --json", "size", "gpus", "schema"])
def test_a_reader_that_goes_away_is_no_error(name: str) -> None:
    """`| head -1`: nothing on stderr, and an exit code that is no verdict."""
    reading, writing = os.pipe()
    os.close(reading)  # the reader is gone before the first byte, so that every command meets it
    with os.fdopen(writing, "w") as gone:
        done = run(*COMMANDS[name], stdout=gone)
    assert (done.code, done.error) == (141, "")


def test_head_gets_its_line() -> None:
    script = 'set -o pipefail; "$@" | head -1'
    done = subprocess.run(["bash", "-c", script, "bash", *COMMAND, "gpus"], capture_output=True, text=True,
                          env=environment(), check=False)  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.startswith("name ")
    assert done.returncode in (0, 141)


@pytest.mark.parametrize("locale", PLAIN_ASCII)
@pytest.mark.parametrize("name", ["plan", "plan --json", "size", "compare", "help"])
def test_a_locale_without_utf8_loses_no_figure(name: str, locale: str) -> None:
    plain = run(*COMMANDS[name], env=environment(**PLAIN_ASCII[locale]))
    usual = run(*COMMANDS[name], env=environment(LC_ALL="C.UTF-8"))
    assert (plain.code, plain.error) == (0, "")
    assert plain.out.isascii()
    figures = re.compile(r"\d+(?:[.,]\d+)*")
    if name != "help":
        assert figures.findall(plain.out) == figures.findall(usual.out)


def test_file_names_outside_the_locale_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "modèle-模型"
    folder.mkdir()
    done = run("plan", "--model", str(folder), env=environment(**PLAIN_ASCII["POSIX"]))
    one_line(done, "has no config.json")


@pytest.mark.parametrize("columns", [40, 20, 1])
@pytest.mark.parametrize("name", ["plan", "size", "compare"])
def test_narrow_terminals_are_kept_to(name: str, columns: int) -> None:
    """No line of the report proper is wider; a line to be copied (the command) is never broken."""
    done = run(*COMMANDS[name], env=environment(COLUMNS=str(columns), LC_ALL="C.UTF-8"))
    assert (done.code, done.error) == (0, "")
    if columns == 40:
        lines = [
            line
            for line in done.out.split("\n")
            if not re.match(r"(vllm serve|[A-Z_]+=\S+ vllm serve) ", line)
        ]
        assert max(map(len, lines)) <= columns, max(lines, key=len)


def on_a_terminal(*arguments: str, columns: int = 100, **changes: str) -> str:
    """What the command prints on a real pseudo-terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, *arguments], stdout=theirs, stderr=theirs,
                          env=environment(COLUMNS=str(columns), **changes)) as process:  # fmt: skip
        os.close(theirs)
        pieces = []
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the terminal's other end is closed
                break
            if not piece:
                break
            pieces.append(piece)
        assert process.wait(timeout=60) == 0
    os.close(ours)
    return b"".join(pieces).decode().replace("\r\n", "\n")


@pytest.mark.parametrize("name", ["plan", "size"])
def test_colours_on_a_terminal_and_none_where_they_are_unwanted(name: str) -> None:
    coloured = on_a_terminal(*COMMANDS[name], TERM="xterm-256color")
    assert re.search(r"\x1b\[[0-9;]*3[0-9]m", coloured)
    dumb = on_a_terminal(*COMMANDS[name], TERM="dumb")
    assert "\x1b" not in dumb
    plain = on_a_terminal(*COMMANDS[name], TERM="xterm-256color", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])m", plain)
    piped = run(*COMMANDS[name], env=environment(TERM="xterm-256color", COLUMNS="100", LC_ALL="C.UTF-8"))
    assert "\x1b" not in piped.out
    assert ESCAPE.sub("", coloured).rstrip().endswith(piped.out.rstrip()[-200:])
