"""What the page of a plan shows, arranged for its template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_capacity.answer import Plan, RefusedPlan, Status
from vllm_capacity.budget import Account
from vllm_capacity.frozen import dataclass
from vllm_capacity.report.html import words
from vllm_capacity.report.html.accuracy import Accuracy, accuracy
from vllm_capacity.report.html.bars import Bars, stacked_bars
from vllm_capacity.report.html.kinds import Kind, columns_of, kinds_of
from vllm_capacity.report.html.ledger import Section, ledger_sections
from vllm_capacity.report.html.lines import Chart, Series, line_chart, tokens_short
from vllm_capacity.reproduce import fit_to_show, serve_line

if TYPE_CHECKING:
    from vllm_capacity.context_curve import ContextPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How each kind of GPU comes to its KV cache: the requested share less each item, one column per kind."""

    kinds: tuple[Kind, ...]
    items: tuple[tuple[str, tuple[int, ...]], ...]
    columns: tuple[slice, ...]
    """Which kinds stand side by side in one table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One resolved setting, under vLLM's name."""

    name: str
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPart:
    """One plan with all that follows from it."""

    plan: Plan
    short: str
    headline: str
    symbol: str
    sentence: str
    asked: str
    serve_line: str
    layout: str
    settings: tuple[Setting, ...]
    curve: tuple[ContextPoint, ...]
    accuracy: Accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPart:
    """A layout that vLLM refuses."""

    plan: RefusedPlan
    short: str
    headline: str
    symbol: str
    sentence: str
    asked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """All plans of a page; `parts` are those that were counted."""

    title: str
    all: tuple[PlanPart | RefusedPart, ...]
    parts: tuple[PlanPart, ...]
    refused: tuple[RefusedPart, ...]
    bars: Bars | None
    budget: Budget
    chart: Chart | None
    ledger: tuple[Section, ...]

    @property
    def status(self) -> Status:
        """The best of all: the question was which of them starts."""
        found = {part.plan.verdict.status for part in self.all}
        return next(s for s in (Status.STARTS, Status.TOO_CLOSE, Status.DOES_NOT_START) if s in found)

    @property
    def headline(self) -> str:
        """One layout: its own; of several, which of them start."""
        if len(self.all) == 1:
            return self.all[0].headline
        names = [part.short for part in self.all if part.plan.verdict.status is self.status]
        if len(names) == len(self.all):
            return f"{words.HEADLINES[self.status]} in each of {len(names)} layouts"
        return f"{words.HEADLINES[self.status]} with {', '.join(names)}"

    @property
    def symbol(self) -> str:
        return words.SYMBOLS[self.status]

    @property
    def first(self) -> PlanPart | RefusedPart:
        return self.all[0]


def plan_view(plans: Sequence[Plan | RefusedPlan], curves: Sequence[Sequence[ContextPoint]]) -> PlanView:
    """`curves` in the order of `plans`; missing ones are left out."""
    given = [*curves, *[()] * (len(plans) - len(curves))]
    every = tuple(_part(plan, curve) for plan, curve in zip(plans, given, strict=True))
    parts = tuple(part for part in every if isinstance(part, PlanPart))
    counted = [part.plan for part in parts]
    kinds = kinds_of(counted)
    first = plans[0]
    where = words.gpus(first) if len(plans) == 1 else f"{first.device.name}: {len(plans)} layouts"
    return PlanView(
        title=f"{first.config.name} on {where}",
        all=every,
        parts=parts,
        refused=tuple(part for part in every if isinstance(part, RefusedPart)),
        bars=stacked_bars(kinds) if kinds else None,
        budget=budget_of(kinds),
        chart=_chart(parts),
        ledger=ledger_sections(counted) if counted else (),
    )


