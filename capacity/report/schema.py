"""The published schema of `--json` (`vllm-capacity schema`). Only that command and the tests import this module."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from vllm_capacity.answer import Status
from vllm_capacity.budget import Account
from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Allocator, Component, Lifetime
from vllm_capacity.vocabulary import add_meanings

Bytes = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra=add_meanings)


class Model(_Strict):
    id: str = Field(description="As asked for, or the catalogue's spelling of it.")
    architecture: str = Field(description="vLLM's model class.")
    parameters: int | None
    source: str = Field(description="Where the config came from.")


class Gpu(_Strict):
    name: str = Field(description="The catalogue's name, or what was given.")
    cuda_total_bytes: Bytes
    nvml_total_bytes: Bytes
    free_bytes: int | None
    compute_capability: str = Field(description="Major and minor, as in 9.0.")


class Engine(_Strict):
    """What vLLM makes of the flags; of a refused layout its tensor-parallel size alone."""

    model_runner: Literal["V1", "V2"] | None = Field(default=None, description="Which of vLLM's two runners.")
    usage: Literal["server", "offline"] | None = Field(
        default=None, description="vllm serve or the LLM class."
    )
    tensor_parallel_size: int
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    decode_context_parallel_size: int | None = None
    prefill_context_parallel_size: int | None = None
    enable_expert_parallel: bool | None = Field(default=None, description="Experts are split by expert.")
    dtype: str | None = Field(default=None, description="Of weights and activations.")
    quantization: str | None = Field(default=None, description="vLLM's name of the method; null without one.")
    kv_cache_dtype: str | None = Field(default=None, description="Of the KV cache.")
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    enforce_eager: bool | None = Field(default=None, description="No torch.compile and no CUDA graphs.")
    compilation_mode: str | None = Field(default=None, description="vLLM's CompilationMode; `dry-run` alone.")
    cudagraph_mode: str | None = Field(default=None, description="vLLM's CUDAGraphMode.")
    cudagraph_capture_sizes: list[int] | None = None
    attention_backends: list[str] | None = Field(default=None, description="Of all layers, each once.")
    async_scheduling: bool | None = Field(default=None, description="The next step is scheduled early.")
    enable_prefix_caching: bool | None = Field(
        default=None, description="Blocks of equal prefixes are shared."
    )
    enable_chunked_prefill: bool | None = Field(default=None, description="Long prompts are split.")
    hybrid_kv_cache_manager_disabled: bool | None = Field(
        default=None, description="Every layer is allocated in full."
    )
    num_gpu_blocks_override: int | None = None
    mamba_cache_mode: str | None = Field(default=None, description="How states are cached.")
    num_speculative_tokens: int | None = None
    environment: dict[str, str] | None = Field(default=None, description="Variables that the plan looked at.")


class Term(_Strict):
    name: str = Field(description="One thing that takes memory; `--explain` takes this name.")
    component: Component = Field(description="What it belongs to.")
    allocator: Allocator = Field(description="Who hands the bytes out.")
    lifetime: Lifetime = Field(description="When they exist.")
    account: Account = Field(description="What this release's accounting makes of the term.")
    bytes: int
    low_bytes: int
    high_bytes: int
    formula: str = Field(description="Python expression over `values`; evaluates to `bytes`.")
    values: dict[str, int | float]
    source: str = Field(description="vLLM's file and function, or the recorded runs.")
    note: str = Field(description="What to know about it; may be empty.")


class Rank(_Strict):
    rank: int
    tp_rank: int
    pp_rank: int
    dp_rank: int
    requested_bytes: Bytes
    weights_bytes: Bytes
    activation_peak_bytes: Bytes
    activation_peak_warm_bytes: Bytes
    non_torch_bytes: Bytes
    runner_buffers_bytes: int
    graph_estimate_bytes: Bytes
    graph_applied_bytes: Bytes
    graph_actual_bytes: Bytes
    available_kv_bytes: int
    available_kv_low_bytes: int
    available_kv_high_bytes: int
    num_blocks_own: int
    device_used_bytes: Bytes
    terms: list[Term] = Field(description="The ledger of this rank.")


class Group(_Strict):
    layers: int
    spec: str = Field(description="vLLM's KVCacheSpec class.")
    page_size_bytes: Bytes
    block_size: int


class KvCache(_Strict):
    num_blocks: int
    block_size: int
    size_tokens: int
    pool_tokens: int
    max_concurrency: float
    second_start_num_blocks: int
    second_start_size_tokens: int
    marginal_bytes_per_token: int | float
    fixed_bytes_per_sequence: int
    groups: list[Group] = Field(description="KV cache groups, in vLLM's order.")


class SuggestionEffect(_Strict):
    starts: bool = Field(description="With the change made.")
    available_kv_bytes_delta: int
    kv_cache_size_tokens_delta: int


class Suggestion(_Strict):
    change: str = Field(description="In words.")
    flags: list[str] = Field(description="What to add to the command line.")
    effect: SuggestionEffect = Field(description="From a plan with the change made.")


class Concurrency(_Strict):
    asked: int
    fits: bool = Field(description="Whether they do.")
    min_gpu_memory_utilization: float | None


class Verdict(_Strict):
    status: Status = Field(description="The answer.")
    reason: Reason | None = Field(description="Why not; null where it starts.")
    message: str = Field(description="vLLM's own sentence where there is one.")
    max_model_len_that_fits: int | None
    min_gpu_memory_utilization: float | None
    max_gpu_memory_utilization: float | None
    suggestions: list[Suggestion] = Field(description="Single changes, each planned again.")
    concurrency: Concurrency | None = Field(description="Answer to --concurrency; null without it.")


class Host(_Strict):
    pinned_bytes: Bytes
    shared_memory_bytes: Bytes
    checkpoint_bytes: Bytes
    checkpoint_bytes_source: str = Field(description="Where that figure comes from.")


class CalibrationUsed(_Strict):
    source: str = Field(description="'built-in', or the path of a user's file.")
    recorded_runs: int
    outside_measured: list[str] = Field(description="What of this plan no recorded run stands behind.")


class PlanReport(_Strict):
    """One plan."""

    schema_version: Literal[1] = Field(description="Of this form.")
    tool_version: str = Field(description="Of vllm-capacity.")
    vllm_version: str = Field(description="The release that was planned.")
    vllm_version_source: str = Field(description="Why that release.")
    model: Model = Field(description="What is served.")
    gpu: Gpu = Field(description="On what.")
    engine: Engine = Field(description="Resolved values under vLLM's names.")
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
