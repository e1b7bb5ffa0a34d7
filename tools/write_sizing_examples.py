"""Runs the commands of docs/sizing.md's console blocks and writes their tables below them.

python tools/write_sizing_examples.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "sizing.md"
BLOCK = re.compile(r"```console\n\$ (vllm-capacity [^\n]+)\n(.*?)```", re.DOTALL)


def table(command: str) -> str:
    """The demand and the rows that a command prints: everything before 'The first row'."""
    program = Path(sys.executable).with_name("vllm-capacity")
    words = shlex.split(command)[1:]
    out = subprocess.run(
        [str(program), *words],
        env={**os.environ, "COLUMNS": "118"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    shown = out.split("\nThe first row\n")[0].rstrip()
    return "\n".join(line.rstrip() for line in shown.splitlines()) + "\n"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    text = BLOCK.sub(lambda match: f"```console\n$ {match[1]}\n{table(match[1])}```", text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
