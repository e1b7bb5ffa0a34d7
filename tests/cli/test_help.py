"""`--help` of every command: one sentence first, two examples that run, and no option without words."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from vllm_capacity import __version__
from vllm_capacity.cli import COMMANDS, group, run
from vllm_capacity.releases import supported_releases

DATA = Path(__file__).parents[1] / "data"
FILES = {
    "server.log": DATA / "logs" / "scenarios" / "sampler_warmup.log",
    "records.jsonl": DATA / "records" / "h200_vllm_0.26.0.jsonl",
    "more-records.jsonl": DATA / "records" / "h200_vllm_0.26.0.jsonl",
}
REQUESTS = '{"prompt_tokens": 900, "output_tokens": 80, "start": 0, "end": 3}\n' * 9
SHORTER = {"size": ["--max-gpus", "8", "--no-variants", "--no-sensitivity"]}
"""Added to the examples of a command that takes long; docs/sizing.md's are run as they stand."""
NEEDS = {"vllm-capacity dry-run": "/opt/vllm/bin/python", "vllm-capacity validate --model": "vLLM"}
"""Examples that need vLLM: here they end with one line on stderr that names what is missing."""
SERVES = "vllm-capacity web"
"""Runs until it is stopped; tests/web starts it."""


def command_of(name: str) -> click.Command:
    command: click.Command = import_module(f"vllm_capacity.cli.{name.replace('-', '_')}").command
    return command


def examples(name: str) -> list[str]:
    """The lines under \\b, the first block of a command's help."""
    text = command_of(name).help or ""
    block = text.partition("\b\n")[2].partition("\n\n")[0]
    return [line.strip() for line in block.splitlines() if line.strip()]


EXAMPLES = [(name, line) for name in COMMANDS for line in examples(name)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, source in FILES.items():
        shutil.copyfile(source, tmp_path / name)
    (tmp_path / "requests.jsonl").write_text(REQUESTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_help_starts_with_the_sentence_that_the_list_of_commands_shows(name: str):
    first = " ".join((command_of(name).help or "").split("\n\n")[0].split())
    assert first == COMMANDS[name]
    assert first.endswith(".")
    assert first.count(". ") == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_two_examples(name: str):
    lines = examples(name)
    assert len(lines) >= 2
    assert all(re.search(rf"(^|\| )vllm-capacity {name}\b", line) for line in lines), lines


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_and_what_it_takes(name: str):
    for option in command_of(name).params:
        if isinstance(option, click.Option):
            assert option.help, option.opts
            assert (
                option.is_flag or option.metavar or not isinstance(option.type, click.types.StringParamType)
            ), f"{option.opts[0]} takes a word: which? (metavar)"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_several_commands_take_is_written_alike(name: str):
    """The same name takes the same kind of value, and the first sentence says the same; a command may add to it."""
    several = {"--gpu": {"NAME", "A,B"}}
    mine = {p.opts[0]: p for p in command_of(name).params if isinstance(p, click.Option)}
    for other in COMMANDS:
        for option in command_of(other).params:
            own = mine.get(option.opts[0])
            if own is None or not isinstance(option, click.Option):
                continue
            assert own.metavar == option.metavar or {own.metavar, option.metavar} <= several[own.opts[0]], (
                other
            )
            assert first_sentence(own) == first_sentence(option), (other, own.opts[0])


def first_sentence(option: click.Option) -> str:
    return re.split(r"[.;:](?: |$)", option.help or "")[0]


UNITS = re.compile(
    r"tokens|bytes|GiB|requests|sequences|seconds|GPUs|per cent|stages|engines|blocks|0 to 1|share|ranks|port|rows|runs|10m|list",
    re.IGNORECASE,
)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_takes_a_number_says_of_what(name: str):
    numbers = {"N", "X", "U", "SIZE", "TIME", "0..1"}
    for option in command_of(name).params:
        if isinstance(option, click.Option) and (
            option.metavar in numbers
            or isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
        ):
            assert UNITS.search(option.help or ""), option.opts[0]


def test_help_of_the_whole_names_every_command_and_runs(capsys: pytest.CaptureFixture[str]):
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"^  {name} ", shown, re.MULTILINE) for name in COMMANDS)
    lines = [line.strip() for line in shown.splitlines() if line.strip().startswith("vllm-capacity ")]
    assert len(lines) == 2
    for line in lines:
        assert run(shlex.split(line)[1:]) == 0
    assert (group.help or "").split("\n\n")[0].strip().endswith("?")


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_the_example_runs(
    name: str, line: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    if line.startswith(SERVES):
        pytest.skip("runs until it is stopped")
    missing = next((what for start, what in NEEDS.items() if line.startswith(start)), None)
    if missing and find_spec("vllm"):
        pytest.skip("would start vLLM")
    before, pipe, after = line.partition(" | ")
    command = (after if pipe else before).partition(" > ")[0]
    if pipe:
        stream = io.TextIOWrapper(io.BytesIO((folder / "server.log").read_bytes()))
        monkeypatch.setattr(sys, "stdin", stream)
    words = [*shlex.split(command)[1:], *SHORTER.get(name, ())]
    if name == "size" and "--node" not in words:
        words += ["--gpu", "H100-80GB"]
    code = run(words)
    shown = capsys.readouterr()
    if missing:
        assert code == 2
        assert len(shown.err.strip().splitlines()) == 1
        assert missing in shown.err
        return
    assert code in ((0, 1) if name == "explain" else (0, 3) if name == "validate" else (0,)), shown.err
    assert shown.out.strip()


def test_version_names_the_tool_and_the_releases_it_knows(capsys: pytest.CaptureFixture[str]):
    assert run(["--version"]) == 0
    assert (
        capsys.readouterr().out == f"vllm-capacity {__version__} (vLLM {', '.join(supported_releases())})\n"
    )
