"""What a purchase holds at other context lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_capacity.answer import Plan
from vllm_capacity.errors import InputError
from vllm_capacity.planner import make_plan
from vllm_capacity.sizing.engine_capacity import engine_capacity
from vllm_capacity.sizing.row import Row
from vllm_capacity.sizing.search import Question
from vllm_capacity.sizing.sensitivity import with_context

SHORTEST = 1024


@dataclass(frozen=True, slots=True)
class Curve:
    """KV cache tokens and `sequences` of the whole purchase at each of `lengths` (--max-model-len)."""

    name: str
    lengths: tuple[int, ...]
    total_kv_cache_size_tokens: tuple[int, ...]
    sequences: tuple[int, ...]


def context_curves(question: Question, rows: Sequence[Row]) -> list[Curve]:
    """One curve per row over powers of two up to the model's limit; lengths that do not start are left out."""
    return [_curve(question, row) for row in rows]


def _curve(question: Question, row: Row) -> Curve:
    config = next(config for config in question.models if config.name == row.model)
    longest = max(row.plan.engine.derived_max_model_len, question.demand.longest_tokens)
    lengths = sorted({*(1 << n for n in range(SHORTEST.bit_length() - 1, 41) if 1 << n < longest), longest,
                      question.demand.longest_tokens})  # fmt: skip
    points = []
    for length in lengths:
        try:
            plan = make_plan(
                config, replace(row.args, max_model_len=length), row.device, question.release, suggestions=False,
                calibration=question.calibration,
            )  # fmt: skip
        except InputError:
            continue
        if not isinstance(plan, Plan) or plan.verdict.status is not row.status:
            continue
        held = engine_capacity(plan, with_context(question.demand, length), row.margin).sequences
        engines = row.layout.dp * row.purchase.replicas
        if held:
            points.append((length, plan.kv_cache.size_tokens * engines, held * engines))
    return (
        Curve(_name(question, row), *zip(*points, strict=True))
        if points
        else Curve(_name(question, row), (), (), ())
    )


def _name(question: Question, row: Row) -> str:
    layout = row.layout
    sizes = (
        f"tp{layout.tp}"
        + (f" pp{layout.pp}" if layout.pp > 1 else "")
        + (f" dp{layout.dp}" if layout.dp > 1 else "")
    )
    model = "" if row.model == question.models[0].name else f", {row.model}"
    cache = f", {row.args.kv_cache_dtype} KV" if row.fp8_cache else ""
    return f"{row.purchase.gpus_bought} x {row.device.name} ({sizes}{cache}{model})"
