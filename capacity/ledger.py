"""The ledger: one `MemoryTerm` per thing that takes GPU memory on one rank.

A term states physical facts only. Which account of vLLM's budget it falls into depends on the release and is known to
`budget.py` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import StrEnum
from functools import cache
from operator import itemgetter
from typing import Any

from vllm_capacity.frozen import dataclass
from vllm_capacity.units import block, cdiv, round_up


class Component(StrEnum):
    """What the user asks for by name; every one is listed in every report."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    ACTIVATION = "activation"
    WORKSPACE = "workspace"
    FLASHINFER = "flashinfer"
    NCCL = "nccl"
    CUSTOM_ALL_REDUCE = "custom_all_reduce"
    CUDA_GRAPHS = "cuda_graphs"
    RUNNER_BUFFERS = "runner_buffers"
    CUDA_CONTEXT = "cuda_context"
    LORA = "lora"
    ENCODER = "encoder"
    SPECULATIVE = "speculative"
    OFFLOAD = "offload"
    UNEXPLAINED = "unexplained"


class Allocator(StrEnum):
    """Who hands the bytes out: PyTorch's caching allocator, CUDA directly, or the host."""

    TORCH = "torch"
    CUDA = "cuda"
    HOST = "host"


class Lifetime(StrEnum):
    """When the bytes exist, in the order of vLLM's start-up (v1/worker/gpu_worker.py)."""

    BEFORE_SNAPSHOT = "before_snapshot"
    """Before `init_snapshot`: CUDA context, NCCL communicators, custom all-reduce buffers."""
    RUNNER_INIT = "runner_init"
    """Allocated by the model runner outside `load_model`'s profiler and alive when profiling starts."""
    LOAD = "load"
    """Allocated inside `load_model` and kept: what "Model loading took" prints."""
    PROFILE_TRANSIENT = "profile_transient"
    """Alive at the peak of `profile_run`, gone after it."""
    PROFILE_PERSISTENT = "profile_persistent"
    """Allocated during `profile_run` and kept (workspaces, lazily loaded kernels)."""
    AFTER_PROFILE = "after_profile"
    """Allocated after the KV cache was sized: graphs, attention metadata buffers."""
    RUNTIME = "runtime"
    """Needed by some requests only."""


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "cdiv": cdiv, "round_up": round_up, "block": block, "max": max, "min": min, "ceil": math.ceil, "int": int,
}  # fmt: skip


@cache
def _compiled(formula: str) -> tuple[Callable[..., Any], Callable[[Mapping[str, Any]], tuple[Any, ...]]]:
    """The formula as a function, and what takes its arguments out of a mapping."""
    names = [n for n in compile(formula, "<formula>", "eval").co_names if n not in _FUNCTIONS]
    function = eval(f"lambda {', '.join(names)}: {formula}", {"__builtins__": {}, **_FUNCTIONS})
    if len(names) > 1:
        return function, itemgetter(*names)
    return function, lambda values: tuple(values[name] for name in names)


def evaluate(formula: str, values: Mapping[str, int | float]) -> int:
    """The integer a formula gives; formulas are literals of this package, never user input."""
    function, arguments = _compiled(formula)
    return int(function(*arguments(values)))


@dataclass(frozen=True, slots=True)
class MemoryTerm:
    """One line of the ledger.

    `formula` is a Python expression over `values`; evaluated it equals `n_bytes` (a test holds this for every term), and
    `explain()` prints it with the numbers put in. `low` and `high` bound the bytes; both equal `n_bytes` for exact terms.
    """

    name: str
    component: Component
    allocator: Allocator
    lifetime: Lifetime
    n_bytes: int
    low: int
    high: int
    formula: str
    values: Mapping[str, int | float] = field(default_factory=dict)
    source: str = ""
    note: str = ""

    def expression(self) -> str:
        """The formula with its numbers in place of names; evaluates to `n_bytes`."""
        return _substitute(self.formula, self.values)


def _substitute(formula: str, values: Mapping[str, int | float]) -> str:
    import re

    return re.sub(r"[A-Za-z_]\w*", lambda m: str(values.get(m[0], m[0])), formula)


def term(
    name: str,
    component: Component,
    formula: str,
    *,
    allocator: Allocator = Allocator.TORCH,
    lifetime: Lifetime,
    source: str,
    low: int | None = None,
    high: int | None = None,
    note: str = "",
    **values: int | float,
) -> MemoryTerm:
    """A term whose bytes are what its formula gives; exact unless `low`/`high` are given (bytes)."""
    return term_of(name, component, formula, values, allocator, lifetime, source, low, high, note)


def term_of(
    name: str,
    component: Component,
    formula: str,
    values: Mapping[str, int | float],
    allocator: Allocator,
    lifetime: Lifetime,
    source: str,
    low: int | None,
    high: int | None,
    note: str,
) -> MemoryTerm:
    """`term` with its values in one mapping."""
    function, arguments = _compiled(formula)
    n_bytes = int(function(*arguments(values)))
    return MemoryTerm(
        name, component, allocator, lifetime, n_bytes,
        n_bytes if low is None else low, n_bytes if high is None else high, formula, values, source, note,
    )  # fmt: skip
