"""An append-only file of JSON lines: what a process measured is on disk before it can die."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

PROBE_DIR = "VLLM_CAPACITY_PROBE_DIR"
"""Environment variable: the folder that all processes of one engine write to."""


class Journal:
    """Events of one process, one JSON object a line, each written with one `write` call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = time.time()

    def write(self, event: str, **values: Any) -> None:
        """Append {"event": event, "seconds": since this journal was opened, **values}."""
        entry = {"event": event, "seconds": round(time.time() - self._start, 3), **values}
        line = json.dumps(entry, default=str) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def open_journal(name: str) -> Journal:
    """The journal `name` in the folder that the runner gave."""
    return Journal(Path(os.environ[PROBE_DIR]) / f"{name}.jsonl")
