"""Calls that end in bounded time, whatever a server does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

T = TypeVar("T")

DOWNLOAD_TIMEOUT_S = 10
"""huggingface_hub/constants.py: DEFAULT_DOWNLOAD_TIMEOUT."""
PATIENCE = 6
"""So many times the timeout of a single read (HF_HUB_DOWNLOAD_TIMEOUT) may one file take."""
WATCH_S = 0.1


class OutOfTimeError(Exception):
    """A server that sends a byte now and then never trips the timeout of a single read."""


def patience_s() -> float:
    """How long one file or header may take in all. Raises ValueError for a variable that is no number."""
    return PATIENCE * float(int(os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT") or 0) or DOWNLOAD_TIMEOUT_S)


def in_time(call: Callable[[], T], seconds: float, watch: Callable[[], None] | None = None) -> T:
    """What `call` gives, or its exception; OutOfTimeError if it takes longer (it is then left alone).

    `watch` is called now and then meanwhile, and may raise.
    """
    answers: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def work() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise OutOfTimeError(f"no answer within {seconds:.0f} s")
        try:
            value, error = answers.get(timeout=min(left, WATCH_S))
            break
        except Empty:
            if watch is not None:
                watch()
    if error is not None:
        raise error
    return cast(T, value)
