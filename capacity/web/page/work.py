"""How the page asks for work without waiting in the event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class WorkError(Exception):
    """The server could not answer: one line that says why and what to do."""


class Work(Protocol):
    """Runs a job of `worker.JOBS` in a worker process. Raises WorkError."""

    async def __call__(self, job: str, head: Mapping[str, Any], body: bytes) -> bytes: ...
