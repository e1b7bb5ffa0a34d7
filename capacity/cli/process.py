"""Streams and signals of the command as a process: closed or broken outputs, odd locales, requests to stop."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
BROKEN_PIPE = 141
"""As a shell reports a program that SIGPIPE ended."""


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived: unwinds like Ctrl-C, so that children are ended and half-written files removed."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def prepare() -> str | None:
    """To be called once at the start of the process. Gives what is wrong with it in words, or None."""
    stdout_closed = sys.stdout is None
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _occupy_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # what the terminal's encoding cannot show becomes "?" instead of an error
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _terminate)
    return "standard output is closed: send it to a file, or to /dev/null" if stdout_closed else None


def _occupy_closed_streams() -> None:
    """No file opened later may get the number of a standard stream: a child's messages would go into it."""
    while os.open(os.devnull, os.O_RDWR) <= 2:
        pass
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated(number)


def abandon_output() -> None:
    """Nothing more can be written to stdout: keeps the interpreter from trying again (and complaining) at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file (a test's capture)
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
