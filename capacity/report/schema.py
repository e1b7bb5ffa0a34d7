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
    id: str = Field(description="As asked for, or the catalogue's spelling of it.")
    architecture: str = Field(description="vLLM's model class.")
    parameters: int | None = Field(
        description="Logical parameters: tied heads once, no padding; null when refused."
    )
    source: str = Field(description="Where the config came from.")


class Gpu(_Strict):
    name: str = Field(description="The catalogue's name, or what was given.")
    cuda_total_bytes: Bytes = Field(description="What cudaMemGetInfo reports and vLLM budgets.")
    nvml_total_bytes: Bytes = Field(description="What nvidia-smi reports; vLLM's default tiers look at it.")
    free_bytes: int | None = Field(description="Free at vLLM's baseline snapshot on the fullest rank.")
    compute_capability: str = Field(description="Major and minor, as in 9.0.")


class Term(_Strict):
    name: str = Field(description="One thing that takes memory; `--explain` takes this name.")
    component: Component = Field(description="What it belongs to.")
    allocator: Allocator = Field(description="Who hands the bytes out.")
    lifetime: Lifetime = Field(description="When they exist.")
    account: Account = Field(description="What this release's accounting makes of the term.")
    bytes: int = Field(description="Per GPU.")
    low: int = Field(description="Lower end of the interval; `bytes` where the term is exact.")
    high: int = Field(description="Upper end.")
    formula: str = Field(description="Python expression over `values`; evaluates to `bytes`.")
    values: dict[str, int | float] = Field(description="Names in the formula and their numbers.")
    source: str = Field(description="vLLM's file and function, or the recorded runs.")
    note: str = Field(description="What to know about it; may be empty.")


class Rank(_Strict):
    rank: int = Field(description="Global rank; each GPU is one.")
    tp_rank: int = Field(description="Place in its tensor-parallel group.")
    pp_rank: int = Field(description="Pipeline stage.")
    dp_rank: int = Field(description="Data-parallel engine.")
    requested_bytes: Bytes = Field(description="Utilisation times the total: what vLLM budgets.")
    weights_bytes: Bytes = Field(description='What vLLM prints as "Model loading took".')
    activation_peak_bytes: Bytes = Field(
        description="`torch_peak_increase` of MemoryProfilingResult, cold compile cache."
    )
    activation_peak_warm_bytes: Bytes = Field(description="The same with a warm compile cache.")
    non_torch_bytes: Bytes = Field(description="`non_torch_increase` of MemoryProfilingResult.")
    runner_buffers_bytes: Bytes = Field(
        description="The runner's tensors inside the accounting (from 0.27.0 on)."
    )
    cuda_graph_estimate_bytes: Bytes = Field(description="vLLM's own estimate, as it prints it.")
    cuda_graph_applied_bytes: Bytes = Field(description="What of the estimate is subtracted.")
    cuda_graph_actual_bytes: Bytes = Field(description="What the graphs take once captured.")
    available_kv_bytes: int = Field(description="Before a block override; may be negative.")
    available_kv_low_bytes: int = Field(description="With every term at the unfavourable end.")
    available_kv_high_bytes: int = Field(description="With every term at the favourable end.")
    num_blocks_own: int = Field(
        description="Blocks that this rank's memory would give; the smallest decides."
    )
    device_used_bytes: Bytes = Field(description="In use once the server is up, as nvidia-smi shows it.")
    terms: list[Term] = Field(description="The ledger of this rank.")


class Group(_Strict):
    layers: int = Field(description="Layers that share its block table.")
    spec: str = Field(description="vLLM's KVCacheSpec class.")
    page_size_bytes: Bytes = Field(description="One block of one layer.")
    block_size: int = Field(description="Tokens of one block.")


