"""What one plan's KV cache holds at other context lengths: every point is a plan of its own."""

from __future__ import annotations

from dataclasses import replace

from vllm_capacity.answer import Plan, Status
from vllm_capacity.calibration import Calibration
from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.planner import make_plan

SHORTEST = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPoint:
    """The plan with this --max-model-len: whether it starts, and what vLLM prints about its KV cache."""

    max_model_len: int
    status: Status
    kv_cache_size_tokens: int
    max_concurrency: float


def context_curve(plan: Plan, calibration: Calibration | None = None) -> tuple[ContextPoint, ...]:
    """Powers of two up to what the model allows, that limit, the plan's own length and the largest that fits.

    `calibration` must be the one that made the plan. Empty for a model that keeps no KV cache.
    """
    if not plan.kv_cache.stages:
        return ()
    own = plan.kv_cache.max_model_len
    longest = max(plan.engine.derived_max_model_len, own)
    powers = [1 << n for n in range(SHORTEST.bit_length() - 1, longest.bit_length()) if 1 << n < longest]
    fits = plan.verdict.max_model_len_that_fits or own
    points = [_point(plan, length, calibration) for length in sorted({*powers, fits, own, longest})]
    return tuple(point for point in points if point is not None)


def _point(plan: Plan, length: int, calibration: Calibration | None) -> ContextPoint | None:
    """None where vLLM refuses this length."""
    found = plan
    if length != plan.kv_cache.max_model_len:
        try:
            other = make_plan(
                plan.config,
                replace(plan.engine.args, max_model_len=length),
                plan.device,
                plan.release,
                used_by_others_bytes=plan.used_by_others_bytes,
                suggestions=False,
                calibration=calibration,
            )
        except InputError:
            return None
        if not isinstance(other, Plan):
            return None
        found = other
    return ContextPoint(
        max_model_len=length,
        status=found.verdict.status,
        kv_cache_size_tokens=found.kv_cache.size_tokens,
        max_concurrency=found.kv_cache.max_concurrency,
    )
