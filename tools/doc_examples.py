"""Runs the examples of README.md and docs/, and writes what they print below them.

What is an example, by the language of its fenced block:

- `console`: lines that begin with `$ ` are commands, the rest is what they print. `$ echo $?` shows an exit code; a
  command without it has to end with 0. A comment before the block says what of the output is shown, and `...` stands
  for the rest: `<!-- show: from TEXT; until TEXT; lines N; width N -->` (TEXT begins a line; width is 100 otherwise).
- `sh` (and blocks without a language): each line that runs `vllm-capacity` has to end with 0, or with N where the line
  ends with `# exit code N`.
- `python`: run in order, one namespace per page; `expression  # value` shows a value, `print(...)  # text` what is
  printed. With a `title` it is a part of the file of that name, and no example.

A line that cannot run everywhere says why in a comment at its end, in the words of `NEEDS`. Commands run in a folder of
their own that holds `FILES`, without a network, at home nowhere. `tests/docs/test_examples.py` runs all of them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from vllm_capacity.cli import run

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
NOT_RUN = ("docs/commands.md",)
"""Generated from help texts, whose examples name files and programs of the reader's."""

NEEDS = (
    "needs a GPU and vLLM",
    "needs a Python with vLLM",
    "asks the Hub",
    "runs until stopped",
)
"""Why a line is not run by the test."""

FILES = {
    "server.log": "tests/data/logs/scenarios/sampler_warmup.log",
    "records.jsonl": "tests/data/records/h200_vllm_0.26.0.jsonl",
    "latest.jsonl": "tests/data/records/h200_vllm_0.33.0.jsonl",
    "prices.yaml": "docs/prices.example.yaml",
    "runs.yaml": "validate/matrices/h200_eager.yaml",
    "afm/config.json": "docs/arcee.example.json",
    "docs": "docs",
    "tests": "tests",
}
"""What stands in the folder that examples run in: name -> where in the repository it is."""

REQUESTS = '{"prompt_tokens": 900, "output_tokens": 80, "start": 0, "end": 3}\n' * 9
MY_MODEL = (
    '{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "hidden_size": 2560, '
    '"intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, '
    '"head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": true}'
)

BLOCK = re.compile(
    r"(?:^<!-- show: (?P<show>[^\n]*?) -->\n)?^```(?P<language>[^\n]*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
WIDTH = "100"
OUTSIDE_OF_THE_SHELL = ("pip ", "python3 -m venv", "docker ", "podman ")
"""Lines that install or build; what README's own two do is run by .ci/run."""


@dataclass(frozen=True, slots=True)
class Block:
    """`title`: the file that it is a part of, for blocks that are no examples; else empty."""

    page: Path
    line: int
    language: str
    body: str
    show: str
    title: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("body"))
        language, _, rest = match["language"].partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        yield Block(page, line, language, match["body"], match["show"] or "", title[1] if title else "")


def shell_blocks() -> list[Block]:
    """Blocks with at least one line that runs vllm-capacity here."""
    return [
        block
        for page in PAGES
        if str(page.relative_to(ROOT)) not in NOT_RUN
        for block in blocks(page)
        if block.language in {"", "sh", "console"} and any(runs_here(c) for c in commands(block))
    ]


def commands(block: Block) -> list[str]:
    """Command lines of a shell block, prompts taken off and continued lines joined."""
    lines = block.body.replace("\\\n", " ").splitlines()
    if block.language == "console":
        return [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in lines if line.strip() and not line.startswith("#")]


def runs_here(line: str) -> bool:
    if line.startswith(OUTSIDE_OF_THE_SHELL) or "vllm-capacity" not in line.partition("#")[0]:
        return False
    return comment_of(line) not in NEEDS


def comment_of(line: str) -> str:
    return line.partition(" # ")[2].strip()


