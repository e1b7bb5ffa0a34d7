"""How far plans were from recorded runs, as far as it concerns one plan. The figures: `report/accuracy.json`, which
`tools/write_accuracy.py` makes from the runs of docs/accuracy.md.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from vllm_capacity.answer import Plan
from vllm_capacity.budget import Account
from vllm_capacity.frozen import dataclass
from vllm_capacity.ledger import Allocator
from vllm_capacity.report.html.kinds import ends
from vllm_capacity.report.html.words import between
from vllm_capacity.units import MIB

PATH = Path(__file__).parent.parent / "accuracy.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """|planned - measured| over recorded runs: bytes, and the part of the device."""

    runs: int
    mean_bytes: int
    median_bytes: int
    worst_bytes: int
    mean_share: float
    worst_share: float

    @property
    def words(self) -> str:
        if not self.runs:
            return "no run"
        mean, worst = (f"{n / MIB:,.1f}" for n in (self.mean_bytes, self.worst_bytes))
        return f"mean {mean} MiB, worst {worst} MiB in {self.runs} run{'' if self.runs == 1 else 's'}"

    @property
    def share_words(self) -> str:
        if not self.runs:
            return "no run"
        runs = f"{self.runs} run{'' if self.runs == 1 else 's'}"
        return f"mean {self.mean_share:.3%} of the GPU, worst {self.worst_share:.3%} in {runs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One figure of the budget: what the plan says of it and how far such figures were off."""

    name: str
    n_bytes: int
    interval: str
    errors: str
    unseen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A term with an interval: what it rests on."""

    name: str
    n_bytes: int
    interval: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """`like_this`: (what the runs have in common with this plan, their error of the KV cache); `named`: how many runs miss
    the cache by more than that and are explained by name."""

    runs: int
    own: int
    named: int
    unnamed: str
    budget: tuple[Known, ...]
    like_this: tuple[tuple[str, str], ...]
    exact_bytes: int
    exact_terms: int
    measured: tuple[Measured, ...]


_BUDGET = (
    ("weights", "weights", Account.WEIGHTS),
    ("activation peak", "activation_peak", Account.ACTIVATION),
    ("non-torch", "non_torch", Account.NON_TORCH),
)


def accuracy(plan: Plan) -> Accuracy:
    """Of the GPU that decides."""
    figures = _figures()
    rank = plan.tightest
    budget = rank.budget
    rows = []
    for name, key, account in _BUDGET:
        terms = [t for t, of in zip(rank.terms, rank.accounts, strict=True) if of is account]
        _, low, high = ends(terms)
        rows.append(_known(name, key, budget.totals[account], between(low, high)))
    if budget.graph_estimate_bytes:
        rows.append(
            _known("graph estimate", "graph_estimate", budget.graph_estimate_bytes, "estimated as vLLM does")
        )
    if plan.kv_cache.stages:
        errors, unseen = _of(figures["terms"]["available_kv"])
        rows.append(
            Known(
                name="available for the KV cache",
                n_bytes=budget.available_kv_bytes,
                interval=between(budget.available_kv_low_bytes, budget.available_kv_high_bytes),
                errors=errors.share_words,
                unseen=unseen.share_words,
            )
        )
    plain = Errors(**figures["available_kv_without_named_misses"])
    on_device = [t for t in rank.terms if t.allocator is not Allocator.HOST]
    exact = [t for t in on_device if t.low == t.high and t.n_bytes]
    return Accuracy(
        runs=figures["runs"],
        own=figures["own"],
        named=figures["terms"]["available_kv"]["all"]["runs"] - plain.runs,
        unnamed=plain.share_words,
        budget=tuple(rows),
        like_this=tuple(
            (words, Errors(**found).share_words if found else "no run is recorded")
            for words, found in (
                (f"class {plan.architecture.name}", figures["classes"].get(plan.architecture.name)),
                (f"vLLM {plan.release.version}", figures["releases"].get(plan.release.version)),
                (plan.device.name, figures["gpus"].get(plan.device.name)),
            )
        ),
        exact_bytes=sum(t.n_bytes for t in exact),
        exact_terms=len(exact),
        measured=tuple(
            Measured(
                name=t.name, n_bytes=t.n_bytes,
                interval=between(t.low, t.high), note=t.note,
            )
            for t in on_device
            if t.low != t.high
        ),
    )  # fmt: skip


def _known(name: str, key: str, n_bytes: int, interval: str) -> Known:
    errors, unseen = _of(_figures()["terms"][key])
    return Known(name=name, n_bytes=n_bytes, interval=interval, errors=errors.words, unseen=unseen.words)


def _of(figures: dict[str, Any]) -> tuple[Errors, Errors]:
    return Errors(**figures["all"]), Errors(**figures["unseen"])


@cache
def _figures() -> dict[str, Any]:
    import json

    figures: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return figures
