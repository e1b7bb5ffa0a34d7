"""Kinds of GPUs: those of a plan (or of several) that hold the same, under one title."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_capacity.answer import Plan, RankPlan
from vllm_capacity.frozen import dataclass
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm
from vllm_capacity.report.html.words import short_layout

NBSP = "\u00a0"
"""A space at which no line breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`rank` stands for all ranks of this kind: they agree in every sum that a page shows."""

    plan: Plan
    rank: RankPlan
    title: str


def kinds_of(plans: Sequence[Plan]) -> tuple[Kind, ...]:
    """In the order of the plans and of their ranks."""
    found = []
    for plan in plans:
        alike: dict[object, list[RankPlan]] = {}
        for rank in plan.ranks:
            alike.setdefault(_sums(rank), []).append(rank)
        for ranks in alike.values():
            title = gpus_of(plan, ranks)
            found.append(
                Kind(
                    plan=plan,
                    rank=ranks[0],
                    title=f"{short_layout(plan)}: {title}" if len(plans) > 1 else title,
                )
            )
    return tuple(found)


MOST_COLUMNS = 6
"""Kinds of GPUs side by side in one table: more do not fit on a sheet."""


def columns_of(kinds: Sequence[Kind]) -> tuple[slice, ...]:
    """Which kinds stand in one table: all, or those of one plan, at most MOST_COLUMNS."""
    if len(kinds) <= MOST_COLUMNS:
        return (slice(0, len(kinds)),)
    found, start = [], 0
    for at, kind in enumerate(kinds):
        if at - start == MOST_COLUMNS or kind.plan is not kinds[start].plan:
            found.append(slice(start, at))
            start = at
    return (*found, slice(start, len(kinds)))


def _sums(rank: RankPlan) -> tuple[object, ...]:
    """Everything that pages show of a rank, less the single terms."""
    budget = rank.budget
    return (
        tuple((component, *sums_of(rank, component)) for component in Component),
        tuple(budget.totals.items()),
        (budget.requested_bytes, budget.graph_applied_bytes, rank.device_used_bytes),
        (budget.available_kv_bytes, budget.available_kv_low_bytes, budget.available_kv_high_bytes),
    )


def sums_of(rank: RankPlan, component: Component) -> tuple[int, int, int]:
    """(bytes, low, high) of a component on the device, what single requests need left out."""
    terms = [
        t
        for t in rank.terms
        if t.component is component
        and t.allocator is not Allocator.HOST
        and t.lifetime is not Lifetime.RUNTIME
    ]
    return ends(terms)


def ends(terms: Sequence[MemoryTerm]) -> tuple[int, int, int]:
    """Sums of bytes, low and high."""
    return sum(t.n_bytes for t in terms), sum(t.low for t in terms), sum(t.high for t in terms)


def gpus_of(plan: Plan, ranks: Sequence[RankPlan]) -> str:
    """Which GPUs these are: 'each of 2 GPUs', '4 GPUs of pipeline stages 1, 2'."""
    count = sum(len(rank.ranks) for rank in ranks)
    if len(ranks) == len(plan.ranks):
        return f"each of {count} GPUs" if count > 1 else "the GPU"
    stages = sorted({pp for rank in ranks for _, pp, _ in rank.ranks})
    title = f"{count} GPU{'s' if count > 1 else ''}"
    if plan.engine.parallel.pp > 1:
        numbers = f",{NBSP}".join(map(str, stages))
        title += f" of pipeline stage{'s' if len(stages) > 1 else ''}{NBSP}{numbers}"
    others = {pp for rank in plan.ranks if rank not in ranks for _, pp, _ in rank.ranks}
    if others & set(stages):
        tp, _, dp = min(ranks[0].ranks, key=lambda rank: (rank[2], rank[0]))
        title += f" from tensor rank {tp}" + (f", data rank {dp}" if plan.engine.parallel.dp > 1 else "")
    return title
