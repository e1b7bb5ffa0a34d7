"""A plan for people: verdict first, then what vLLM will print, then the ledger, then what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_capacity.answer import Plan, RankPlan, RefusedPlan, Status, Suggestion
from vllm_capacity.budget import Account
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm
from vllm_capacity.units import GIB, gib

if TYPE_CHECKING:
    from rich.console import Console

_VERDICT = {
    Status.STARTS: ("green", "starts"),
    Status.DOES_NOT_START: ("red", "does not start"),
    Status.TOO_CLOSE: ("yellow", "too close to call"),
}

_NOT_BUDGETED = (Account.OUTSIDE, Account.CUDA_GRAPHS)
BAR_WIDTH = 24


def escape(text: str) -> str:
    """Text from elsewhere, safe inside rich markup."""
    return text.replace("[", r"\[")


def print_plans(
    plans: Sequence[Plan | RefusedPlan], console: Console, *, serve_line: str | None = None
) -> None:
    """Prints one plan in full, several as one column per tensor-parallel degree."""
    if len(plans) == 1:
        plan = plans[0]
        if isinstance(plan, RefusedPlan):
            print_refusal(plan, console)
        else:
            print_plan(plan, console, serve_line=serve_line)
    else:
        print_columns(plans, console)


def print_refusal(plan: RefusedPlan, console: Console) -> None:
    reason = plan.verdict.reason.value if plan.verdict.reason else ""
    console.print(f"[bold red]does not start[/] ({reason}) on vLLM {plan.release.version}", highlight=False)
    console.print(plan.verdict.message, markup=False, highlight=False)


def print_plan(plan: Plan, console: Console, *, serve_line: str | None = None) -> None:
    """The whole report of one plan."""
    _print_headline(plan, console)
    for rank in plan.ranks:
        _print_ledger(plan, rank, console)
    _print_limits(plan, console)
    _print_suggestions(plan.verdict.suggestions, console)
    if serve_line:
        console.print("\n[bold]Command[/]")
        console.print(serve_line, markup=False, highlight=False, soft_wrap=True)
    _print_coverage(plan, console)


def capacity_line(plan: Plan) -> str:
    """What vLLM will print about its KV cache; one line from 0.28.0 on, two before (shown joined)."""
    kv = plan.kv_cache
    return (
        f"GPU KV cache size: {kv.size_tokens:,} tokens, "
        f"Maximum concurrency for {kv.max_model_len:,} tokens per request: {kv.max_concurrency:.2f}x"
    )


def _print_headline(plan: Plan, console: Console) -> None:
    colour, words = _VERDICT[plan.verdict.status]
    parallel = plan.engine.parallel
    layout = ", ".join(
        f"{name} {size}"
        for name, size in (
            ("tp", parallel.tp),
            ("pp", parallel.pp),
            ("dp", parallel.dp),
            ("dcp", parallel.dcp),
        )
        if size > 1 or name == "tp"
    )
    reason = f" ({plan.verdict.reason.value})" if plan.verdict.reason else ""
    console.print(
        f"[bold {colour}]{words}[/]{reason}: {plan.config.name} on {parallel.num_gpus} x {plan.device.name} ({layout}), "
        f"vLLM {plan.release.version} [dim]({plan.release_source})[/]",
        highlight=False,
    )
    if plan.verdict.message:
        console.print(plan.verdict.message, markup=False, highlight=False)
    if plan.kv_cache.num_blocks > 0:
        console.print(f"[bold]{capacity_line(plan)}[/]", highlight=False)
    if plan.verdict.concurrency:
        answer = plan.verdict.concurrency
        fits = "fit at once" if answer.fits else "do not fit at once"
        least = (
            f"; least utilisation that does it: {answer.min_gpu_memory_utilization:.4f}"
            if answer.min_gpu_memory_utilization is not None
            else "; no legal utilisation does it"
        )
        console.print(
            f"{answer.asked} requests of {plan.kv_cache.max_model_len:,} tokens {fits}{least}",
            highlight=False,
        )
    engine = plan.engine
    console.print(
        f"[dim]{plan.architecture.name}, {plan.parameters:,} parameters, {engine.dtype}, "
        f"KV cache {engine.kv_cache_dtype}, model runner {engine.model_runner}, "
        f"{engine.max_num_batched_tokens:,} tokens a batch, {engine.max_num_seqs:,} sequences, "
        f"{', '.join(engine.attention_backends) or 'no attention'}; config from {plan.config.source}[/]",
        highlight=False,
    )


def _rank_title(plan: Plan, rank: RankPlan) -> str:
    if len(plan.ranks) == 1:
        return f"each of {len(rank.ranks)} GPUs" if len(rank.ranks) > 1 else "the GPU"
    stages = sorted({pp for _, pp, _ in rank.ranks})
    return f"{len(rank.ranks)} GPU(s) of pipeline stage {', '.join(map(str, stages))}"


def _print_ledger(plan: Plan, rank: RankPlan, console: Console) -> None:
    from rich.table import Table

    total = plan.device.cuda_total_bytes
    console.print(f"\n[bold]Ledger of {_rank_title(plan, rank)}[/] ({gib(total)} total)", highlight=False)
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("component", no_wrap=True)
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_column("from - to", justify="right", no_wrap=True)
    plain = not console.encoding.startswith("utf")
    wide, widest = console.width >= 78, console.width >= 110
    if wide:
        table.add_column("share", no_wrap=True)
    if widest:
        table.add_column("largest parts", no_wrap=True, style="dim")
    absent = []
    for inside in (True, False):
        section = []
        for component in Component:
            part = [
                t
                for t, account in zip(rank.terms, rank.accounts, strict=True)
                if t.component is component and _on_device(t) and (account not in _NOT_BUDGETED) == inside
            ]
            n_bytes = sum(t.n_bytes for t in part)
            if n_bytes:
                cells = [component.value, f"{n_bytes / GIB:.3f}", _interval(part)]
                if wide:
                    cells.append(_bar(n_bytes, total, "cyan" if inside else "magenta", ascii_only=plain))
                if widest:
                    cells.append(_largest_parts(part, console.width - 80))
                section.append(cells)
            elif inside and not any(
                t.n_bytes for t in rank.terms if t.component is component and _on_device(t)
            ):
                absent.append(
                    (component, next((t.note for t in rank.terms if t.component is component and t.note), ""))
                )
        if section and not inside:
            table.add_section()
            table.add_row("[dim]outside vLLM's budget:[/]")
        for cells in section:
            table.add_row(*cells)
    console.print(table)
    for component, reason in absent:
        console.print(
            f"[dim]{component.value} 0 B{': ' if reason else ''}{escape(reason)}[/]", highlight=False
        )
    _print_sums(plan, rank, console)


def _on_device(t: MemoryTerm) -> bool:
    return t.lifetime is not Lifetime.RUNTIME and t.allocator is not Allocator.HOST


def _print_sums(plan: Plan, rank: RankPlan, console: Console) -> None:
    budget, total = rank.budget, plan.device.cuda_total_bytes
    subtracted = [
        (name, budget.totals[account])
        for name, account in (
            ("weights", Account.WEIGHTS),
            ("activation peak", Account.ACTIVATION),
            ("non-torch", Account.NON_TORCH),
            ("runner buffers", Account.RUNNER_BUFFERS),
        )
    ]
    subtracted.append(("graph estimate", budget.graph_applied_bytes))
    if plan.engine.kv_cache_memory_bytes:
        console.print(
            f"KV cache {gib(budget.available_kv_bytes)} as given by --kv-cache-memory-bytes", highlight=False
        )
    else:
        parts = " - ".join(f"{name} {gib(n)}" for name, n in subtracted if n)
        console.print(
            f"requested {gib(budget.requested_bytes)} ({plan.engine.gpu_memory_utilization:g} of the total) - {parts}\n"
            f"= [bold]{gib(budget.available_kv_bytes)}[/] for the KV cache "
            f"({gib(budget.available_kv_low_bytes)} to {gib(budget.available_kv_high_bytes)})",
            highlight=False,
        )
    if plan.kv_cache_warm is not None:
        console.print(
            f"second start (warm compile cache): {plan.kv_cache_warm.size_tokens:,} tokens, "
            f"activation peak {gib(rank.activation_peak_warm_bytes)}",
            highlight=False,
        )
    console.print(
        f"in use once the server is up: {gib(rank.device_used_bytes)} of {gib(total)}, "
        f"{gib(total - rank.device_used_bytes - plan.used_by_others_bytes)} left",
        highlight=False,
    )


def _interval(terms: Sequence[MemoryTerm]) -> str:
    low, high = sum(t.low for t in terms), sum(t.high for t in terms)
    return "exact" if low == high else f"{low / GIB:.2f} - {high / GIB:.2f}"


def _bar(n_bytes: int, total: int, colour: str, *, ascii_only: bool) -> str:
    """At least one cell for anything at all, so that small terms are seen to exist."""
    filled = min(BAR_WIDTH, max(round(BAR_WIDTH * n_bytes / total), 1))
    full, empty = ("#", ".") if ascii_only else ("█", "·")
    return f"[{colour}]{full * filled}[/][dim]{empty * (BAR_WIDTH - filled)}[/]"


def _largest_parts(terms: Sequence[MemoryTerm], width: int) -> str:
    """As many of the largest terms as fit into `width` characters."""
    largest = sorted((t for t in terms if t.n_bytes), key=lambda t: -t.n_bytes)
    shown = ""
    for t in largest:
        longer = f"{shown}{', ' if shown else ''}{t.name} {t.n_bytes / GIB:.2f}"
        if len(longer) > width:
            break
        shown = longer
    return shown


def _print_limits(plan: Plan, console: Console) -> None:
    verdict = plan.verdict
    console.print("\n[bold]Limits[/]")
    if verdict.max_model_len_that_fits:
        console.print(
            f"largest --max-model-len that fits: {verdict.max_model_len_that_fits:,}", highlight=False
        )
    if verdict.min_gpu_memory_utilization is not None and verdict.max_gpu_memory_utilization is not None:
        console.print(
            f"--gpu-memory-utilization: at least {verdict.min_gpu_memory_utilization:.4f} for one request of "
            f"{plan.kv_cache.max_model_len:,} tokens, at most {verdict.max_gpu_memory_utilization:.4f} "
            "of what is free at start-up",
            highlight=False,
        )
    host = plan.host
    console.print(
        f"host: {gib(host.shared_memory_bytes)} of /dev/shm, {gib(host.pinned_bytes)} pinned memory, "
        f"{gib(host.checkpoint_bytes)} of checkpoint on disk ({host.checkpoint_bytes_source})",
        highlight=False,
    )
    for warning in plan.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}", highlight=False)


def _print_suggestions(suggestions: Sequence[Suggestion], console: Console) -> None:
    if not suggestions:
        return
    console.print("\n[bold]What a single change does[/]")
    for s in suggestions:
        outcome = "starts" if s.effect.starts else "still does not start"
        console.print(
            f"{' '.join(s.flags)}  [dim]{s.change}[/]: {outcome}, "
            f"{s.effect.available_kv_bytes_delta / GIB:+.2f} GiB for the KV cache, "
            f"{s.effect.kv_cache_size_tokens_delta:+,} tokens",
            highlight=False,
        )


def _print_coverage(plan: Plan, console: Console) -> None:
    runs = plan.coverage.recorded_runs
    console.print(
        f"\n[dim]{runs} recorded run{'' if runs == 1 else 's'} behind this release's accounting; "
        f"calibration: {plan.coverage.source}"
        + (
            f"; outside what was measured: {', '.join(plan.coverage.outside_measured)}"
            if plan.coverage.outside_measured
            else ""
        )
        + "[/]",
        highlight=False,
    )


def print_columns(plans: Sequence[Plan | RefusedPlan], console: Console) -> None:
    """One column per tensor-parallel degree; refused layouts show vLLM's reason."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for plan in plans:
        table.add_column(
            f"tp {plan.tp if isinstance(plan, RefusedPlan) else plan.engine.parallel.tp}", justify="right"
        )
    table.add_row("verdict", *(_column_verdict(plan) for plan in plans))

    def row(name: str, cell: object) -> None:
        assert callable(cell)
        table.add_row(name, *("" if isinstance(plan, RefusedPlan) else cell(plan) for plan in plans))

    row("weights", lambda p: gib(p.tightest.budget.totals[Account.WEIGHTS]))
    row("activation peak", lambda p: gib(p.tightest.budget.totals[Account.ACTIVATION]))
    row("non-torch", lambda p: gib(p.tightest.budget.totals[Account.NON_TORCH]))
    row("graph estimate subtracted", lambda p: gib(p.tightest.budget.graph_applied_bytes))
    row("available for KV cache", lambda p: gib(p.tightest.budget.available_kv_bytes))
    row("KV cache tokens", lambda p: f"{p.kv_cache.size_tokens:,}")
    row("concurrency", lambda p: f"{p.kv_cache.max_concurrency:.2f}x")
    row("largest max_model_len", lambda p: f"{p.verdict.max_model_len_that_fits or 0:,}")
    row("in use once up", lambda p: gib(p.tightest.device_used_bytes))
    console.print(table)
    for plan in plans:
        if isinstance(plan, RefusedPlan):
            console.print(f"tp {plan.tp}: {plan.verdict.message}", markup=False, highlight=False)
        elif plan.verdict.message:
            console.print(
                f"tp {plan.engine.parallel.tp}: {plan.verdict.message}", markup=False, highlight=False
            )


