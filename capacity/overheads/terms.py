"""Helpers that the modules of this package share."""

from __future__ import annotations

from functools import lru_cache

from vllm_capacity.calibration import Measurement, constants
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term


def measured(ctx: RankContext, component: str) -> Measurement:
    """The measurement of a constant for this device, release and layout."""
    return constants(ctx).get(component)


@lru_cache(maxsize=1024)
def constant(
    name: str,
    component: Component,
    found: Measurement,
    *,
    allocator: Allocator,
    lifetime: Lifetime,
    source: str,
    count: int = 1,
    note: str = "",
) -> MemoryTerm:
    """A term of `count` times a measured constant; its note names the measurement, after what is given."""
    return term(
        name,
        component,
        "count * each",
        allocator=allocator,
        lifetime=lifetime,
        source=source,
        low=count * found.low,
        high=count * found.high,
        note=f"{note}{'; ' if note else ''}measured ({found.name}): {found.origin}",
        count=count,
        each=found.n_bytes,
    )


@lru_cache(maxsize=512)
def nothing(
    name: str,
    component: Component,
    reason: str,
    *,
    source: str,
    allocator: Allocator = Allocator.TORCH,
    lifetime: Lifetime = Lifetime.AFTER_PROFILE,
) -> MemoryTerm:
    """A term of 0 bytes that says why."""
    return term(name, component, "0", allocator=allocator, lifetime=lifetime, source=source, note=reason)


def switched_on(ctx: RankContext, variable: str, default: bool) -> bool:
    """A VLLM_* variable that is 0 or 1."""
    value = ctx.engine.environment.get(variable)
    return default if value is None else value.strip() not in ("", "0", "false", "False")
