"""Numbers and tables inside pages that are otherwise written by hand: `<!-- fact: NAME -->...<!-- /fact -->`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import median

from accuracy import cases
from vllm_capacity.calibration import load_calibration
from vllm_capacity.inputs.catalogue import model_ids
from vllm_capacity.inputs.gpus import list_devices
from vllm_capacity.releases import supported_releases


def accuracy_line() -> str:
    """How far planned KV caches are from recorded ones, in one sentence."""
    errors = sorted(
        abs(figure.error) / case.device_bytes
        for case in cases()
        if (figure := case.figure("available_kv")) is not None
    )
    nine_in_ten = errors[math.ceil(0.9 * len(errors)) - 1]
    return (
        f"Over {len(errors)} recorded runs the planned KV cache is off by {median(errors):.3%} of the GPU's memory (median), "
        f"nine runs in ten by at most {nine_in_ten:.2%}, the worst by {errors[-1]:.1%}"
    )


def counts() -> str:
    releases = supported_releases()
    return (
        f"{len(model_ids())} models and {len(list_devices())} GPUs are bundled; "
        f"{len(releases)} vLLM releases are known, {releases[0]} to {releases[-1]}."
    )


def measured() -> str:
    """A table of the shipped constants, by component."""
    rows: dict[str, list[int]] = {}
    for entry in load_calibration("none").measurements:
        row = rows.setdefault(entry.component, [0, 0])
        row[0] += 1
        row[1] += entry.measured
    lines = ["", "| component | entries | with runs behind them |", "|---|---|---|"]
    lines += [f"| `{name}` | {entries} | {with_runs} |" for name, (entries, with_runs) in rows.items()]
    return "\n".join([*lines, ""])


def arcee_module() -> str:
    """The module that docs/adding-a-model-family.md writes."""
    name = "capacity/architecture/arcee.py"
    code = (Path(__file__).parent.parent / name).read_text(encoding="utf-8")
    return f'\n\n```python title="{name}"\n{code}```\n\n'


FACTS: dict[str, Callable[[], str]] = {
    "accuracy": accuracy_line,
    "counts": counts,
    "calibration": measured,
    "arcee-module": arcee_module,
}
