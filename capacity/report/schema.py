"""The published schema of `--json` (`vllm-capacity schema`). Only that command and the tests import this module."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from vllm_capacity.answer import Status
from vllm_capacity.budget import Account
from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Allocator, Component, Lifetime

Bytes = Annotated[int, Field(ge=0, description="Bytes.")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Model(_Strict):
    id: str
    architecture: str = Field(description="vLLM's model class.")
    parameters: int | None = Field(
        description="Logical parameters: tied heads once, no padding; null when refused."
    )
    source: str = Field(description="Where the config came from.")


class Gpu(_Strict):
    name: str
    cuda_total_bytes: Bytes = Field(description="What cudaMemGetInfo reports and vLLM budgets.")
    nvml_total_bytes: Bytes = Field(description="What nvidia-smi reports; vLLM's default tiers look at it.")
    free_bytes: int | None = Field(description="Free at vLLM's baseline snapshot on the fullest rank.")
    compute_capability: str


class Term(_Strict):
    name: str
    component: Component
    allocator: Allocator
    lifetime: Lifetime
    account: Account = Field(description="What this release's accounting makes of the term.")
    bytes: int
    low: int
    high: int
    formula: str = Field(description="Python expression over `values`; evaluates to `bytes`.")
    values: dict[str, int | float]
    source: str
    note: str


class Rank(_Strict):
    rank: int
    tp_rank: int
    pp_rank: int
    dp_rank: int
    requested_bytes: Bytes
    weights_bytes: Bytes = Field(description='What vLLM prints as "Model loading took".')
    activation_peak_bytes: Bytes = Field(
        description="`torch_peak_increase` of MemoryProfilingResult, cold compile cache."
    )
    activation_peak_warm_bytes: Bytes = Field(description="The same with a warm compile cache.")
    non_torch_bytes: Bytes = Field(description="`non_torch_increase` of MemoryProfilingResult.")
    runner_buffers_bytes: Bytes = Field(
        description="The runner's tensors inside the accounting (from 0.27.0 on)."
    )
    cuda_graph_estimate_bytes: Bytes
    cuda_graph_applied_bytes: Bytes = Field(description="What of the estimate is subtracted.")
    cuda_graph_actual_bytes: Bytes
    available_kv_bytes: int = Field(description="Before a block override; may be negative.")
    available_kv_low_bytes: int
    available_kv_high_bytes: int
    num_blocks_own: int
    device_used_bytes: Bytes = Field(description="In use once the server is up, as nvidia-smi shows it.")
    terms: list[Term]


class Group(_Strict):
    layers: int
    spec: str
    page_size_bytes: Bytes
    block_size: int


class KvCache(_Strict):
    num_blocks: int
    block_size: int
    tokens: int = Field(description="As this release prints them.")
    pool_tokens: int = Field(description="Tokens that the usable blocks hold.")
    max_concurrency: float
    marginal_bytes_per_token: int | float
    fixed_bytes_per_sequence: int
    groups: list[Group]


class SuggestionEffect(_Strict):
    starts: bool
    available_kv_bytes_delta: int
    tokens_delta: int


class Suggestion(_Strict):
    change: str
    flags: list[str]
    effect: SuggestionEffect


class Concurrency(_Strict):
    requested: int
    fits: bool
    min_utilization: float | None


class Verdict(_Strict):
    status: Status
    reason: Reason | None
    message: str
    max_model_len_that_fits: int | None
    min_utilization: float | None
    max_utilization: float | None
    suggestions: list[Suggestion]
    concurrency: Concurrency | None


class Host(_Strict):
    pinned_bytes: Bytes
    shared_memory_bytes: Bytes
    checkpoint_bytes: Bytes
    checkpoint_bytes_source: str


class CalibrationUsed(_Strict):
    source: str
    recorded_runs: int
    outside_measured: list[str]


class PlanReport(_Strict):
    """One plan."""

    schema_version: Literal[1]
    tool_version: str
    vllm_version: str
    vllm_version_source: str
    model: Model
    gpu: Gpu
    engine: dict[str, Any] = Field(description="Resolved values under vLLM's names; `runner` is V1 or V2.")
    ranks: list[Rank]
    kv_cache: KvCache | None
    verdict: Verdict
    host: Host | None
    calibration: CalibrationUsed | None
    warnings: list[str]


class PlansReport(_Strict):
    """Several plans of one call, one per tensor-parallel degree."""

    schema_version: Literal[1]
    tool_version: str
    plans: list[PlanReport]


def plan_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `plan --json`."""
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(PlanReport | PlansReport)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vllm-capacity plan",
        **adapter.json_schema(),
    }
