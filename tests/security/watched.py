"""Runs the command with an audit hook and writes down what the interpreter was asked to do.

Usage: python watched.py EVENTS_FILE ARGUMENTS...; imports nothing from the current folder, as the installed command.
"""

from __future__ import annotations

import json
import os
import sys

EVENTS = (
    "open", "import", "exec", "compile", "pickle.find_class", "marshal.loads", "ctypes.dlopen", "os.system", "os.exec",
    "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect", "socket.bind",
    "socket.getaddrinfo", "socket.__new__", "urllib.Request", "os.remove", "os.rename", "os.mkdir", "os.chmod", "os.symlink",
    "os.link", "os.truncate", "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp",
)  # fmt: skip
"""What the interpreter announces (https://docs.python.org/3/library/audit_events.html) that this test asks about."""


def told(value: object) -> str:
    """An argument as text: code objects by their file."""
    return str(getattr(value, "co_filename", value))[:100_000]


def main() -> None:
    output, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    sys.path[:] = [p for p in sys.path[1:] if p]
    seen: list[tuple[str, list[str]]] = []
    watching = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event in EVENTS:
            seen.append((event, [told(a) for a in arguments]))

    sys.addaudithook(hook)
    from vllm_capacity.cli import run

    code = run(sys.argv[1:])
    watching = False
    modules = [str(getattr(m, "__file__", "") or "") for m in list(sys.modules.values())]
    with open(output, "w") as file:
        json.dump({"events": seen, "modules": modules, "pid": os.getpid()}, file)
    sys.exit(code)


if __name__ == "__main__":
    main()
