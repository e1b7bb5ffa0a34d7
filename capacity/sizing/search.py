"""Which purchases hold the demand: every GPU, layout, cache dtype and variant, planned with the library's pure plan.

Layouts that vLLM refuses are left out before planning. The others are planned best first, by a lower bound on the GPUs they
need that follows from the plan of a single GPU; what cannot win any more is not planned at all.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from vllm_capacity.answer import Plan, RefusedPlan, Status
from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.budget import Account
from vllm_capacity.calibration import Calibration
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError, Reason
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release
from vllm_capacity.sizing.bandwidth import decode_ceiling
from vllm_capacity.sizing.bound import NEVER, Bound, sequence_bytes
from vllm_capacity.sizing.demand import Demand
from vllm_capacity.sizing.engine_capacity import Limit, engine_capacity
from vllm_capacity.sizing.layouts import ONE_GPU, Fixed, Layout, layouts, with_layout
from vllm_capacity.sizing.margins import safety_margin
from vllm_capacity.sizing.nodes import Node, purchase
from vllm_capacity.sizing.prices import Prices
from vllm_capacity.sizing.rank import Sort, best_of
from vllm_capacity.sizing.repair import repair
from vllm_capacity.sizing.row import Binding, Recipe, Row
from vllm_capacity.units import cdiv

Progress = Callable[[int, int, str], None]
"""(done, of how many, what is being planned)."""

MOST_GPUS = 16
"""GPUs of one replica, unless the user allows more: two nodes of eight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be served, with what, and what the user fixed. `models` are the model asked for and then its variants."""

    models: tuple[ModelConfig, ...]
    args: EngineArgs
    release: Release
    release_source: str
    demand: Demand
    nodes: tuple[Node, ...]
    fixed: Fixed = field(default_factory=Fixed)
    cache_dtypes: tuple[str, ...] = ("auto", "fp8")
    most_gpus: int = MOST_GPUS
    sort: Sort = Sort.GPUS
    prices: Prices | None = None
    calibration: Calibration | None = None
    every_layout: bool = False
    """Keep every layout that holds the demand, not only the best per GPU, model and cache dtype."""
    share_work: bool = True
    """Whether child processes may take part in the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Rows in no order, and why GPUs have none: (GPU, the reason of the layout that came closest)."""

    rows: tuple[Row, ...]
    left_out: tuple[tuple[str, str], ...]
    plans_made: int


@dataclass(slots=True)
class _Search:
    question: Question
    known: dict[tuple[str, str, str, int, Layout], tuple[int, float]] = field(default_factory=dict)
    """(bytes of weights on the fullest rank, KV bytes of a mean sequence) of layouts planned on a GPU of the same kind: by
    model, cache dtype, vendor and compute capability."""
    refused: dict[tuple[str, str, str, int, Layout], str] = field(default_factory=dict)
    """Layouts that vLLM refuses for this model and kind of GPU, with its reason."""
    plans_made: int = 0
    first_error: InputError | None = None


def search(question: Question, progress: Progress | None = None) -> Answer:
    """All rows. Raises InputError where no candidate at all can be planned (the model is not modelled, say)."""
    groups = _groups(question)
    if question.share_work and len(question.nodes) > ALONE and len(groups) > 1 and can_share_work():
        found = list(_shared(question, groups, progress))
    else:
        found = []
        for number, group in enumerate(groups):
            if progress:
                progress(number, len(groups), group[0].device.name)
            found.append(_found(question, group))
    if progress:
        progress(len(groups), len(groups), "")
    plans_made = sum(part.plans_made for part in found)
    error = next((part.first_error for part in found if part.first_error), None)
    if not plans_made and error is not None:
        raise InputError(error)
    rows = [_row_again(question, choice) for part in found for choice in part.choices]
    return Answer(
        rows=tuple(row for row in rows if row is not None),
        left_out=tuple(item for part in found for item in part.left_out),
        plans_made=plans_made,
    )


ALONE = 8
"""So many GPUs are searched in this process: others would cost more to start than they save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """A row in few bytes: what planning it again needs."""

    node: Node
    model: int
    layout: Layout
    args: EngineArgs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What one group of GPUs gave."""

    choices: tuple[_Choice, ...]
    left_out: tuple[tuple[str, str], ...]
    plans_made: int
    first_error: str | None


def _groups(question: Question) -> list[tuple[Node, ...]]:
    """GPUs of one kind together, the largest first: what their plans say bounds what smaller ones of the kind can do."""
    kinds: dict[tuple[str, int], list[Node]] = {}
    for node in sorted(question.nodes, key=lambda node: -node.device.cuda_total_bytes):
        kinds.setdefault((node.device.vendor, node.device.sm), []).append(node)
    return sorted((tuple(nodes) for nodes in kinds.values()), key=len, reverse=True)


def _found(question: Question, nodes: tuple[Node, ...]) -> _Found:
    state = _Search(question)
    choices: list[_Choice] = []
    left_out: list[tuple[str, str]] = []
    for node in nodes:
        before, why = len(choices), ""
        for number, config in enumerate(question.models):
            for cache_dtype in question.cache_dtypes:
                rows, reason = _rows(state, node, config, number > 0, cache_dtype)
                choices += [
                    _Choice(node=node, model=number, layout=row.layout, args=row.args) for row in rows
                ]
                why = why or reason
        if len(choices) == before:
            left_out.append((node.device.name, why or "no layout holds the demand"))
    return _Found(
        choices=tuple(choices), left_out=tuple(left_out), plans_made=state.plans_made,
        first_error=str(state.first_error) if state.first_error else None,
    )  # fmt: skip


def _row_again(question: Question, choice: _Choice) -> Row | None:
    config = question.models[choice.model]
    recipe = _recipe(question, choice.node, config, choice.args)
    plan = recipe.plan()
    assert isinstance(plan, Plan)
    return _row(question, choice.node, choice.model > 0, choice.layout, recipe, plan)


# -- on two cores -------------------------------------------------------------------------------------------------

_shared_question: Question | None = None


def can_share_work() -> bool:
    """Whether child processes can take over the question as it is: by fork, on a machine of at least two cores."""
    return (
        "fork" in multiprocessing.get_all_start_methods()
        and sys.platform == "linux"
        and (os.cpu_count() or 1) > 1
    )


def _shared(
    question: Question, groups: Sequence[tuple[Node, ...]], progress: Progress | None
) -> Iterator[_Found]:
    """Groups of GPUs over child processes; each answers in few bytes, in the order of `groups`."""
    workers = min(os.cpu_count() or 1, len(groups), MOST_WORKERS)
    # Ctrl-C reaches every process of the terminal: this one ends the others, which say nothing about it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        children = multiprocessing.get_context("fork").Pool(workers, _begin, (question,))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with children as pool:
        for number, found in enumerate(pool.imap(_found_in_child, groups)):
            if progress:
                progress(number + 1, len(groups), groups[number][0].device.name)
            yield found


MOST_WORKERS = 4


def _begin(question: Question) -> None:
    global _shared_question
    _shared_question = question
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # how the pool ends them


def _found_in_child(nodes: tuple[Node, ...]) -> _Found:
    assert _shared_question is not None
    return _found(_shared_question, nodes)


def _rows(
    state: _Search, node: Node, config: ModelConfig, variant: bool, cache_dtype: str
) -> tuple[list[Row], str]:
    """The best row (or all) of one GPU, model and cache dtype, and why there is none."""
    question = state.question
    try:
        candidates = _layouts(question, config, node)
        bound = _bound(state, node, config, cache_dtype)
    except InputError as error:
        state.first_error = state.first_error or error
        return [], str(error)
    if isinstance(bound, str):
        return [], bound
    found: list[Row] = []
    why = "no layout is valid"
    kind = (config.name, cache_dtype, node.device.vendor, node.device.sm)
    for least, layout in sorted(
        (bound.fewest_gpus(node, layout, state.known.get((*kind, layout))), layout) for layout in candidates
    ):
        best = best_of(found, question.sort)
        if least == NEVER:
            why = f"{Reason.LOAD_PEAK.value}: the weights do not fit"
        elif (*kind, layout) in state.refused:
            why = state.refused[(*kind, layout)]
        elif best is None or question.every_layout or not _cannot_win(least, layout, best, question.sort):
            args = replace(with_layout(question.args, layout), kv_cache_dtype=cache_dtype)
            row = _tried(state, node, config, variant, layout, args)
            if isinstance(row, str):
                why = row
            else:
                found.append(row)
    best = best_of(found, question.sort)
    return (found if question.every_layout else [best] if best else []), why


def _tried(
    state: _Search,
    node: Node,
    config: ModelConfig,
    variant: bool,
    layout: Layout,
    args: EngineArgs,
) -> Row | str:
    """The row of one layout, or why there is none."""
    question = state.question
    kind = (config.name, args.kv_cache_dtype, node.device.vendor, node.device.sm, layout)
    try:
        args, plan = _settled(state, node, config, args)
    except InputError as error:
        state.first_error = state.first_error or error
        return str(error)
    if isinstance(plan, RefusedPlan):
        if plan.verdict.reason is Reason.INVALID_LAYOUT:
            state.refused[kind] = plan.verdict.message
        return plan.verdict.message
    state.known[kind] = (
        max(rank.budget.totals[Account.WEIGHTS] for rank in plan.ranks),
        sequence_bytes(plan, question.demand),
    )
    if not plan.starts and not _unmeasured(plan):
        reason = plan.verdict.reason.value if plan.verdict.reason else ""
        return f"{plan.verdict.status.value}: {reason}: {plan.verdict.message}"
    row = _row(question, node, variant, layout, _recipe(question, node, config, args), plan)
    return row or "one engine does not hold a single request of the demand within the safety margin"


def _cannot_win(least: int, layout: Layout, best: Row, sort: Sort) -> bool:
    bought = best.purchase.gpus_bought
    if least != bought or sort in (Sort.HEADROOM, Sort.TOKENS):
        return least > bought
    return not layout.plain  # of as many GPUs only plain tensor parallelism is worth another plan


def _bound(state: _Search, node: Node, config: ModelConfig, cache_dtype: str) -> Bound | str:
    """From the plan of a single GPU, whether it fits or not; or why no layout at all can be planned there."""
    demand = state.question.demand
    plan = _plan(
        state, node, config, replace(with_layout(state.question.args, ONE_GPU), kv_cache_dtype=cache_dtype)
    )
    if isinstance(plan, RefusedPlan):
        if plan.verdict.reason is Reason.INVALID_LAYOUT:
            return Bound(1 << 60, 0, 0.0, demand.sequences)
        return plan.verdict.message
    budget = plan.tightest.budget
    return Bound(
        share_bytes=budget.requested_bytes - budget.totals[Account.NON_TORCH],
        weights_bytes=budget.totals[Account.WEIGHTS],
        sequence_bytes=sequence_bytes(plan, demand),
        demanded=demand.sequences,
    )


def _unmeasured(plan: Plan) -> bool:
    """It would start as far as can be told, but nothing was ever measured on this vendor's GPUs."""
    return (
        plan.device.vendor != "nvidia"
        and plan.verdict.status is Status.TOO_CLOSE
        and plan.verdict.reason is None
    )


