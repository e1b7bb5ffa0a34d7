"""The published schema of `size --json` (`vllm-capacity schema size`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from vllm_capacity.answer import Status
from vllm_capacity.sizing.engine_capacity import Limit
from vllm_capacity.sizing.rank import Sort
from vllm_capacity.sizing.row import Binding
from vllm_capacity.sizing.sensitivity import Assumption
from vllm_capacity.vocabulary import add_meanings

Bytes = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra=add_meanings)


class Demand(_Strict):
    """The load, whichever way it was given."""

    sequences: Count
    mean_tokens: float
    p95_tokens: int
    longest_tokens: int
    shared_tokens: int
    how: list[str] = Field(description="How the demand was found, in words.")


class SizeRow(_Strict):
    """A GPU, a layout, and how many of them hold the demand."""

    gpu: str = Field(description="The catalogue's name.")
    vendor: str = Field(description="nvidia or amd.")
    status: Status = Field(description="Of the plan of one replica: starts, or too close to call.")
    message: str = Field(description="What the plan says about that; mostly empty.")
    model: str = Field(description="The model as asked for, or a quantised variant of it.")
    quantised_variant: bool = Field(description="A quantised variant of the model that was asked for.")
    kv_cache_dtype: str = Field(description="Of the KV cache.")
    tensor_parallel_size: Count
    pipeline_parallel_size: Count
    data_parallel_size: Count
    enable_expert_parallel: bool = Field(description="Experts are split by expert.")
    gpu_memory_utilization: float
    max_num_seqs: int
    gpus_per_replica: Count
    replicas: Count
    gpus_used: Count
    gpus_bought: Count
    nodes: Count
    gpus_per_node: Count
    kv_cache_size_tokens: int
    max_concurrency: float
    engine_sequences: int
    total_kv_cache_size_tokens: int
    sequences: int
    headroom: float
    binding: Binding = Field(description="What decides the number of GPUs of this row.")
    engine_limit: Limit = Field(description="What keeps one engine of this row from taking more requests.")
    margin_bytes_per_gpu: Bytes
    margin_basis: str = Field(description="The recorded runs behind the margin.")
    available_kv_bytes: int
    cost: float | None
    power_watts: int | None
    decode_tokens_per_second_ceiling: float | None
    command: str = Field(description="The `vllm serve` line of one replica.")


class LeftOut(_Strict):
    """A GPU on which no layout tried holds the demand."""

    gpu: str = Field(description="The catalogue's name.")
    reason: str = Field(description="Why not, in words.")


class Sensitivity(_Strict):
    """One assumption of the first row, moved alone."""

    assumption: Assumption = Field(description="Which one.")
    flag: str = Field(description="vLLM's flag, or the option of this command, that sets it.")
    now: str = Field(description="Its value in the first row.")
    last: str = Field(description="The last value that still holds the demand.")
    beyond: list[str] = Field(description="The first value that does not, or all that do not.")
    flips: bool = Field(description="Whether any value tried breaks the verdict.")
    distance: float | None


class SizeReport(_Strict):
    """Which purchases hold a demand, the best first."""

    schema_version: Literal[1] = Field(description="Of this form.")
    tool_version: str = Field(description="Of vllm-capacity.")
    vllm_version: str = Field(description="The release that was planned.")
    vllm_version_source: str = Field(description="Why that release.")
    models: list[str] = Field(description="The model and its quantised variants.")
    demand: Demand = Field(description="What has to be held.")
    sort: Sort = Field(description="What the rows are sorted by.")
    currency: str | None = Field(description="Of `cost`; null without prices.")
    price_unit: str | None = Field(description="What a price buys; null without prices.")
    rows: list[SizeRow] = Field(description="Purchases, the best first.")
    left_out: list[LeftOut] = Field(description="GPUs without a row.")
    sensitivities: list[Sensitivity] = Field(description="What flips the verdict of the first row.")
    plans_made: int
    warnings: list[str] = Field(description="What to know about this answer.")


def size_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `size --json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **SizeReport.model_json_schema(),
        "title": "vllm-capacity size",
    }