def _part(plan: Plan | RefusedPlan, curve: Sequence[ContextPoint]) -> PlanPart | RefusedPart:
    status = plan.verdict.status
    if isinstance(plan, RefusedPlan):
        return RefusedPart(
            plan=plan, short=words.short_layout(plan), headline=words.HEADLINES[status],
            symbol=words.SYMBOLS[status], sentence=words.sentence(plan),
        )  # fmt: skip
    return PlanPart(
        plan=plan,
        short=words.short_layout(plan),
        headline=words.HEADLINES[status],
        symbol=words.SYMBOLS[status],
        sentence=words.sentence(plan),
        asked=words.concurrency_sentence(plan),
        serve_line=serve_line(plan.config.name, plan.engine.args, plan.release),
        layout=words.layout(plan.engine.parallel),
        settings=tuple(_settings(plan)),
        curve=tuple(curve),
        accuracy=accuracy(plan),
    )


_SUBTRACTED = (
    ("weights", Account.WEIGHTS),
    ("activation peak", Account.ACTIVATION),
    ("non-torch", Account.NON_TORCH),
    ("runner buffers", Account.RUNNER_BUFFERS),
)


def budget_of(kinds: Sequence[Kind]) -> Budget:
    """Items that are nothing everywhere are left out."""
    items = [(name, tuple(kind.rank.budget.totals[of] for kind in kinds)) for name, of in _SUBTRACTED]
    items.append(("graph estimate", tuple(kind.rank.budget.graph_applied_bytes for kind in kinds)))
    return Budget(
        kinds=tuple(kinds), items=tuple(item for item in items if any(item[1])), columns=columns_of(kinds)
    )


def _settings(plan: Plan) -> list[Setting]:
    engine, kv = plan.engine, plan.kv_cache
    found: list[tuple[str, object]] = [
        ("usage", "vllm serve" if engine.usage == "server" else "the LLM class (offline)"),
        ("dtype", engine.dtype),
        ("quantization", engine.quantization or "none"),
        ("kv_cache_dtype", engine.kv_cache_dtype),
        ("max_model_len", kv.max_model_len),
        ("max_num_batched_tokens", engine.max_num_batched_tokens),
        ("max_num_seqs", engine.max_num_seqs),
        ("gpu_memory_utilization", engine.gpu_memory_utilization),
        ("block_size", kv.block_size),
        ("attention_backends", ", ".join(engine.attention_backends) or "none"),
        ("model_runner", engine.model_runner),
        ("cudagraph_mode", engine.cudagraph_mode),
        ("enable_prefix_caching", engine.enable_prefix_caching),
        ("enable_chunked_prefill", engine.enable_chunked_prefill),
        ("async_scheduling", engine.async_scheduling),
    ]
    if engine.kv_cache_memory_bytes:
        found.append(("kv_cache_memory_bytes", engine.kv_cache_memory_bytes))
    if engine.num_gpu_blocks_override is not None:
        found.append(("num_gpu_blocks_override", engine.num_gpu_blocks_override))
    if engine.num_speculative_tokens:
        found.append(("num_speculative_tokens", engine.num_speculative_tokens))
    found += fit_to_show(engine.args, plan.release).environment.items()
    return [Setting(name=name, value=value) for name, value in found]


def _chart(parts: Sequence[PlanPart]) -> Chart | None:
    """All curves; references only where they hold for all of them."""
    series = [
        Series(
            name=part.short,
            points=tuple((p.max_model_len, p.max_concurrency, p.status) for p in part.curve),
        )
        for part in parts
        if part.curve
    ]
    if not series:
        return None
    plan = parts[0].plan
    across = [(1.0, "one request")]
    if plan.verdict.concurrency:
        across.append((plan.verdict.concurrency.asked, f"{plan.verdict.concurrency.asked:,} asked"))
    if len({part.plan.engine.max_num_seqs for part in parts}) == 1:
        across.append((plan.engine.max_num_seqs, f"--max-num-seqs {plan.engine.max_num_seqs:,}"))
    lengths = {part.plan.kv_cache.max_model_len for part in parts}
    upright = (
        [(length, f"planned: {tokens_short(length)}") for length in lengths] if len(lengths) == 1 else []
    )
    return line_chart(series, across=across, upright=upright)
