"""The engine side as a child process: JSON lines over two pipes, in a session of its own that is always ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from vllm_capacity.errors import InputError
from vllm_capacity.validate import processes

ENGINE_SIDE = Path(__file__).resolve().parent / "engine_side"
PROTOCOL = 1
START_LIMIT_S = 600.0
RANK_LIMIT_S = 1200.0
LOG_LINES = 3


class EngineSideError(InputError):
    """The engine side died, hung or answered nonsense; the message ends with the last lines of its log."""


class RankFailedError(InputError):
    """vLLM, or the machine it was given, raised while a rank ran. `kind` is the exception's name."""

    def __init__(self, message: str, kind: str, where: Sequence[str]) -> None:
        super().__init__(message)
        self.kind = kind
        self.where = tuple(where)


class Session:
    """A started engine side. Use as a context manager; every exit ends all of its processes."""

    def __init__(
        self,
        python: str,
        gpu: dict[str, Any],
        *,
        stub: Path,
        warm_up: Path,
        devices: int = 8,
        start_limit_s: float = START_LIMIT_S,
        rank_limit_s: float = RANK_LIMIT_S,
    ) -> None:
        self._rank_limit_s = rank_limit_s
        self._next_id = 0
        self._folder = tempfile.TemporaryDirectory(prefix="vllm-capacity-dry-run-")
        self._log = Path(self._folder.name) / "log"
        self._pending = b""
        reading, writing = os.pipe()
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [python, "-m", "vllm_dry_run.server", str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[writing],
                    cwd=self._folder.name,
                    env=_environment(),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(reading)
            self._folder.cleanup()
            raise InputError(f"--python {python}: cannot be started ({error.strerror})") from None
        finally:
            os.close(writing)
        self._replies = reading
        try:
            self._send({"gpu": gpu, "devices": devices, "stub": str(stub), "warm_up": str(warm_up)})
            hello = self._receive(start_limit_s, "start")
            if not hello.get("ok"):
                raise EngineSideError(_start_failure(python, hello.get("error") or {}))
            if hello.get("protocol") != PROTOCOL:
                raise EngineSideError(
                    f"the engine side speaks protocol {hello.get('protocol')!r}, this is {PROTOCOL}"
                )
        except BaseException:
            self.close()
            raise
        self.vllm_version = str(hello["vllm"]).split("+")[0]
        self.versions = {name: str(hello[name]) for name in ("vllm", "torch", "python")}
        self.unprepared: tuple[str, ...] = tuple(hello["unprepared"])

    def rank(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run one rank (`Job.message`). Raises RankFailedError with vLLM's own sentence, or EngineSideError."""
        return self._ask(message)

    def plan_kv(self, ranks: Sequence[int], available: Sequence[int]) -> dict[str, Any]:
        """vLLM's KV plan over ranks that were run before, for `available` bytes on each. Raises RankFailedError."""
        return self._ask({"op": "kv", "ranks": list(ranks), "available": list(available)})

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self._next_id += 1
        self._send({**message, "id": self._next_id})
        answer = self._receive(self._rank_limit_s, "answer")
        if answer.get("id") != self._next_id:
            raise EngineSideError(
                f"the engine side answered request {answer.get('id')!r}, not {self._next_id}"
            )
        if not answer.get("ok"):
            error = answer.get("error") or {}
            kind, text = str(error.get("type", "error")), str(error.get("message", ""))
            where = [str(line) for line in error.get("where", [])]
            last = f" (at {where[-1]})" if where else ""
            raise RankFailedError(f"{kind}: {text}{last}", kind, where)
        result = answer.get("result")
        if not isinstance(result, dict):
            raise EngineSideError("the engine side answered without a result")
        return result

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            raise EngineSideError(self._died()) from None

    def _receive(self, limit_s: float, what: str) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise EngineSideError(
                        f"the engine side did not {what} within {limit_s:.0f} s{self._log_end()}"
                    )
                data = os.read(self._replies, 1 << 16)
                if not data:
                    raise EngineSideError(self._died())
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            raise EngineSideError(f"the engine side answered no JSON: {line[:80]!r}") from None
        if not isinstance(message, dict):
            raise EngineSideError(f"the engine side answered no object: {line[:80]!r}")
        return message

    def _died(self) -> str:
        try:
            code: int | None = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        return f"the engine side ended with exit code {code}{self._log_end()}"

    def _log_end(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return "".join(f" | {line[:300]}" for line in lines[-LOG_LINES:])

    def close(self) -> None:
        """End every process of the engine side."""
        with processes.undisturbed():
            self._close()

    def _close(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        processes.end(processes.Engine(self._process, self._log, Path(self._folder.name)))
        if self._replies >= 0:
            os.close(self._replies)
            self._replies = -1
        self._folder.cleanup()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ENGINE_SIDE), environment.get("PYTHONPATH")])
    )
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


def _start_failure(python: str, error: dict[str, Any]) -> str:
    if error.get("type") == "ModuleNotFoundError":
        return (
            f"--python {python}: {error.get('message')}; name the Python of an environment with vLLM, "
            "or run inside a vLLM image"
        )
    where = error.get("where") or [""]
    return f"--python {python}: {error.get('type')}: {error.get('message')} (at {where[-1]})"
