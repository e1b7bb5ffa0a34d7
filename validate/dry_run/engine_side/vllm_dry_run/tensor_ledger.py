"""Every byte that the device would hold, as PyTorch's allocator counts allocated bytes: rounded up to 512 a tensor."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from dataclasses import dataclass
from types import FrameType
from typing import Any

ROUNDING = 512
"""kMinBlockSize, c10/cuda/CUDACachingAllocator.cpp."""
FRAMES = 6
PASSING = frozenset({"__torch_function__"})
"""Functions of vLLM that every operator passes through."""


@dataclass(frozen=True)
class Allocation:
    n_bytes: int
    """Rounded as the allocator does."""
    exact_bytes: int
    operator: str
    frames: tuple[str, ...]
    """vLLM's source lines that led to it, innermost first: "path:line function"."""
    serial: int


class TensorLedger:
    """Live bytes now and at the peak, and what could not be followed faithfully."""

    def __init__(self) -> None:
        self.current = 0
        self.exact = 0
        """Live bytes before rounding."""
        self.peak = 0
        self.at_peak: dict[int, Allocation] = {}
        self.keep_peak = False
        self.operations = 0
        self.skipped: Counter[str] = Counter()
        """Operators that were left out: their outputs existed, scratch memory inside them is unseen."""
        self.imitated: Counter[str] = Counter()
        """Operators whose outputs were made by a stand-in."""
        self.reads: Counter[str] = Counter()
        """Values of device tensors that Python read: they are zeros here."""
        self.copies: Counter[str] = Counter()
        """Copies from the device to the host, whose values are zeros here."""
        self._live: dict[int, Allocation] = {}
        self._serial = 0

    def add(self, storage: Any, operator: str) -> None:
        """Count a storage once, until it is collected."""
        key = id(storage)
        if key in self._live:
            return
        exact = storage.nbytes()
        n_bytes = -(-exact // ROUNDING) * ROUNDING
        self._serial += 1
        self._live[key] = Allocation(n_bytes, exact, operator, source_frames(), self._serial)
        self.current += n_bytes
        self.exact += exact
        weakref.finalize(storage, self._remove, key)
        if self.current > self.peak:
            self.peak = self.current
            if self.keep_peak:
                self.at_peak = dict(self._live)

    def reset_peak(self) -> None:
        self.peak = self.current
        self.at_peak = dict(self._live) if self.keep_peak else {}

    @property
    def serial(self) -> int:
        return self._serial

    def _remove(self, key: int) -> None:
        gone = self._live.pop(key)
        self.current -= gone.n_bytes
        self.exact -= gone.exact_bytes


def source_frames() -> tuple[str, ...]:
    """The nearest lines of vLLM on the stack."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < FRAMES:
        path = frame.f_code.co_filename
        marker = path.rfind("/site-packages/vllm/")
        if marker >= 0 and frame.f_code.co_name not in PASSING:
            found.append(f"{path[marker + len('/site-packages/') :]}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(found)


def source_line() -> str:
    frames = source_frames()
    return frames[0] if frames else "outside vLLM"
