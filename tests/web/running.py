"""`vllm-capacity web` as a program of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from web.serving import wait_until

PROGRAM = str(Path(sys.executable).with_name("vllm-capacity"))


@dataclass
class Program:
    """A server that answers. `said` gives what it wrote to stderr so far."""

    process: subprocess.Popen[bytes]
    client: httpx.Client
    url: str
    errors: Path

    def said(self) -> str:
        return self.errors.read_text()

    def workers(self) -> list[int]:
        """Its children, by /proc."""
        listing = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(word) for word in listing.read_text().split()]


@contextmanager
def running(
    *options: str,
    environment: Mapping[str, str] | None = None,
    browser: bool = False,
    folder: Path | None = None,
) -> Iterator[Program]:
    """Starts the program on a free port; ends it, if it has not ended by itself."""
    words = [PROGRAM, "web", "--port", "0", *([] if browser else ["--no-browser"]), *options]
    with tempfile.TemporaryDirectory() as place:
        errors = Path(place) / "stderr"
        with errors.open("wb") as file:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=os.environ | dict(environment or {}),
                cwd=folder,
            )  # fmt: skip
        try:
            wait_until(lambda: "Ctrl-C" in errors.read_text() or process.poll() is not None)
            found = re.search(r"http://\S+:\d+", errors.read_text())
            assert found, errors.read_text()
            with httpx.Client(base_url=found[0], timeout=60) as client:
                wait_until(lambda: _answers(client))
                yield Program(process, client, found[0], errors)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False
