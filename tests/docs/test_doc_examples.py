"""Every example of README.md and docs/ runs, and prints what the page shows. `python tools/write_docs.py` writes it anew."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
import yaml
from vllm_capacity.cli import COMMANDS, group
from vllm_capacity.validate.matrix import load_matrix

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import doc_examples  # noqa: E402
from doc_examples import PAGES, Block, blocks, commands, comment_of, shell_blocks  # noqa: E402

SHELL = shell_blocks()
PYTHON = [page for page in PAGES if any(b.language == "python" and not b.title for b in blocks(page))]
LINES = [(block, line) for page in PAGES for block in blocks(page) for line in commands(block)]


@pytest.mark.parametrize("block", SHELL, ids=map(str, SHELL))
def test_commands_of_a_block_run_and_print_what_is_shown(block: Block, tmp_path: Path) -> None:
    with doc_examples.example_folder(tmp_path):
        printed = doc_examples.rendered(block)
    name = block.page.relative_to(ROOT)
    assert printed == block.body, f"run: python tools/write_docs.py {name}"


@pytest.mark.parametrize("page", PYTHON, ids=[str(page.relative_to(ROOT)) for page in PYTHON])
def test_python_of_a_page_runs_and_gives_what_is_shown(page: Path, tmp_path: Path) -> None:
    namespace: dict[str, object] = {"__name__": "example"}
    with doc_examples.example_folder(tmp_path):
        for block in blocks(page):
            if block.language == "python" and not block.title:
                assert doc_examples.rendered_python(block.body, namespace) == block.body, str(block)


def test_what_is_not_run_says_why() -> None:
    """Nothing that names this program is left out but for a reason of the list, in the reader's sight."""
    for block, line in LINES:
        bare = line.partition("#")[0]
        if block.language not in {"", "sh", "console"} or "vllm-capacity" not in bare:
            continue
        skipped = not doc_examples.runs_here(line)
        excused = comment_of(line) in doc_examples.NEEDS or bare.startswith(doc_examples.OUTSIDE_OF_THE_SHELL)
        assert skipped == excused, f"{block}: {line}"


def test_a_drifted_output_is_noticed(tmp_path: Path) -> None:
    body = "$ vllm-capacity gpus h100-80gb\nH100-80GB with a terabyte\n"
    block = Block(ROOT / "README.md", 1, "console", body, "")
    with doc_examples.example_folder(tmp_path):
        assert doc_examples.rendered(block) != body


def test_another_exit_code_is_noticed(tmp_path: Path) -> None:
    wrong = Block(
        ROOT / "README.md", 1, "sh", "vllm-capacity plan --model Qwen/Qwen3-8B --gpu no-such-gpu\n", ""
    )
    with doc_examples.example_folder(tmp_path), pytest.raises(doc_examples.ExampleError, match="exit code 2"):
        doc_examples.rendered(wrong)


def test_a_wrong_value_in_python_is_noticed() -> None:
    assert doc_examples.rendered_python("1 + 1  # 3\n", {}) == "1 + 1  # 2\n"
    assert doc_examples.rendered_python("print('a')  # b\n", {}) == "print('a')  # a\n"


# -- commands inside sentences and tables

INLINE = [
    (page, code)
    for page in PAGES
    for code in re.findall(
        r"`(vllm-capacity [^`]+)`", doc_examples.BLOCK.sub("", page.read_text(encoding="utf-8"))
    )
]
PLANNING = {"plan", "size", "compare", "validate", "dry-run", "report"}
"""Commands that take any flag of vLLM's."""


@pytest.mark.parametrize(
    ("page", "code"), INLINE, ids=[f"{page.stem}-{i}" for i, (page, _) in enumerate(INLINE)]
)
def test_a_command_inside_a_sentence_exists(page: Path, code: str) -> None:
    words = shlex.split(code.replace("...", ""))
    if words[1].startswith("-"):
        return
    assert words[1] in COMMANDS, page
    command = group.get_command(click.Context(group), words[1])
    assert command is not None
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    flags = [word.partition("=")[0] for word in words[2:] if word.startswith("--") and word != "--"]
    assert words[1] in PLANNING or set(flags) <= known, f"{page}: {code}"


CLAIMS = ROOT / "docs" / "memory-claims.md"
SHORT = {"M": "--model meta-llama/Llama-3.1-8B-Instruct --gpu H100-80GB"}
REFUSED = {"plan M --env VLLM_MAX_MODEL_LEN=4096"}
"""Whose error is what the page points to."""
CLAIMED = re.findall(r"`(plan [^`]+)`", CLAIMS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("code", CLAIMED)
def test_a_command_behind_a_claim_runs(code: str, tmp_path: Path) -> None:
    line = " ".join(SHORT.get(word, word) for word in f"vllm-capacity {code}".split(" "))
    with doc_examples.example_folder(tmp_path):
        output, exit_code = doc_examples.execute(line)
    assert exit_code in ({2} if code in REFUSED else {0, 1, 3}), output


# -- other languages

DATA = [block for page in PAGES for block in blocks(page) if block.language in {"yaml", "json"}]


@pytest.mark.parametrize("block", DATA, ids=map(str, DATA))
def test_data_in_a_block_can_be_read(block: Block) -> None:
    assert yaml.safe_load(block.body)


def test_the_matrix_that_is_shown_is_one(tmp_path: Path) -> None:
    (block,) = (b for b in DATA if b.page.name == "validate.md" and b.language == "yaml")
    path = tmp_path / "runs.yaml"
    path.write_text(block.body, encoding="utf-8")
    runs = load_matrix(path)
    assert len(runs) == 7, os.fspath(path)
