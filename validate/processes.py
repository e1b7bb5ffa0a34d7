"""Child processes that are never left behind: each engine gets a session of its own, and only that session is
killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KILL_GRACE_S = 10.0
TICK_S = 1.0


class StoppedError(Exception):
    """The user ended all runs."""


@dataclass(slots=True)
class Engine:
    """One engine process with its log and journal folder."""

    process: subprocess.Popen[bytes]
    log: Path
    probe_dir: Path


def start(command: Sequence[str], *, environment: dict[str, str], folder: Path, log: Path) -> Engine:
    """Start a command in a new session; its output goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    return Engine(process, log, folder)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not keep children from being ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def wait(
    engines: Sequence[Engine],
    limit_s: float,
    tick: Callable[[float], None] | None = None,
    stop: threading.Event | None = None,
) -> bool:
    """Wait for all engines; True if the limit came first. One that fails ends the wait for the others.

    Raises StoppedError once `stop` is set.
    """
    begin = time.monotonic()
    failed_at: float | None = None
    next_tick = begin
    while any(engine.process.poll() is None for engine in engines):
        now = time.monotonic()
        if stop is not None and stop.is_set():
            raise StoppedError
        if now - begin >= limit_s:
            return True
        if failed_at is None and any(engine.process.poll() not in (None, 0) for engine in engines):
            failed_at = now
        if failed_at is not None and now - failed_at > KILL_GRACE_S:
            return False
        if tick is not None and now >= next_tick:
            next_tick = now + TICK_S
            tick(now - begin)
        time.sleep(0.1)
    return False


def members(session: int) -> list[int]:
    """Living processes of a session (zombies left out)."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def end(engine: Engine) -> int:
    """Kill what is left of an engine's session: politely, then not. Returns how many processes had to be
    killed.
    """
    session = engine.process.pid
    left = members(session)
    killed = len(left)
    for step in (signal.SIGTERM, signal.SIGKILL):
        for pid in left:
            try:
                os.kill(pid, step)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + KILL_GRACE_S
        while left and time.monotonic() < deadline:
            engine.process.poll()
            left = members(session)
            if left:
                time.sleep(0.05)
        if not left:
            break
    if engine.process.poll() is None:
        engine.process.wait(timeout=KILL_GRACE_S)
    return killed
