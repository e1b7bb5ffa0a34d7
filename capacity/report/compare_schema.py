"""The published schema of `compare --json` (`vllm-capacity schema compare`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from vllm_capacity.report.compare_text import Group, Unit
from vllm_capacity.vocabulary import add_meanings


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra=add_meanings)


class CompareRow(_Strict):
    """One figure of both plans; of the rank with the fewest blocks where ranks differ."""

    group: Group = Field(description="What it belongs to; `terms` are those of the ledger.")
    name: str = Field(description="The key of the figure in `plan --json`, or the name of a term.")
    component: str | None = Field(description="Of a term; null for others.")
    unit: Unit = Field(description="Of both sides; text has no difference.")
    a: int | float | str | None
    b: int | float | str | None
    difference: int | float | None


class CompareReport(_Strict):
    """Two plans side by side."""

    schema_version: Literal[1] = Field(description="Of this form.")
    tool_version: str = Field(description="Of vllm-capacity.")
    side_a: str = Field(description="Options of the first side.")
    side_b: str = Field(description="Options of the second side.")
    rows: list[CompareRow] = Field(description="Every figure, equal ones too.")


def compare_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `compare --json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **CompareReport.model_json_schema(),
        "title": "vllm-capacity compare",
    }
