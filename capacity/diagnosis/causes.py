"""The values of a diagnosis: frozen, nothing here computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Component
from vllm_capacity.logs.failures import Phase
from vllm_capacity.logs.record import Evidence, StartRecord


class RuntimeCause(StrEnum):
    """Causes that no start-up verdict has: they show while serving, or outside the GPU's memory."""

    REQUEST_OUT_OF_MEMORY = "request_out_of_memory"
    KV_CACHE_FULL = "kv_cache_full"
    WORKSPACE_LOCKED = "workspace_locked"
    NCCL_OUT_OF_MEMORY = "nccl_out_of_memory"
    HOST_MEMORY = "host_memory"
    SHARED_MEMORY = "shared_memory"
    MEMORY_CHANGED = "memory_changed"
    OUT_OF_MEMORY = "out_of_memory"
    """The GPU ran out of memory at a step that the log does not show."""
    ENGINE_FAILED = "engine_failed"
    """The engine failed, and no line ties it to memory."""


Cause = Reason | RuntimeCause


class Confidence(StrEnum):
    HIGH = "high"
    """vLLM says it, or the traceback shows the step."""
    MEDIUM = "medium"
    """The step follows from how far the log came."""
    LOW = "low"
    """The log does not show the step."""


class Basis(StrEnum):
    """What a remedy's figures rest on."""

    PLANNED = "planned"
    """Planned again with the change; the difference is added to the log's own figure."""
    LOGGED = "logged"
    """Arithmetic on the log's figures alone: the model or the GPU is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change. `spare_bytes` is what is left at the failing step with it (negative: still missing); None
    if unknown."""

    change: str
    flags: tuple[str, ...]
    frees_bytes: int | None
    spare_bytes: int | None
    starts: bool | None
    basis: Basis
    effect: str
    """One sentence with the numbers."""
    kv_cache_size_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The cause of the trouble. `figures` are the log's own, `missing_bytes` how much was missing at
    least."""

    cause: Cause
    component: Component | None
    phase: Phase
    headline: str
    explanation: str
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    missing_bytes: int | None = None
    page: str = ""
    """The documentation page of the scenario."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Something the log shows beside the cause."""

    topic: str
    text: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """A figure of the plan beside the log's. `name` is its key in every answer, `unit` that of both figures."""

    name: str
    logged_as: str
    predicted: int | float
    logged: int | float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The answer for the log's last start. `finding` is None where nothing is wrong."""

    start: StartRecord
    start_count: int
    came_up: bool
    finding: Finding | None
    remedies: tuple[Remedy, ...]
    observations: tuple[Observation, ...]
    missing: tuple[str, ...]
    """What the log does not show and what would show it."""
    assumptions: tuple[str, ...]
    """What was taken for the plan where the log leaves it open."""
    predicted: tuple[PredictedRow, ...]

    @property
    def exit_code(self) -> int:
        """0: nothing is wrong, 1: a problem was found."""
        return 0 if self.finding is None else 1
