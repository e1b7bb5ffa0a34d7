"""A child process that calculates: one job after the other over its pipes, nothing kept between them but caches.

A job arrives as a line of JSON, {"job", "head", "seconds", "size"}, and `size` bytes of body; the answer is a line, {"ok",
"last", "size"}, and the document or the problem; after a `last` answer the process ends. A process, not a thread: it can be
stopped when a job takes too long, it cannot hold up the event loop, and the guard holds for it as a whole.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any, BinaryIO

from vllm_capacity.web.settings import WebSettings

JOBS = {
    "plan": "vllm_capacity.web.jobs:plan",
    "size": "vllm_capacity.web.jobs:size",
    "explain": "vllm_capacity.web.jobs:explain",
    "models": "vllm_capacity.web.jobs:models",
    "gpus": "vllm_capacity.web.jobs:gpus",
    "page_plan": "vllm_capacity.web.page.jobs:plan",
    "page_layouts": "vllm_capacity.web.page.jobs:layouts",
    "page_log": "vllm_capacity.web.page.jobs:log",
    "page_report": "vllm_capacity.web.page.jobs:report",
    "page_layouts_report": "vllm_capacity.web.page.jobs:layouts_report",
}
"""Job -> "module:function", imported when first asked: `function(head, body, settings) -> bytes`."""

MAX_ANSWER_BYTES = 64 << 20


def command(settings: WebSettings) -> list[str]:
    """The words that start a worker. -P keeps the folder it starts in off its import path."""
    return [sys.executable, "-P", "-m", __name__, json.dumps(asdict(settings))]


def answer(
    job: str, head: Mapping[str, Any], body: bytes, settings: WebSettings
) -> tuple[dict[str, Any], bytes]:
    """(head of the answer, its body). What goes wrong is a problem; it raises nothing."""
    from vllm_capacity.web.problems import problem_of

    try:
        module, _, name = JOBS[job].partition(":")
        document: bytes = getattr(import_module(module), name)(head, body, settings)
        if len(document) > MAX_ANSWER_BYTES:
            raise MemoryError
        return {"ok": True, "last": _grown(settings)}, document
    except Exception as error:
        problem = problem_of(error)
        if problem.name == "unexpected":
            traceback.print_exc()  # to the log of whoever runs the server, never to the client
    members = {"name": problem.name, "detail": problem.detail, "extra": problem.extra}
    last = problem.name in ("unexpected", "too-much-memory") or _grown(settings)
    return {"ok": False, "last": last}, json.dumps(members).encode()


def _grown(settings: WebSettings) -> bool:
    """Whether the caches of this process hold so much that a fresh one should take over."""
    try:
        import resource
    except ImportError:
        return False
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit > settings.worker_memory_bytes // 2


def main() -> None:
    """Works until its input ends."""
    settings = WebSettings(**json.loads(sys.argv[1]))
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the server ends its workers
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    prepare(settings)
    _send(sink, {"ok": True}, b"")
    while line := source.readline():
        asked = json.loads(line)
        body = source.read(asked["size"])
        _limit_time(asked["seconds"])
        head, document = answer(asked["job"], asked["head"], body, settings)
        _limit_time(0)
        _send(sink, head, document)
        if head["last"]:
            break


def prepare(settings: WebSettings) -> None:
    """Makes the first job as quick as the next, then closes the doors."""
    from vllm_capacity.calibration import user_file
    from vllm_capacity.web import guard
    from vllm_capacity.web.jobs import warm_up

    warm_up(settings)
    _limit_memory(settings.worker_memory_bytes)
    guard.close((str(user_file()),))


def _limit_memory(n_bytes: int) -> None:
    try:
        import resource

        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + n_bytes, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        pass  # a system without such limits


def _limit_time(seconds: float) -> None:
    """Ends this process a little after the server has given it up, should the server be gone."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds + 5 if seconds else 0)


def _send(sink: BinaryIO, head: Mapping[str, Any], body: bytes) -> None:
    sink.write(json.dumps({**head, "size": len(body)}).encode() + b"\n" + body)
    sink.flush()


if __name__ == "__main__":
    main()
