"""A copy of the package in a temporary folder, to which the code blocks of a page are applied as its reader would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from doc_examples import Block, blocks  # noqa: E402

RUN = "import sys; from vllm_capacity.cli import main; main()"


def parts(page: str) -> dict[str, Block]:
    """Blocks of a page that are parts of files, by file."""
    return {block.title: block for block in blocks(ROOT / "docs" / page) if block.title}


def before_and_after(diff: str) -> tuple[str, str]:
    lines = diff.splitlines()
    before = [line[1:] for line in lines if not line.startswith("+")]
    after = [line[1:] for line in lines if not line.startswith("-")]
    return "\n".join(before), "\n".join(after)


@dataclass(frozen=True)
class Copy:
    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Copy:
        """`capacity` and `tools` under their own names; Python finds the former as `vllm_capacity`."""
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "capacity", folder / "capacity", ignore=ignored)
        shutil.copytree(ROOT / "tools", folder / "tools", ignore=ignored)
        (folder / "vllm_capacity").symlink_to("capacity")
        (folder / "models.yaml").symlink_to(ROOT / "models.yaml")
        return cls(folder)

    def replace(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name} does not have, once:\n{old}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def apply(self, block: Block) -> None:
        """A diff, or a new file."""
        if block.language == "diff":
            self.replace(block.title, *before_and_after(block.body))
        else:
            (self.folder / block.title).write_text(block.body, encoding="utf-8")

    def undo(self, block: Block) -> None:
        if block.language == "diff":
            self.replace(block.title, *reversed(before_and_after(block.body)))
        else:
            (self.folder / block.title).unlink()

    def python(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs code that finds this copy before any installed one."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "400"}
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    def plan(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.python(RUN, "plan", *arguments)

    def plan_json(self, *arguments: str) -> dict[str, object]:
        done = self.plan(*arguments, "--json")
        assert done.stdout, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found
