"""The answer of `size` for people. Nothing here computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_capacity.report.size_data import serve_line
from vllm_capacity.report.size_words import ASSUMPTION, bought, bound_by, flips, layout
from vllm_capacity.sizing.row import Row
from vllm_capacity.sizing.sensitivity import Sensitivity

if TYPE_CHECKING:
    from rich.console import Console
    from vllm_capacity.sizing.ask import Report

LEFT_OUT_SHOWN = 3


def print_answer(report: Report, console: Console, *, top: int) -> None:
    """Demand, rows, what the first row rests on, and what was left out."""
    question = report.question
    console.print(
        f"[bold]{question.models[0].name}[/] on vLLM {question.release.version} [dim]({question.release_source})[/]",
        highlight=False,
    )
    for line in question.demand.how:
        console.print(line, markup=False, highlight=False)
    for warning in report.warnings:
        console.print(f"[yellow]warning:[/] {warning}", highlight=False)
    if not report.rows:
        console.print("\n[bold red]No GPU holds it.[/]")
    else:
        console.print()
        _print_table(report, report.rows[:top], console)
        if len(report.rows) > top:
            console.print(f"[dim]{len(report.rows) - top} more rows; --top N shows them[/]", highlight=False)
        _print_first(report, report.rows[0], console)
        _print_sensitivities(report.sensitivities, console)
    _print_left_out(report, console)


def _print_table(report: Report, rows: tuple[Row, ...], console: Console) -> None:
    from rich.table import Table

    prices = report.question.prices
    wide = console.width >= 120
    table = Table(box=None, pad_edge=False)
    table.add_column("buy", no_wrap=True)
    table.add_column("layout", no_wrap=True)
    table.add_column("KV cache" if console.width >= 100 else "KV", no_wrap=True)
    table.add_column("requests at once" if wide else "at once", justify="right", no_wrap=True)
    table.add_column("headroom", justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    if wide:
        table.add_column("KV cache tokens", justify="right", no_wrap=True)
        table.add_column("kW", justify="right", no_wrap=True)
        table.add_column("decode tok/s at most", justify="right")
    if prices:
        table.add_column(
            f"{prices.currency}{'/h' if prices.unit == 'gpu_hour' else ''}", justify="right", no_wrap=True
        )
    table.add_column("model", overflow="fold", style="dim")
    first = report.question.models[0].name
    for row in rows:
        cells = [
            bought(row), layout(row), row.args.kv_cache_dtype, f"{row.sequences:,}", f"{row.headroom:+.0%}",
            bound_by(row),
        ]  # fmt: skip
        if wide:
            cells += [
                f"{row.total_kv_cache_size_tokens:,}", f"{row.power_watts / 1000:.1f}" if row.power_watts else "?",
                f"{row.decode_ceiling:,.0f}" if row.decode_ceiling else "?",
            ]  # fmt: skip
        if prices:
            cells.append(f"{row.cost:,.2f}" if row.cost is not None else "no price")
        table.add_row(*cells, "as asked" if row.model == first else row.model)
    console.print(table)


def _print_first(report: Report, row: Row, console: Console) -> None:
    demand = report.question.demand
    purchase = row.purchase
    console.print("\n[bold]The first row[/]")
    console.print(
        f"{purchase.replicas} replica(s) of {row.layout.gpus} GPU(s): {purchase.gpus_used} GPUs used, "
        f"{purchase.gpus_bought} bought"
        + (f" in {purchase.nodes} box(es)" if row.node.whole else "")
        + f"; {row.sequences:,} requests at once for {demand.sequences:,} asked",
        highlight=False,
    )
    console.print(
        f"each engine prints: GPU KV cache size: {row.plan.kv_cache.size_tokens:,} tokens, Maximum concurrency for "
        f"{row.plan.kv_cache.max_model_len:,} tokens per request: {row.plan.kv_cache.max_concurrency:.2f}x",
        highlight=False,
    )
    console.print(
        f"safety margin, already taken off what is held at once: {row.margin}", markup=False, highlight=False
    )
    if row.decode_ceiling:
        console.print(
            f"memory bandwidth alone allows at most {row.decode_ceiling:,.0f} decoded tokens/s with "
            f"{demand.sequences:,} requests of "
            f"{demand.mean_tokens:,.0f} tokens; an upper bound, no forecast",
            highlight=False,
        )
    if row.plan.verdict.message:
        console.print(row.plan.verdict.message, markup=False, highlight=False)
    console.print(serve_line(report, row), markup=False, highlight=False, soft_wrap=True)


def _print_sensitivities(items: tuple[Sensitivity, ...], console: Console) -> None:
    if not items:
        return
    console.print("\n[bold]What flips this verdict first[/] (each moved alone, re-planned)")
    for item in items:
        console.print(f"{ASSUMPTION[item.assumption]:<17} {flips(item)}", markup=False, highlight=False)


def _print_left_out(report: Report, console: Console) -> None:
    if not report.left_out:
        return
    names = ", ".join(gpu for gpu, _ in report.left_out)
    console.print(f"\n[dim]no layout tried holds it on {names}[/]", highlight=False)
    if not report.rows or len(report.left_out) <= LEFT_OUT_SHOWN:
        for gpu, reason in report.left_out[:LEFT_OUT_SHOWN]:
            console.print(f"{gpu}: {reason}", markup=False, highlight=False)