class KvCache(_Strict):
    num_blocks: int = Field(description="Blocks of the pool, the null block included.")
    block_size: int = Field(description="Tokens of a block in the group with the smallest ones.")
    tokens: int = Field(description="As this release prints them.")
    pool_tokens: int = Field(description="Tokens that the usable blocks hold.")
    max_concurrency: float = Field(description="Requests of max_model_len tokens at once, unrounded.")
    second_start_num_blocks: int = Field(
        description="Blocks of a start that finds its kernels in the compile cache."
    )
    second_start_tokens: int = Field(description="Tokens of such a start.")
    marginal_bytes_per_token: int | float = Field(description="What one token more costs, per GPU.")
    fixed_bytes_per_sequence: int = Field(description="Windows at their cap and states, whatever the length.")
    groups: list[Group] = Field(description="KV cache groups, in vLLM's order.")


class SuggestionEffect(_Strict):
    starts: bool = Field(description="With the change made.")
    available_kv_bytes_delta: int = Field(description="More (or less) for the KV cache, per GPU.")
    tokens_delta: int = Field(description="More (or fewer) tokens of KV cache.")


class Suggestion(_Strict):
    change: str = Field(description="In words.")
    flags: list[str] = Field(description="What to add to the command line.")
    effect: SuggestionEffect = Field(description="From a plan with the change made.")


class Concurrency(_Strict):
    requested: int = Field(description="Requests of max_model_len tokens at once, as asked.")
    fits: bool = Field(description="Whether they do.")
    min_utilization: float | None = Field(description="Least utilisation that does it; null where none does.")


class Verdict(_Strict):
    status: Status = Field(description="The answer.")
    reason: Reason | None = Field(description="Why not; null where it starts.")
    message: str = Field(description="vLLM's own sentence where there is one.")
    max_model_len_that_fits: int | None = Field(
        description="Largest --max-model-len whose request fits; null where none does."
    )
    min_utilization: float | None = Field(description="Least utilisation that starts.")
    max_utilization: float | None = Field(description="Most that is free at start-up.")
    suggestions: list[Suggestion] = Field(description="Single changes, each planned again.")
    concurrency: Concurrency | None = Field(description="Answer to --concurrency; null without it.")


class Host(_Strict):
    pinned_bytes: Bytes = Field(description="Pinned host memory, per node.")
    shared_memory_bytes: Bytes = Field(description="What /dev/shm must hold, per node.")
    checkpoint_bytes: Bytes = Field(description="Weight files on disk.")
    checkpoint_bytes_source: str = Field(description="Where that figure comes from.")


class CalibrationUsed(_Strict):
    source: str = Field(description="'built-in', or the path of a user's file.")
    recorded_runs: int = Field(description="Runs behind this release's accounting.")
    outside_measured: list[str] = Field(description="What of this plan no recorded run stands behind.")


class PlanReport(_Strict):
    """One plan."""

    schema_version: Literal[1] = Field(description="Of this form.")
    tool_version: str = Field(description="Of vllm-capacity.")
    vllm_version: str = Field(description="The release that was planned.")
    vllm_version_source: str = Field(description="Why that release.")
    model: Model = Field(description="What is served.")
    gpu: Gpu = Field(description="On what.")
    engine: dict[str, Any] = Field(description="Resolved values under vLLM's names; `runner` is V1 or V2.")
    ranks: list[Rank] = Field(description="Every GPU; empty when refused.")
    kv_cache: KvCache | None = Field(description="Null when refused.")
    verdict: Verdict = Field(description="Does it start, and the limits around it.")
    host: Host | None = Field(description="What a node needs beside its GPUs; null when refused.")
    calibration: CalibrationUsed | None = Field(description="How well measured this is; null when refused.")
    warnings: list[str] = Field(description="What to know about this plan.")


class PlansReport(_Strict):
    """Several plans of one call, one per tensor-parallel degree."""

    schema_version: Literal[1] = Field(description="Of this form.")
    tool_version: str = Field(description="Of vllm-capacity.")
    plans: list[PlanReport] = Field(description="In the order asked.")


def plan_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `plan --json`."""
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(PlanReport | PlansReport)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vllm-capacity plan",
        **adapter.json_schema(),
    }
