"""Two plans beside each other: every figure and every term of the tightest rank, with the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from vllm_capacity._version import __version__
from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.budget import Account
from vllm_capacity.ledger import Allocator, Lifetime
from vllm_capacity.vocabulary import QUANTITIES

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1
Group = Literal["verdict", "settings", "result", "budget", "terms"]
Unit = Literal[
    "text", "bytes", "tokens", "requests", "sequences", "GPUs", "stages", "engines", "share of the total"
]
Figure = int | float | str | None


@dataclass(frozen=True, slots=True)
class CompareRow:
    """`name` is a key of `plan --json` or a term's name; a side is None where it has no such figure."""

    group: Group
    name: str
    unit: Unit
    a: Figure
    b: Figure
    component: str | None = None

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
    """Settings, the result, the budget, then every term of the rank that decides."""
    rows = [
        CompareRow("verdict", "status", "text", a.verdict.status.value, b.verdict.status.value),
        CompareRow("verdict", "reason", "text", _reason(a), _reason(b)),
    ]
    left, right = (dict(_figures(plan)) if isinstance(plan, Plan) else {} for plan in (a, b))
    for key in dict.fromkeys((*left, *right)):
        group, name, unit, component = key
        rows.append(CompareRow(group, name, unit, left.get(key), right.get(key), component))
    groups = list(dict.fromkeys((row.group, row.component) for row in rows))
    return sorted(rows, key=lambda row: groups.index((row.group, row.component)))


def comparison_to_dict(sides: tuple[str, str], rows: Sequence[CompareRow]) -> dict[str, Any]:
    """What `compare --json` prints; bytes are integers."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "side_a": sides[0],
        "side_b": sides[1],
        "rows": [row.as_dict() for row in rows],
    }


def _reason(plan: Plan | RefusedPlan) -> str | None:
    return plan.verdict.reason.value if plan.verdict.reason else None


def _figures(plan: Plan) -> Iterator[tuple[tuple[Group, str, Unit, str | None], Figure]]:
    engine, rank, cache = plan.engine, plan.tightest, plan.kv_cache
    parallel = engine.parallel
    texts: dict[str, str | None] = {
        "model": plan.config.name,
        "gpu": plan.device.name,
        "vllm_version": plan.release.version,
        "dtype": engine.dtype,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "quantization": engine.quantization,
        "model_runner": engine.model_runner,
        "attention_backends": ", ".join(engine.attention_backends),
        "cudagraph_mode": engine.cudagraph_mode,
    }
    for name, text in texts.items():
        yield ("settings", name, "text", None), text
    budget, totals = rank.budget, rank.budget.totals
    numbers: dict[Group, dict[str, int | float | None]] = {
        "settings": {
            "gpus_per_replica": parallel.num_gpus,
            "tensor_parallel_size": parallel.tp,
            "pipeline_parallel_size": parallel.pp,
            "data_parallel_size": parallel.dp,
            "gpu_memory_utilization": engine.gpu_memory_utilization,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "max_num_seqs": engine.max_num_seqs,
            "max_model_len": cache.max_model_len,
            "block_size": cache.block_size,
        },
        "result": {
            "kv_cache_size_tokens": cache.size_tokens,
            "max_concurrency": cache.max_concurrency,
            "max_model_len_that_fits": plan.verdict.max_model_len_that_fits,
        },
        "budget": {
            "cuda_total_bytes": plan.device.cuda_total_bytes,
            "requested_bytes": budget.requested_bytes,
            "weights_bytes": totals[Account.WEIGHTS],
            "activation_peak_bytes": totals[Account.ACTIVATION],
            "non_torch_bytes": totals[Account.NON_TORCH],
            "runner_buffers_bytes": totals[Account.RUNNER_BUFFERS],
            "graph_applied_bytes": budget.graph_applied_bytes,
            "available_kv_bytes": budget.available_kv_bytes,
            "device_used_bytes": rank.device_used_bytes,
        },
    }
    for group, figures in numbers.items():
        for name, number in figures.items():
            yield (group, name, cast(Unit, QUANTITIES[name].unit), None), number
    terms: dict[tuple[str, str], int] = {}
    for t in rank.terms:
        if t.allocator is not Allocator.HOST and t.lifetime is not Lifetime.RUNTIME:
            terms[t.component.value, t.name] = terms.get((t.component.value, t.name), 0) + t.n_bytes
    for (component, name), n_bytes in terms.items():
        yield ("terms", name, "bytes", component), n_bytes


def word(row: CompareRow) -> str:
    """What a table calls the figure."""
    return QUANTITIES[row.name].word if row.group != "terms" and row.name in QUANTITIES else row.name


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
        if equal and (row.group in ("settings", "terms") or not row.a):
            continue
        heading = f"terms of {row.component}" if row.component else row.group
        if heading != group:
            group = heading
            table.add_row(f"[bold]{group}[/]", "", "", "")
        table.add_row(
            f"  {word(row)}",
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
    if unit == "bytes":
        return f"{value / 2**30:,.3f}"
    return f"{value:,.2f}" if unit == "requests" else f"{value:,}"


def _difference(row: CompareRow) -> str:
    change = row.difference
    if change is None:
        return ""
    if row.unit == "bytes":
        return f"{change / 2**30:+,.3f}"
    return f"{change:+,}" if isinstance(change, int) else f"{change:+,.2f}"
