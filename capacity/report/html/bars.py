"""Stacked bars: which part of a GPU's memory each component takes, as percentages of the picture's width."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_capacity.answer import Status
from vllm_capacity.frozen import dataclass
from vllm_capacity.ledger import Component
from vllm_capacity.report.html.kinds import Kind, columns_of, sums_of
from vllm_capacity.report.html.words import MEANINGS, between
from vllm_capacity.report.palette import LOOKS, Look, heights, name_of
from vllm_capacity.units import GIB

LABELLED = 7.0
"""Parts narrower than this percentage of the picture have no room for their figure."""
OTHERS = Look("#BBBBBB", "")
"""Of what other processes hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One component of one bar; `x` and `width` in per cent."""

    name: str
    look: Look
    n_bytes: int
    x: float
    width: float

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 3)

    @property
    def label(self) -> str:
        return f"{self.n_bytes / GIB:,.1f}" if self.width >= LABELLED else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One kind of GPU. `total` and `requested` in per cent, bytes as they are."""

    title: str
    parts: tuple[Part, ...]
    total: float
    requested: float
    total_bytes: int
    used_bytes: int | None
    """Once the server is up; None where it does not come up."""

    @property
    def words(self) -> str:
        """The bar for those who do not see it."""
        parts = ", ".join(f"{part.name} {part.n_bytes / GIB:,.2f} GiB" for part in self.parts)
        return f"{self.title}: {parts}; the GPU has {self.total_bytes / GIB:,.2f} GiB."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a component takes on one kind of GPU."""

    n_bytes: int
    interval: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One component on all bars: the text beside the picture."""

    name: str
    look: Look
    meaning: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """All bars on one scale, and the table that says the same."""

    bars: tuple[Bar, ...]
    rows: tuple[Row, ...]
    columns: tuple[slice, ...]
    """Which bars stand side by side in one table."""


def stacked_bars(kinds: Sequence[Kind]) -> Bars:
    """One bar per kind of GPU, in order."""
    widest = max(
        max(
            kind.plan.device.cuda_total_bytes,
            sum(n_bytes for _, n_bytes in heights(kind.rank)) + kind.plan.used_by_others_bytes,
        )
        for kind in kinds
    )
    rows = [*(_row(component, kinds) for component in LOOKS), _others(kinds)]
    return Bars(
        bars=tuple(_bar(kind, widest) for kind in kinds),
        rows=tuple(row for row in rows if any(cell.n_bytes for cell in row.cells)),
        columns=columns_of(kinds),
    )


def _bar(kind: Kind, widest: int) -> Bar:
    plan, rank = kind.plan, kind.rank

    def percent(n_bytes: int) -> float:
        return round(100 * n_bytes / widest, 3)

    taken = [(name_of(component), LOOKS[component], n_bytes) for component, n_bytes in heights(rank)]
    if plan.used_by_others_bytes:
        taken.append(("other processes", OTHERS, plan.used_by_others_bytes))
    parts, before = [], 0
    for name, look, n_bytes in taken:
        parts.append(
            Part(name=name, look=look, n_bytes=n_bytes, x=percent(before), width=percent(n_bytes))
        )  # fmt: skip
        before += n_bytes
    return Bar(
        title=kind.title,
        parts=tuple(parts),
        total=percent(plan.device.cuda_total_bytes),
        requested=percent(rank.budget.requested_bytes),
        total_bytes=plan.device.cuda_total_bytes,
        used_bytes=None if plan.verdict.status is Status.DOES_NOT_START else rank.device_used_bytes,
    )


def _row(component: Component, kinds: Sequence[Kind]) -> Row:
    cells = []
    for kind in kinds:
        n_bytes, low, high = sums_of(kind.rank, component)
        cells.append(Cell(n_bytes=n_bytes, interval=between(low, high)))
    return Row(
        name=name_of(component), look=LOOKS[component], meaning=MEANINGS[component], cells=tuple(cells)
    )  # fmt: skip


def _others(kinds: Sequence[Kind]) -> Row:
    return Row(
        name="other processes",
        look=OTHERS,
        meaning="in use on the GPU before vLLM starts",
        cells=tuple(Cell(n_bytes=kind.plan.used_by_others_bytes, interval="given") for kind in kinds),
    )
