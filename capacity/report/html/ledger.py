"""The ledger of all GPUs of a page as one list: a term once, with its bytes wherever they differ."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_capacity.answer import Plan, RankPlan
from vllm_capacity.frozen import dataclass
from vllm_capacity.ledger import Component, MemoryTerm
from vllm_capacity.report.html.kinds import gpus_of, sums_of
from vllm_capacity.report.html.words import MEANINGS, between, short_layout
from vllm_capacity.report.palette import LOOKS, Look, name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Bytes on the GPUs named by `where` (empty where all hold the same). `numbers`: the formula with its numbers put in."""

    where: str
    n_bytes: int
    interval: str
    numbers: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One term. `facts`: account, allocator, lifetime."""

    name: str
    amounts: tuple[Amount, ...]
    formula: str
    source: str
    note: str
    facts: str

    @property
    def empty(self) -> bool:
        return not any(amount.n_bytes or amount.interval != "exact" for amount in self.amounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One component: every one is listed, also those of no byte. `totals` leave out host memory and what only single
    requests need."""

    component: str
    look: Look
    meaning: str
    totals: tuple[Amount, ...]
    entries: tuple[Entry, ...]

    @property
    def listed(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if not entry.empty)

    @property
    def nothing(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.empty)


_Where = tuple[Plan, RankPlan]


def ledger_sections(plans: Sequence[Plan]) -> tuple[Section, ...]:
    """Components in stacking order."""
    everywhere = [(plan, rank) for plan in plans for rank in plan.ranks]
    return tuple(_section(component, everywhere) for component in LOOKS)


def _section(component: Component, everywhere: Sequence[_Where]) -> Section:
    found: dict[tuple[str, ...], list[tuple[_Where, MemoryTerm]]] = {}
    totals: dict[tuple[int, str, str], list[_Where]] = {}
    for where in everywhere:
        rank = where[1]
        mine = [
            (t, account)
            for t, account in zip(rank.terms, rank.accounts, strict=True)
            if t.component is component
        ]
        n_bytes, low, high = sums_of(rank, component)
        totals.setdefault((n_bytes, between(low, high), ""), []).append(where)
        for t, account in mine:
            facts = f"{account.value}, {t.allocator.value}, {t.lifetime.value}".replace("_", " ")
            found.setdefault((t.name, t.formula, t.source, t.note, facts), []).append((where, t))
    return Section(
        component=name_of(component),
        look=LOOKS[component],
        meaning=MEANINGS[component],
        totals=_amounts(totals, everywhere),
        entries=tuple(
            Entry(name=name, amounts=_terms(terms, everywhere), formula=formula, source=source, note=note, facts=facts)
            for (name, formula, source, note, facts), terms in found.items()
        ),
    )  # fmt: skip


def _terms(terms: Sequence[tuple[_Where, MemoryTerm]], everywhere: Sequence[_Where]) -> tuple[Amount, ...]:
    same: dict[tuple[int, str, str], list[_Where]] = {}
    for where, t in terms:
        numbers = t.expression() if t.expression() != t.formula else ""
        same.setdefault((t.n_bytes, between(t.low, t.high), numbers), []).append(where)
    return _amounts(same, everywhere)


def _amounts(
    same: dict[tuple[int, str, str], list[_Where]], everywhere: Sequence[_Where]
) -> tuple[Amount, ...]:
    return tuple(
        Amount(where=_named(places, everywhere), n_bytes=n_bytes, interval=interval, numbers=numbers)
        for (n_bytes, interval, numbers), places in same.items()
    )


def _named(places: Sequence[_Where], everywhere: Sequence[_Where]) -> str:
    """Empty where these are all there are."""
    if len(places) == len(everywhere):
        return ""
    by_plan: dict[int, tuple[Plan, list[RankPlan]]] = {}
    for plan, rank in places:
        by_plan.setdefault(id(plan), (plan, []))[1].append(rank)
    several = len({id(plan) for plan, _ in everywhere}) > 1
    names = []
    for plan, ranks in by_plan.values():
        if several and len(ranks) == len(plan.ranks):
            names.append(short_layout(plan))
        else:
            names.append((f"{short_layout(plan)}, " if several else "") + gpus_of(plan, ranks))
    return "; ".join(names)
