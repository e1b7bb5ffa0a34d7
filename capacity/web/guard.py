"""What a worker may touch, held by the interpreter itself: an audit hook that lets nothing else through.

The requests module gives a request no way to name a file or an address; this is the second lock, for what a mistake there or in
the library would open. It is no sandbox against hostile Python, and none runs here: requests are data.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FORBIDDEN = (
    "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate",
    "shutil.rmtree", "shutil.copyfile", "shutil.move", "ctypes.dlopen", "urllib.Request", "ftplib.connect",
    "http.client.connect", "smtplib.connect", "webbrowser.open",
)  # fmt: skip
_READING = frozenset({"open", "os.listdir", "os.scandir"})

_hub_open = False


class GuardError(PermissionError):
    """Something reached for what a request may not reach."""


def close(extra: tuple[str, ...] = ()) -> None:
    """From now on this process opens no connection, starts no process, and reads only Python's and our own files.

    `extra` are further files or folders that may be read. There is no way back, but `opened`.
    """
    allowed = _readable(extra)
    forbidden = frozenset(_FORBIDDEN)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in forbidden and event not in _READING:
            return
        if _hub_open:
            return
        if event in forbidden:
            raise GuardError(f"{event} is not allowed here")
        path, mode = args[0], args[1] if event == "open" else "r"
        if isinstance(path, int):
            return
        if event == "open" and _writes(mode, args[2] if len(args) > 2 else 0):
            raise GuardError("writing a file is not allowed here")
        text = os.path.realpath(os.fsdecode(path if path is not None else "."))
        if not any(text == one or text.startswith(one + os.sep) for one in allowed):
            raise GuardError("reading this file is not allowed here")

    sys.addaudithook(hook)


@contextmanager
def opened() -> Iterator[None]:
    """Lets the code inside through: asking the Hub for a model whose id has been checked."""
    global _hub_open
    before, _hub_open = _hub_open, True
    try:
        yield
    finally:
        _hub_open = before


def _writes(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))


def _readable(extra: tuple[str, ...]) -> tuple[str, ...]:
    from vllm_capacity.inputs.catalogue import catalogue_path

    package = Path(__file__).resolve().parent.parent
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*sys.path, str(package), str(catalogue_path()), *extra, sys.pycache_prefix or ""]
    real = (os.path.realpath(path) for path in paths if path)
    return tuple(dict.fromkeys(path for path in real if path != os.sep))