@contextlib.contextmanager
def example_folder(folder: Path) -> Iterator[Path]:
    """A folder as readers have it before them, made the working directory; settings of the person who runs this left out."""
    for name, source in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(ROOT / source)
    (folder / "requests.jsonl").write_text(REQUESTS, encoding="utf-8")
    (folder / "my-model").mkdir()
    (folder / "my-model" / "config.json").write_text(MY_MODEL, encoding="utf-8")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "HF_", "XDG_"))
    }
    outside = {
        **kept,
        "HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    before = Path.cwd()
    with mock.patch.dict(os.environ, outside, clear=True):
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def execute(line: str, width: str = WIDTH) -> tuple[str, int]:
    """What a command line prints (both streams) and its exit code. In this process, unless it needs a shell."""
    bare = line.partition(" # ")[0].strip()
    os.environ["COLUMNS"] = width
    if bare.startswith("vllm-capacity ") and not re.search(r"(?<!\S)(\||>|<|&&)(?!\S)|\$\(", bare):
        out = io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            mock.patch("sys.stdin", io.StringIO()),
        ):
            code = run(shlex.split(bare)[1:])
        return out.getvalue(), code
    done = subprocess.run(
        ["bash", "-c", bare], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.stdout, done.returncode


def options(show: str) -> dict[str, str]:
    pairs = (option.strip().partition(" ") for option in show.split(";") if option.strip())
    return {key: value.strip() for key, _, value in pairs}


def cut(output: str, show: str) -> str:
    """The part of the output that the page shows."""
    chosen = options(show)
    lines = [line.rstrip() for line in output.rstrip().splitlines()]
    if "until" in chosen:
        end = next(i for i, line in enumerate(lines) if line.startswith(chosen["until"]))
        lines = [*"\n".join(lines[:end]).rstrip().splitlines(), "..."]
    if "from" in chosen:
        start = next(i for i, line in enumerate(lines) if line.startswith(chosen["from"]))
        lines = ["...", *lines[start:]]
    if "lines" in chosen and len(lines) > int(chosen["lines"]):
        lines = [*lines[: int(chosen["lines"])], "..."]
    return "".join(f"{line}\n" for line in lines)


class ExampleError(Exception):
    """An example that does not do what its page says, in one line."""


def rendered(block: Block) -> str:
    """The body that a console or sh block should have. Raises ExampleError where a command ends with another code."""
    if block.language != "console":
        for line in commands(block):
            if runs_here(line):
                wanted = re.search(r"# exit code (\d)", line)
                _checked(block, line, int(wanted[1]) if wanted else 0)
        return block.body
    parts, source = [], _prompts(block.body)
    width = options(block.show).get("width", WIDTH)
    for position, (typed, shown) in enumerate(source):
        line = typed.replace("\\\n", " ")
        if line == "echo $?":
            continue
        parts.append(f"$ {typed}\n")
        if not runs_here(line):
            parts.append(shown)
            continue
        follower = source[position + 1] if position + 1 < len(source) else ("", "")
        output, code = execute(line, width)
        parts.append(cut(output, block.show))
        if follower[0] == "echo $?":
            parts.append(f"$ echo $?\n{code}\n")
        elif code:
            raise ExampleError(
                f"{block}: `{line}` ends with exit code {code}, not 0: {output.strip()[-300:]}"
            )
    return "".join(parts)


def _prompts(body: str) -> list[tuple[str, str]]:
    """(command as typed, what is shown below it) of a console block."""
    found: list[tuple[str, str]] = []
    continued = False
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif continued:
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
        continued = line.endswith("\\") and (line.startswith("$ ") or continued)
    return found


def _checked(block: Block, line: str, wanted: int) -> None:
    output, code = execute(line)
    if code != wanted:
        raise ExampleError(
            f"{block}: `{line}` ends with exit code {code}, not {wanted}: {output.strip()[-300:]}"
        )


def rendered_python(body: str, namespace: dict[str, Any]) -> str:
    """A python block with its values and printed lines as comments, after running it in `namespace`."""
    lines = body.splitlines()
    for statement in ast.parse(body).body:
        out = io.StringIO()
        source = ast.get_source_segment(body, statement) or ""
        with contextlib.redirect_stdout(out):
            if isinstance(statement, ast.Expr):
                value = eval(source, namespace)
            else:
                value = None
                exec(source, namespace)
        last = (statement.end_lineno or 0) - 1
        if "  # " in lines[last] and isinstance(statement, ast.Expr):
            printed = out.getvalue().strip() if value is None else repr(value)
            lines[last] = f"{lines[last].partition('  # ')[0]}  # {printed}"
    return "".join(f"{line}\n" for line in lines)


def rewritten(page: Path, folder: Path) -> str:
    """The page with what its examples print now. `folder` is an empty one."""
    text, namespace = page.read_text(encoding="utf-8"), {"__name__": "example"}
    with example_folder(folder):
        for block, match in zip(list(blocks(page)), list(BLOCK.finditer(text)), strict=True):
            if block.language == "python" and not block.title:
                body = rendered_python(block.body, namespace)
            elif block.language == "console" and any(runs_here(line) for line in commands(block)):
                body = rendered(block)
            else:
                continue
            whole = match[0]
            start = match.start("body") - match.start()
            text = text.replace(whole, whole[:start] + body + whole[start + len(match["body"]) :])
    return text


def shows_output(page: Path) -> bool:
    """True for pages whose text depends on what examples print."""
    return str(page.relative_to(ROOT)) not in NOT_RUN and any(
        (block.language == "python" and not block.title)
        or (block.language == "console" and any(map(runs_here, commands(block))))
        for block in blocks(page)
    )
