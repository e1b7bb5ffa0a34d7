"""The published schemas of `validate --json` and of the records that `validate` writes (`vllm-capacity schema`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel
from vllm_capacity.answer import Status
from vllm_capacity.validate.record import RunRecord, RunStatus
from vllm_capacity.vocabulary import add_meanings


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra=add_meanings)


class ComparisonRow(_Strict):
    """One figure of one rank, or of the engine."""

    name: str = Field(description="The figure's key in `plan --json`, or what of the ledger it sums.")
    rank: int | None
    predicted: int | None
    measured: int | None
    unit: Literal["bytes", "tokens", "blocks"] = Field(description="Of both figures.")
    engine_name: str = Field(description="vLLM's name of the figure; empty where it has none.")
    error: int | None
    relative_error: float | None


class ComparisonReport(_Strict):
    """One run beside its plan."""

    name: str = Field(description="Of the run.")
    status: RunStatus = Field(description="What became of the run.")
    predicted_status: Status | None = Field(description="The plan's verdict; null without a plan.")
    reason: str | None = Field(description="Why vLLM refused; null where it did not.")
    predicted_reason: str | None = Field(description="The plan's reason; null where it starts.")
    cuda_total_bytes: int | None
    rows: list[ComparisonRow] = Field(description="KV cache tokens first, then rank by rank.")
    exit_code: Literal[0, 1, 2, 3] = Field(description="What `validate` ends with for this run.")
    message: str = Field(description="What to make of it, in one sentence.")


class Comparisons(RootModel[ComparisonReport | list[ComparisonReport]]):
    """One comparison, or a list where several runs were compared."""


def comparison_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `validate --json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Comparisons.model_json_schema(),
        "title": "vllm-capacity validate",
    }


def record_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of one line of a file of records."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **RunRecord.model_json_schema(),
        "title": "vllm-capacity record",
    }