def _column_verdict(plan: Plan | RefusedPlan) -> str:
    colour, words = _VERDICT[plan.verdict.status]
    return f"[{colour}]{words}[/]"


def explain(plan: Plan, name: str) -> list[str]:
    """Lines that explain a term or a component: formula with numbers, bytes, source. Empty when the name is unknown."""
    lines: list[str] = []
    for rank in plan.ranks:
        if name in (Component.ACTIVATION.value, "activation_peak"):
            lines += _explain_activation(plan, rank)
        for t, account in zip(rank.terms, rank.accounts, strict=True):
            if name not in (t.name, t.component.value):
                continue
            lines += [
                f"{t.name} ({t.component.value}, {_rank_title(plan, rank)}): {t.n_bytes:,} bytes = {gib(t.n_bytes, 3)}",
                f"  formula    {t.formula}",
                f"  numbers    {t.expression()} = {t.n_bytes}",
                f"  interval   {'exact' if t.low == t.high else f'{t.low:,} to {t.high:,} bytes'}",
                f"  accounting {account.value} (allocator {t.allocator.value}, {t.lifetime.value})",
                f"  source     {t.source}",
            ]
            if t.note:
                lines.append(f"  note       {t.note}")
    return lines


def _explain_activation(plan: Plan, rank: RankPlan) -> list[str]:
    lines = [f"phases of vLLM's profile run, {_rank_title(plan, rank)}:"]
    for phase in sorted(rank.activation.phases, key=lambda p: -p.n_bytes):
        mark = "*" if phase is rank.activation.winner else " "
        lines.append(f" {mark} {phase.name:<16} {gib(phase.n_bytes, 3)}")
    return lines
