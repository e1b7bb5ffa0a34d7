"""Which assumption flips the verdict of a purchase first: each is moved alone, and every figure comes from a new plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from vllm_capacity.answer import Plan
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.planner import make_plan
from vllm_capacity.releases import get_release, supported_releases
from vllm_capacity.releases.release import Release
from vllm_capacity.sizing.demand import Demand, Lengths
from vllm_capacity.sizing.engine_capacity import engine_capacity
from vllm_capacity.sizing.margins import safety_margin
from vllm_capacity.sizing.row import Row
from vllm_capacity.sizing.search import Question
from vllm_capacity.units import cdiv


class Assumption(StrEnum):
    CONTEXT = "context"
    CONCURRENCY = "concurrency"
    UTILIZATION = "utilization"
    BATCHED_TOKENS = "batched_tokens"
    CACHE_DTYPE = "cache_dtype"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One assumption: its value now, the last value that still holds the demand, and the first beyond it that does not.

    `distance` is |last - now| / now for numbers. `flips` False: no value tried breaks the verdict, and `last` is the
    furthest one. For the cache dtype and the release `beyond` lists the values that break it.
    """

    assumption: Assumption
    flag: str
    now: str
    last: str
    beyond: tuple[str, ...]
    flips: bool
    distance: float | None


@dataclass(frozen=True, slots=True)
class Case:
    """A purchase under changed assumptions."""

    config: ModelConfig
    row: Row
    question: Question

    def holds(
        self, *, args: EngineArgs | None = None, demand: Demand | None = None, release: Release | None = None
    ) -> bool:
        """Whether the same GPUs still hold the demand: the plan starts and the replicas take all sequences."""
        return (
            self.sequences(args=args, demand=demand, release=release)
            >= (demand or self.question.demand).sequences
        )

    def sequences(
        self, *, args: EngineArgs | None = None, demand: Demand | None = None, release: Release | None = None
    ) -> int:
        """Requests that the purchase holds at once; 0 where the plan does not start as the row's does."""
        release = release or self.question.release
        row = self.row
        try:
            plan = make_plan(
                self.config, args or row.args, row.device, release, suggestions=False,
                calibration=self.question.calibration,
            )  # fmt: skip
        except InputError:
            return 0
        if not isinstance(plan, Plan) or plan.verdict.status is not row.status:
            return 0
        margin = safety_margin(release.version, row.device.name)
        capacity = engine_capacity(plan, demand or self.question.demand, margin)
        return capacity.sequences * row.layout.dp * row.purchase.replicas


def sensitivities(question: Question, row: Row) -> tuple[Sensitivity, ...]:
    """Every assumption, the one that flips after the smallest relative change first, then what does not flip."""
    config = next(config for config in question.models if config.name == row.model)
    case = Case(config, row, question)
    found = [_context(case), _concurrency(case), _utilization(case), _batched_tokens(case), _release(case)]
    if row.fp8_cache:
        found.append(_cache_dtype(case))
    kept = [item for item in found if item is not None]
    return tuple(sorted(kept, key=lambda item: (not item.flips, item.distance is None, item.distance or 0.0)))


def with_context(demand: Demand, longest: int) -> Demand:
    """The same requests, all longer by the same factor, so that the longest has `longest` tokens."""
    factor = longest / demand.longest_tokens
    return replace(
        demand,
        lengths=tuple(Lengths(min(cdiv(round(point.tokens * longest), demand.longest_tokens), longest), point.weight)
                      for point in demand.lengths),
        p95_tokens=min(round(demand.p95_tokens * factor), longest),
        longest_tokens=longest,
    )  # fmt: skip


def _context(case: Case) -> Sensitivity:
    demand = case.question.demand
    now = demand.longest_tokens
    limit = max(case.row.plan.engine.derived_max_model_len, now)

    def holds(length: int) -> bool:
        return case.holds(
            args=replace(case.row.args, max_model_len=length), demand=with_context(demand, length)
        )

    last = _last(holds, now, limit)
    return _number(Assumption.CONTEXT, "--max-model-len", now, last, limit)


def _concurrency(case: Case) -> Sensitivity:
    now, last = case.question.demand.sequences, case.row.sequences
    return Sensitivity(
        assumption=Assumption.CONCURRENCY, flag="--concurrency", now=str(now), last=str(last), beyond=(str(last + 1),),
        flips=True, distance=(last - now) / now,
    )  # fmt: skip


STEPS = 10_000
"""vLLM prints utilisations with four digits."""


def _utilization(case: Case) -> Sensitivity | None:
    if case.row.args.kv_cache_memory_bytes:
        return None
    now = case.row.plan.engine.gpu_memory_utilization
    start = round(now * STEPS)

    def holds(steps_down: int) -> bool:
        return case.holds(args=replace(case.row.args, gpu_memory_utilization=(start - steps_down) / STEPS))

    down = _last(holds, 0, start - 1)
    last = (start - down) / STEPS
    return Sensitivity(
        assumption=Assumption.UTILIZATION, flag="--gpu-memory-utilization", now=f"{now:g}", last=f"{last:g}",
        beyond=(f"{(start - down - 1) / STEPS:g}",), flips=down < start - 1, distance=(now - last) / now,
    )  # fmt: skip


MOST_BATCHED_TOKENS = 1 << 18


def _batched_tokens(case: Case) -> Sensitivity:
    now = case.row.plan.engine.max_num_batched_tokens

    def holds(tokens: int) -> bool:
        return case.holds(args=replace(case.row.args, max_num_batched_tokens=tokens))

    last = _last(holds, now, max(MOST_BATCHED_TOKENS, now))
    return _number(
        Assumption.BATCHED_TOKENS, "--max-num-batched-tokens", now, last, max(MOST_BATCHED_TOKENS, now)
    )


def _number(assumption: Assumption, flag: str, now: int, last: int, limit: int) -> Sensitivity:
    flips = last < limit
    return Sensitivity(
        assumption=assumption, flag=flag, now=str(now), last=str(last), beyond=(str(last + 1),) if flips else (),
        flips=flips, distance=(last - now) / now,
    )  # fmt: skip


def _cache_dtype(case: Case) -> Sensitivity:
    holds = case.holds(args=replace(case.row.args, kv_cache_dtype="auto"))
    return Sensitivity(
        assumption=Assumption.CACHE_DTYPE, flag="--kv-cache-dtype", now=case.row.args.kv_cache_dtype,
        last="auto" if holds else case.row.args.kv_cache_dtype, beyond=() if holds else ("auto",), flips=not holds,
        distance=None,
    )  # fmt: skip


def _release(case: Case) -> Sensitivity:
    now = case.question.release.version
    releases = supported_releases()
    broken = tuple(v for v in releases if v != now and not case.holds(release=get_release(v)))
    return Sensitivity(
        assumption=Assumption.RELEASE, flag="--vllm-version", now=now, last=now, beyond=broken, flips=bool(broken),
        distance=None,
    )  # fmt: skip


def _last(holds: Callable[[int], Any], now: int, limit: int) -> int:
    """The largest value in [now, limit] that still holds, taking `holds` as monotone and true for `now`."""
    if holds(limit):
        return limit
    low, high = now, limit
    step = max(now // 16, 1)
    while low + step < high and holds(low + step):
        low, step = low + step, 2 * step
    high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
