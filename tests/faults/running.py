"""The command as users run it: a process of its own, with real files, limits and signals."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

COMMAND = (sys.executable, "-c", "from vllm_capacity.cli import main; main()")
MODEL = ("--model", "Qwen/Qwen3-8B", "--gpu", "H100-80GB")


@dataclass(frozen=True)
class Done:
    """How a process ended."""

    code: int
    out: str
    error: str


def environment(**changes: str) -> dict[str, str]:
    """This process's, without what would change the answer, never asking a Hub."""
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("HF_", "LC_", "LANG", "COLUMNS", "XDG_"))
    }
    return {**clean, "HF_HUB_OFFLINE": "1", **changes}


def run(
    *arguments: str,
    env: dict[str, str] | None = None,
    stdout: IO[str] | int = subprocess.PIPE,
    before: Callable[[], None] | None = None,
    prefix: Sequence[str] = (),
    cwd: Path | None = None,
    stdin: bytes | None = None,
    timeout: float = 60,
) -> Done:
    """The command with these arguments; `before` runs in the child, `prefix` is a command in front."""
    done = subprocess.run(
        [*prefix, *COMMAND, *arguments],
        env=environment() if env is None else env,
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=before,
        cwd=cwd,
        input=stdin,
        timeout=timeout,
        check=False,
    )
    return Done(
        done.returncode, (done.stdout or b"").decode(errors="replace"), done.stderr.decode(errors="replace")
    )


def one_line(done: Done, *parts: str, code: int = 2) -> None:
    """Ended with `code` and one line of error that holds `parts`."""
    assert done.code == code, (done.code, done.error[-2000:])
    lines = done.error.strip("\n").split("\n")
    assert len(lines) == 1, done.error[-2000:]
    assert lines[0].startswith("vllm-capacity: error: "), lines[0]
    for part in parts:
        assert part in lines[0], lines[0]


def files_end_at(n_bytes: int) -> Callable[[], None]:
    """For `before`: every write past this size fails, as on a full disk (EFBIG in place of ENOSPC).

    To be used with PYTHONDONTWRITEBYTECODE: Python up to 3.13 keeps the half of a bytecode file that still fitted.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))

    return limit


def without_root_rights() -> tuple[str, ...]:
    """For `prefix`: root loses the right to ignore permissions, so that a read-only folder is one for root too."""
    if os.geteuid() != 0:
        return ()
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
