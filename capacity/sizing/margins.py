"""The safety margin: how far our own plans were off in recorded runs. The figures and their origin: `margins.yaml`."""

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

    For a pair without recorded runs: the largest error of any recorded run. Errors are |planned - measured| KV bytes per GPU.
    """
    pairs = _pairs()
    everything = pairs["all"]
    own = pairs.get(f"{gpu}/{release}")
    if own is None:
        return Margin(
            everything["max_bytes"],
            f"no run of vLLM {release} on {gpu} is recorded; the largest error in {everything['runs']} runs elsewhere",
        )
    if own["p90_bytes"] < everything["p90_bytes"]:
        return Margin(
            everything["p90_bytes"],
            f"90 % of all {everything['runs']} recorded runs were closer (of vLLM {release} on {gpu}: {own['runs']} runs, p90 "
            f"{own['p90_bytes'] / 2**20:.0f} MiB)",
        )
    return Margin(own["p90_bytes"], f"90 % of {own['runs']} recorded runs of vLLM {release} on {gpu} were closer")


@cache
def _pairs() -> dict[str, dict[str, int]]:
    return {name: fields for name, fields in EntryFile(PATH).items()}