def _layouts(question: Question, config: ModelConfig, node: Node) -> tuple[Layout, ...]:
    return layouts(
        _architecture(config, question.release), question.release, question.fixed, node_gpus=node.gpus,
        most_gpus=1 if node.gpus == 1 else question.most_gpus, args=question.args,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _architecture(config: ModelConfig, release: Release) -> Architecture:
    return build_architecture(config, release)


def _settled(
    state: _Search, node: Node, config: ModelConfig, args: EngineArgs
) -> tuple[EngineArgs, Plan | RefusedPlan]:
    """The plan, with the share of memory or the number of sequences lowered where only that keeps it from starting."""
    plan = _plan(state, node, config, args)
    for _ in range(2):
        if isinstance(plan, RefusedPlan) or plan.starts:
            break
        changed = repair(state.question.args, args, plan)
        if changed is None:
            break
        other = _plan(state, node, config, changed)
        if isinstance(other, RefusedPlan):
            break
        args, plan = changed, other
    return args, plan


def _plan(state: _Search, node: Node, config: ModelConfig, args: EngineArgs) -> Plan | RefusedPlan:
    state.plans_made += 1
    return _recipe(state.question, node, config, args).plan()


def _recipe(question: Question, node: Node, config: ModelConfig, args: EngineArgs) -> Recipe:
    return Recipe(
        config=config, args=args, device=node.device, release=question.release,
        release_source=question.release_source, calibration=question.calibration,
    )  # fmt: skip


def _row(
    question: Question, node: Node, variant: bool, layout: Layout, recipe: Recipe, plan: Plan
) -> Row | None:
    """The row of a plan; None where an engine does not hold a single request."""
    demand = question.demand
    margin = safety_margin(question.release.version, node.device.name)
    capacity = engine_capacity(plan, demand, margin)
    per_replica = capacity.sequences * layout.dp
    if not per_replica:
        return None
    bought = purchase(node, layout.gpus, cdiv(demand.sequences, per_replica))
    sequences = per_replica * bought.replicas
    ceiling = decode_ceiling(
        plan, _at_work(demand, bought.replicas * layout.dp, capacity.sequences), demand.mean_tokens
    )
    power = node.device.power_watts
    return Row(
        quantised_variant=variant,
        node=node,
        layout=layout,
        recipe=recipe,
        status=plan.verdict.status,
        size_tokens=plan.kv_cache.size_tokens,
        margin=margin,
        capacity=capacity,
        purchase=bought,
        sequences=sequences,
        headroom=sequences / demand.sequences - 1,
        binding=_binding(plan, layout, cdiv(demand.sequences, per_replica), capacity.limit),
        cost=question.prices.cost(node, bought) if question.prices else None,
        power_watts=power * bought.gpus_bought if power else None,
        decode_ceiling=ceiling * bought.replicas if ceiling else None,
    )


def _at_work(demand: Demand, engines: int, most: int) -> int:
    """Sequences of one engine when the demand is spread evenly."""
    return min(cdiv(demand.sequences, engines), most)


def _binding(plan: Plan, layout: Layout, needed_replicas: int, limit: Limit) -> Binding:
    if needed_replicas > 1:
        return Binding.MAX_NUM_SEQS if limit is Limit.MAX_NUM_SEQS else Binding.KV_CACHE
    if layout.gpus == 1:
        return Binding.NOTHING
    weights = sum(rank.budget.totals[Account.WEIGHTS] * len(rank.ranks) for rank in plan.ranks)
    fewer = (layout.gpus - 1) * plan.tightest.budget.requested_bytes
    return Binding.WEIGHTS if weights > fewer else Binding.KV_CACHE
