"""Writes `capacity/sizing/margins.yaml`: how far plans were from recorded runs, per GPU and release.

    python tools/write_margins.py

The error is |planned - measured| bytes of KV cache per GPU, the largest of a run's ranks: the runs of docs/accuracy.md.
Entries hold the number of runs and the 90th percentile: the smallest error that at least nine of ten runs do not exceed.
`all` is over every run; a pair stands alone from MINIMUM runs on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from accuracy import cases
from vllm_capacity.inputs.gpus import find_device

TARGET = Path(__file__).resolve().parent.parent / "capacity" / "sizing" / "margins.yaml"
MINIMUM = 9
"""Fewer runs say nothing about the tenth."""


def errors() -> dict[str, list[int]]:
    """GPU/release, and 'all' -> |error| in bytes per run."""
    found: dict[str, list[int]] = {"all": []}
    for case in cases():
        figure = case.figure("available_kv")
        if figure is None:
            continue
        found["all"].append(abs(figure.error))
        found.setdefault(f"{find_device(case.device).name}/{case.release}", []).append(abs(figure.error))
    return {name: values for name, values in found.items() if len(values) >= MINIMUM}


def p90(values: Sequence[int]) -> int:
    return sorted(values)[math.ceil(0.9 * len(values)) - 1]


def text() -> str:
    lines = [
        "# Written by tools/write_margins.py from the recorded runs of docs/accuracy.md; bytes of KV cache per GPU,",
        "# |planned - measured|. Do not edit.",
        "pairs:",
    ]
    for name, values in sorted(errors().items()):
        lines += [f"  {name}:", f"    runs: {len(values)}", f"    bytes_of_nine_in_ten: {p90(values)}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
