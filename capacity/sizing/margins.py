"""The safety margin: how far our own plans were off in recorded runs. The figures: `margins.yaml`, which
`tools/write_margins.py` makes from the runs of docs/accuracy.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vllm_capacity.inputs.entries import EntryFile
from vllm_capacity.units import gib

PATH = Path(__file__).with_name("margins.yaml")


@dataclass(frozen=True, slots=True)
class Margin:
    """Bytes of KV cache per GPU that are not promised, and why as many."""

    n_bytes: int
    basis: str

    def __str__(self) -> str:
        return f"{gib(self.n_bytes)} of KV cache per GPU: {self.basis}"


def safety_margin(release: str, gpu: str) -> Margin:
    """The p90 of our own error for that release and GPU, never less than the p90 of all recorded runs.

    For a pair without enough recorded runs: the largest p90 of any pair and of all. Errors are |planned - measured| KV
    bytes per GPU.
    """
    pairs = _pairs()
    everything = pairs["all"]
    own = pairs.get(f"{gpu}/{release}")
    if own is None:
        worst = max(pairs, key=lambda name: pairs[name]["bytes_of_nine_in_ten"])
        whose = "of all recorded runs" if worst == "all" else f"of any pair, {worst}"
        return Margin(
            pairs[worst]["bytes_of_nine_in_ten"],
            f"too few runs of vLLM {release} on {gpu} are recorded; the largest p90 error, {whose}",
        )
    if own["bytes_of_nine_in_ten"] < everything["bytes_of_nine_in_ten"]:
        return Margin(
            everything["bytes_of_nine_in_ten"],
            f"p90 error of all {everything['runs']} recorded runs (of {own['runs']} runs of vLLM {release} on {gpu} alone: "
            f"{own['bytes_of_nine_in_ten'] / 2**20:.0f} MiB)",
        )
    return Margin(
        own["bytes_of_nine_in_ten"], f"p90 error of {own['runs']} recorded runs of vLLM {release} on {gpu}"
    )


@cache
def _pairs() -> dict[str, dict[str, int]]:
    return dict(EntryFile(PATH).items())
