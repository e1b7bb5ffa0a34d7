"""Two plans beside each other: every figure and every term of the tightest rank, with the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.budget import Account
from vllm_capacity.ledger import Allocator, Lifetime

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class CompareRow:
    """`unit` is bytes, count or text; a side is None where it has no such figure."""

    group: str
    name: str
    unit: str
    a: int | float | str | None
    b: int | float | str | None

    @property
    def difference(self) -> int | float | None:
        """b - a of numbers; a term that one side lacks counts as 0 there."""
        if self.unit == "text":
            return None
        a, b = self.a or 0, self.b or 0
        assert not isinstance(a, str)
        assert not isinstance(b, str)
        return b - a

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "difference": self.difference}


def compared(a: Plan | RefusedPlan, b: Plan | RefusedPlan) -> list[CompareRow]:
    """Inputs that differ, the result, the budget, then every term of the rank that decides."""
    rows = [
        CompareRow("verdict", "status", "text", a.verdict.status.value, b.verdict.status.value),
        CompareRow("verdict", "reason", "text", _reason(a), _reason(b)),
    ]
    left, right = (dict(_figures(plan)) if isinstance(plan, Plan) else {} for plan in (a, b))
    for key in dict.fromkeys((*left, *right)):
        rows.append(CompareRow(*key, left.get(key), right.get(key)))
    groups = list(dict.fromkeys(row.group for row in rows))
    rows.sort(key=lambda row: groups.index(row.group))
    return [row for row in rows if row.unit != "text" or row.a != row.b or row.name == "status"]


def _reason(plan: Plan | RefusedPlan) -> str | None:
    return plan.verdict.reason.value if plan.verdict.reason else None


def _figures(plan: Plan) -> Iterator[tuple[tuple[str, str, str], int | float | str | None]]:
    engine, rank, cache = plan.engine, plan.tightest, plan.kv_cache
    parallel = engine.parallel
    for name, text in (
        ("model", plan.config.name), ("gpu", plan.device.name), ("vLLM", plan.release.version), ("dtype", engine.dtype),
        ("kv_cache_dtype", engine.kv_cache_dtype), ("quantization", engine.quantization),
        ("model runner", engine.model_runner),
        ("attention backends", ", ".join(engine.attention_backends)), ("cudagraph_mode", engine.cudagraph_mode),
    ):  # fmt: skip
        yield ("settings", name, "text"), text
    for name, number in (
        ("gpus", parallel.num_gpus), ("tensor_parallel_size", parallel.tp), ("pipeline_parallel_size", parallel.pp),
        ("data_parallel_size", parallel.dp), ("gpu_memory_utilization", engine.gpu_memory_utilization),
        ("max_num_batched_tokens", engine.max_num_batched_tokens), ("max_num_seqs", engine.max_num_seqs),
        ("max_model_len", cache.max_model_len), ("block_size", cache.block_size),
    ):  # fmt: skip
        yield ("settings", name, "count"), number
    yield ("result", "KV cache tokens", "count"), cache.tokens
    yield ("result", "concurrency", "count"), round(cache.max_concurrency, 2)
    yield ("result", "largest max_model_len", "count"), plan.verdict.max_model_len_that_fits
    budget = rank.budget
    yield ("budget", "total", "bytes"), plan.device.cuda_total_bytes
    yield ("budget", "requested", "bytes"), budget.requested_bytes
    for account in (Account.WEIGHTS, Account.ACTIVATION, Account.NON_TORCH, Account.RUNNER_BUFFERS):
        yield ("budget", account.value, "bytes"), budget.totals[account]
    yield ("budget", "graph estimate", "bytes"), budget.graph_applied_bytes
    yield ("budget", "available for KV cache", "bytes"), budget.available_kv_bytes
    yield ("budget", "in use once up", "bytes"), rank.device_used_bytes
    terms: dict[tuple[str, str, str], int] = {}
    for t in rank.terms:
        if t.allocator is not Allocator.HOST and t.lifetime is not Lifetime.RUNTIME:
            key = (f"terms of {t.component.value}", t.name, "bytes")
            terms[key] = terms.get(key, 0) + t.n_bytes
    yield from terms.items()


def print_comparison(
    plans: Sequence[Plan | RefusedPlan], titles: tuple[str, str], rows: Sequence[CompareRow], console: Console
) -> None:
    """A table; settings and terms that are equal on both sides are left out."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", overflow="fold")
    table.add_column("difference", justify="right", no_wrap=True)
    group = ""
    for row in rows:
        equal = row.a == row.b
        if equal and (row.group == "settings" or row.group.startswith("terms") or not row.a):
            continue
        if row.group != group:
            group = row.group
            table.add_row(f"[bold]{group}[/]", "", "", "")
        table.add_row(
            f"  {row.name}",
            _cell(row.a, row.unit),
            _cell(row.b, row.unit),
            "=" if equal else _difference(row),
        )
    console.print(table)
    for title, plan in zip(titles, plans, strict=True):
        if plan.verdict.message:
            console.print(f"{title}: {plan.verdict.message}", markup=False, highlight=False)
    console.print(
        "[dim]bytes in GiB, of the GPU with the fewest blocks; what is equal on both sides is left out[/]"
    )


def _cell(value: int | float | str | None, unit: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value / 2**30:,.3f}" if unit == "bytes" else f"{value:,}"


def _difference(row: CompareRow) -> str:
    change = row.difference
    if change is None:
        return ""
    if row.unit == "bytes":
        return f"{change / 2**30:+,.3f}"
    return f"{change:+,}" if isinstance(change, int) else f"{change:+,.2f}"
