"""What the page of `size` shows, arranged for its template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_capacity.answer import Status
from vllm_capacity.frozen import dataclass
from vllm_capacity.report import size_words
from vllm_capacity.report.html import words
from vllm_capacity.report.html.accuracy import Accuracy, accuracy
from vllm_capacity.report.html.bars import Bars, stacked_bars
from vllm_capacity.report.html.kinds import kinds_of
from vllm_capacity.report.html.ledger import Section, ledger_sections
from vllm_capacity.report.html.lines import Chart, Series, line_chart, tokens_short
from vllm_capacity.report.html.plan_view import Budget, budget_of
from vllm_capacity.reproduce import serve_line
from vllm_capacity.sizing.rank import Sort
from vllm_capacity.sizing.row import Row

if TYPE_CHECKING:
    from vllm_capacity.sizing.ask import Report
    from vllm_capacity.sizing.context_curve import Curve

TIMES = "×"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One row of the answer."""

    row: Row
    bought: str
    layout: str
    bound_by: str
    variant: str
    """The model's name where it is not the one asked for."""
    serve_line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """The row that stands first, in full."""

    choice: Choice
    bars: Bars
    budget: Budget
    accuracy: Accuracy
    ledger: tuple[Section, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Requests at once at one context length, one figure per curve; None where it does not start."""

    length: int
    sequences: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeView:
    report: Report
    title: str
    status: Status
    symbol: str
    headline: str
    sentence: str
    choices: tuple[Choice, ...]
    more: int
    """Rows that are not on the page."""
    first: First | None
    chart: Chart | None
    curves: tuple[str, ...]
    held: tuple[Held, ...]
    flips: tuple[tuple[str, str], ...]
    cost_unit: str
    order: str


def size_view(report: Report, curves: Sequence[Curve], top: int) -> SizeView:
    """The first `top` rows; the first one in full."""
    question, demand = report.question, report.question.demand
    choices = tuple(_choice(report, row) for row in report.rows[:top])
    best = report.rows[0] if report.rows else None
    status = best.plan.verdict.status if best else Status.DOES_NOT_START
    prices = question.prices
    asked = f"{demand.sequences:,} requests of up to {demand.longest_tokens:,} tokens at once"
    if best is None:
        headline, sentence = "No GPU holds it", f"No layout that was tried holds {asked}."
    else:
        headline = size_words.bought(best, TIMES)
        servers = best.purchase.replicas
        sentence = (
            f"{headline}, {servers} server{'' if servers == 1 else 's'} of {best.layout.gpus} GPU"
            f"{'' if best.layout.gpus == 1 else 's'}{'' if servers == 1 else ' each'}"
            f"{'' if best.model == question.models[0].name else f', with {best.model}'}"
            f"{f', the KV cache in {best.args.kv_cache_dtype}' if best.fp8_cache else ''}: "
            f"{best.sequences:,} requests at once, the safety margin taken off, where {asked} are asked."
        )
        if not best.starts:
            sentence += f" {best.plan.verdict.message}"
    return SizeView(
        report=report,
        title=f"GPUs for {question.models[0].name}",
        status=status,
        symbol=words.SYMBOLS[status],
        headline=headline,
        sentence=sentence,
        choices=choices,
        more=len(report.rows) - len(choices),
        first=_first(choices[0]) if choices else None,
        chart=_chart(report, curves),
        curves=tuple(curve.name for curve in curves if curve.lengths),
        held=_held(curves),
        flips=tuple((size_words.ASSUMPTION[i.assumption], size_words.flips(i)) for i in report.sensitivities),
        cost_unit=f"{prices.currency}{'/h' if prices.unit == 'gpu_hour' else ''}" if prices else "",
        order=_ORDERS[question.sort],
    )


_ORDERS = {
    Sort.COST: "the cheapest first",
    Sort.GPUS: "the fewest GPUs first",
    Sort.HEADROOM: "the most room first",
    Sort.TOKENS: "the largest KV cache first",
}


def _choice(report: Report, row: Row) -> Choice:
    return Choice(
        row=row,
        bought=size_words.bought(row, TIMES),
        layout=size_words.layout(row, TIMES),
        bound_by=size_words.bound_by(row),
        variant="" if row.model == report.question.models[0].name else row.model,
        serve_line=serve_line(row.model, row.args, report.question.release),
    )


def _first(choice: Choice) -> First:
    plan = choice.row.plan
    kinds = kinds_of([plan])
    return First(
        choice=choice,
        bars=stacked_bars(kinds),
        budget=budget_of(kinds),
        accuracy=accuracy(plan),
        ledger=ledger_sections([plan]),
    )


def _chart(report: Report, curves: Sequence[Curve]) -> Chart | None:
    demand = report.question.demand
    return line_chart(
        [
            Series(
                name=curve.name,
                points=tuple(
                    (length, held, Status.STARTS)
                    for length, held in zip(curve.lengths, curve.sequences, strict=True)
                ),
            )
            for curve in curves
            if curve.lengths
        ],
        across=[(demand.sequences, f"{demand.sequences:,} asked")],
        upright=[(demand.longest_tokens, f"asked: {tokens_short(demand.longest_tokens)}")],
    )


def _held(curves: Sequence[Curve]) -> tuple[Held, ...]:
    shown = [dict(zip(curve.lengths, curve.sequences, strict=True)) for curve in curves if curve.lengths]
    lengths = sorted({length for curve in shown for length in curve})
    return tuple(
        Held(length=length, sequences=tuple(curve.get(length) for curve in shown)) for length in lengths
    )
