"""The published schema of `explain --json` (`vllm-capacity schema explain`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from vllm_capacity.diagnosis.causes import Basis, Confidence, RuntimeCause
from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Component
from vllm_capacity.logs.failures import Phase
from vllm_capacity.logs.record import Evidence, StartRecord
from vllm_capacity.vocabulary import add_meanings


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra=add_meanings)


class Finding(_Strict):
    """The cause of the trouble."""

    cause: Reason | RuntimeCause = Field(
        description="A verdict's reason, or what only a running server meets."
    )
    component: Component | None = Field(description="What ran out; null where it is none of the ledger's.")
    phase: Phase = Field(description="The step of vLLM's start.")
    headline: str = Field(description="The cause in one line.")
    explanation: str = Field(description="How it comes about.")
    confidence: Confidence = Field(description="How sure the log makes it.")
    figures: dict[str, float | int | str]
    missing_bytes: int | None
    missing: str | None = Field(description="`missing_bytes` in words.")
    page: str = Field(description="The documentation page of the scenario.")
    evidence: list[Evidence] = Field(description="The lines that show it.")


class Remedy(_Strict):
    """One change, the cheapest first."""

    change: str = Field(description="In words.")
    flags: list[str] = Field(description="What to add to the command line.")
    frees_bytes: int | None
    spare_bytes: int | None
    starts: bool | None = Field(description="With the change made; null where that is not known.")
    basis: Basis = Field(description="What its figures rest on.")
    effect: str = Field(description="One sentence with the numbers.")
    kv_cache_size_tokens: int | None


class Observation(_Strict):
    """Something the log shows beside the cause."""

    topic: str = Field(description="Of what.")
    text: str = Field(description="In words, with the log's figures.")
    evidence: list[Evidence] = Field(description="The lines that show it.")


class Predicted(_Strict):
    """A figure of the plan beside the log's."""

    name: str = Field(description="The figure's key in every other answer.")
    logged_as: str = Field(description="vLLM's words in the log.")
    predicted: int | float
    logged: int | float
    unit: Literal["bytes", "tokens", "requests"] = Field(description="Of both figures.")


class ExplainReport(_Strict):
    """What a log says, why the run failed, and what helps.

    Bytes are integers in what this tool says. What is quoted from the log stays as the log has it: keys that end in `_gib`
    or `_mib` (in `start` and in `figures`) are such quotes.
    """

    schema_version: Literal[1] = Field(description="Of this form.")
    tool_version: str = Field(description="Of vllm-capacity.")
    verdict: Literal["healthy", "problem"] = Field(description="Whether anything is wrong.")
    came_up: bool = Field(description="Whether the server or engine served.")
    finding: Finding | None = Field(description="The cause; null where nothing is wrong.")
    remedies: list[Remedy] = Field(description="What helps, the cheapest first.")
    observations: list[Observation] = Field(description="What the log shows beside the cause.")
    predicted: list[Predicted] = Field(description="The plan of this run beside the log, per GPU.")
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
