"""The published schema of `explain --json` (`vllm-capacity schema explain`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from vllm_capacity.diagnosis.causes import Basis, Confidence, RuntimeCause
from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Component
from vllm_capacity.logs.failures import Phase
from vllm_capacity.logs.record import Evidence, StartRecord


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Finding(_Strict):
    """The cause of the trouble."""

    cause: Reason | RuntimeCause
    component: Component | None
    phase: Phase
    headline: str
    explanation: str
    confidence: Confidence
    figures: dict[str, float | int | str] = Field(description="The log's own.")
    missing_bytes: int | None = Field(description="How much was missing at least.")
    missing: str | None = Field(description="The same, in words.")
    page: str = Field(description="The documentation page of the scenario.")
    evidence: list[Evidence]


class Remedy(_Strict):
    """One change, the cheapest first."""

    change: str
    flags: list[str]
    frees_bytes: int | None
    spare_bytes: int | None = Field(description="Left at the failing step with it; negative: still missing.")
    starts: bool | None
    basis: Basis
    effect: str
    kv_tokens: int | None


class Observation(_Strict):
    topic: str
    text: str
    evidence: list[Evidence]


class Predicted(_Strict):
    """A figure of the plan beside the log's."""

    name: str
    logged_as: str
    predicted: float
    logged: float
    unit: str


class ExplainReport(_Strict):
    """What a log says, why the run failed, and what helps."""

    schema_version: Literal[1]
    tool_version: str
    verdict: Literal["healthy", "problem"]
    came_up: bool
    finding: Finding | None
    remedies: list[Remedy]
    observations: list[Observation]
    predicted: list[Predicted]
    missing: list[str] = Field(description="What the log does not show and what would show it.")
    assumptions: list[str] = Field(description="What was taken for the plan where the log leaves it open.")
    start_count: int
    lines: int
    start: StartRecord = Field(
        description="The last start of the log, as read; absent members were not printed."
    )


def explain_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `explain --json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **ExplainReport.model_json_schema(),
        "title": "vllm-capacity explain",
    }
