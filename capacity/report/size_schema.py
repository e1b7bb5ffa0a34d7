"""The published schema of `size --json` (`vllm-capacity schema size`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from vllm_capacity.answer import Status
from vllm_capacity.sizing.engine_capacity import Limit
from vllm_capacity.sizing.rank import Sort
from vllm_capacity.sizing.row import Binding
from vllm_capacity.sizing.sensitivity import Assumption

Bytes = Annotated[int, Field(ge=0, description="Bytes.")]
Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Demand(_Strict):
    sequences: Count = Field(description="Requests in flight at once.")
    mean_tokens: float
    p95_tokens: int
    longest_tokens: int
    shared_tokens: int = Field(description="Of each prompt, in common to all.")
    how: list[str] = Field(description="How the demand was found, in words.")


class SizeRow(_Strict):
    """A GPU, a layout, and how many of them hold the demand."""

    gpu: str
    vendor: str
    status: Status
    message: str
    model: str
    quantised_variant: bool = Field(description="A quantised variant of the model that was asked for.")
    kv_cache_dtype: str
    tensor_parallel_size: Count
    pipeline_parallel_size: Count
    data_parallel_size: Count
    enable_expert_parallel: bool
    gpu_memory_utilization: float
    max_num_seqs: int
    gpus_per_replica: Count
    replicas: Count
    gpus_used: Count
    gpus_bought: Count
    nodes: Count
    gpus_per_node: Count
    engine_tokens: int = Field(description="KV cache size that one engine prints.")
    engine_max_concurrency: float = Field(description="Maximum concurrency that one engine prints.")
    engine_sequences: int = Field(
        description="Requests of the demand that one engine holds, margin left out."
    )
    kv_tokens: int = Field(description="Of all engines together.")
    sequences: int = Field(description="Requests that all replicas hold at once, margin left out.")
    headroom: float = Field(description="(sequences - demanded) / demanded.")
    binding: Binding = Field(description="What decides the number of GPUs.")
    engine_limit: Limit = Field(description="What keeps one engine from taking more requests.")
    margin_bytes_per_gpu: Bytes
    margin_basis: str
    available_kv_bytes: int = Field(description="Of the tightest rank.")
    cost: float | None
    power_watts: int | None
    decode_tokens_per_second_ceiling: float | None = Field(
        description="Of all replicas together, an upper bound from memory bandwidth."
    )
    command: str = Field(description="The `vllm serve` line of one replica.")


class LeftOut(_Strict):
    gpu: str
    reason: str


class Sensitivity(_Strict):
    """One assumption of the first row, moved alone."""

    assumption: Assumption
    flag: str
    now: str
    last: str = Field(description="The last value that still holds the demand.")
    beyond: list[str] = Field(description="The first value that does not, or all that do not.")
    flips: bool
    distance: float | None


class SizeReport(_Strict):
    """Which purchases hold a demand, the best first."""

    schema_version: Literal[1]
    tool_version: str
    vllm_version: str
    vllm_version_source: str
    models: list[str] = Field(description="The model and its quantised variants.")
    demand: Demand
    sort: Sort
    currency: str | None
    price_unit: str | None
    rows: list[SizeRow]
    left_out: list[LeftOut]
    sensitivities: list[Sensitivity]
    plans_made: int
    warnings: list[str]


def size_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `size --json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **SizeReport.model_json_schema(),
        "title": "vllm-capacity size",
    }
