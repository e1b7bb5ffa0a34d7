"""The typed record of a log: what each process printed, how far each start came, and what failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from vllm_capacity.errors import Reason
from vllm_capacity.logs.failures import FailureKind, Phase
from vllm_capacity.vocabulary import add_meanings


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra=add_meanings)


class Evidence(_Model):
    """A line of the log, without prefixes."""

    line: int
    text: str = Field(description="As it stands there; long lines are cut.")


class Figures(_Model):
    """What one process printed in one start; None where it printed nothing. Names carry the unit."""

    # loading
    weights_gib: float | None = None
    loading_seconds: float | None = None
    load_peak_gib: float | None = None
    checkpoint_gib: float | None = None
    available_ram_gib: float | None = None
    # the device and the request
    cuda_total_gib: float | None = None
    free_gib: float | None = None
    gpu_memory_utilization: float | None = None
    requested_gib: float | None = None
    # profiling
    snapshot_torch_peak_gib: float | None = None
    snapshot_allocated_gib: float | None = None
    snapshot_free_gib: float | None = None
    snapshot_used_gib: float | None = None
    snapshot_torch_gib: float | None = None
    snapshot_non_torch_gib: float | None = None
    profile_seconds: float | None = None
    total_non_kv_gib: float | None = None
    profiled_weights_gib: float | None = None
    activation_peak_gib: float | None = None
    non_torch_gib: float | None = None
    consumed_gib: float | None = None
    free_after_profiling_gib: float | None = None
    free_within_requested_gib: float | None = None
    initial_usage_gib: float | None = None
    peak_torch_gib: float | None = None
    usage_after_profile_gib: float | None = None
    available_kv_gib: float | None = None
    kv_reserved_gib: float | None = None
    planned_kv_bytes: int | None = None
    planned_free_gib: float | None = None
    encoder_tokens: int | None = None
    encoder_items: int | None = None
    encoder_modality: str | None = Field(default=None, description="Modality of the profile run.")
    encoder_skipped: str | None = Field(
        default=None, description="That the multimodal encoder was not profiled."
    )
    mm_reserved_gib: float | None = None
    mm_frames_gib: float | None = None
    mm_decoder_gib: float | None = None
    mm_api_servers: int | None = None
    mm_server_gib: float | None = None
    available_after_mm_gib: float | None = None
    # CUDA graphs
    graph_groups: str | None = Field(
        default=None, description="Modes and sizes of the graphs to be estimated."
    )
    graph_estimate_gib: float | None = None
    cudagraph_mode: str | None = Field(default=None, description="vLLM's CUDAGraphMode in the estimate.")
    graph_first_mib: float | None = None
    graph_mode_graphs: int | None = None
    graph_each_mib: float | None = None
    encoder_graph_mib: float | None = None
    encoder_graphs: int | None = None
    equivalent_gpu_memory_utilization: float | None = None
    suggested_gpu_memory_utilization: float | None = None
    graph_progress_percent: float | None = None
    graph_progress: str | None = Field(default=None, description="Graphs captured, of all.")
    graph_capture_seconds: float | None = None
    graph_capture_gib: float | None = None
    graph_actual_gib: float | None = None
    graph_difference_gib: float | None = None
    graph_difference_percent: float | None = None
    # the KV cache
    kv_cache_size_tokens: int | None = None
    concurrency_max_model_len: int | None = None
    max_concurrency: float | None = None
    num_blocks_own: int | None = None
    num_gpu_blocks_override: int | None = None
    num_blocks: int | None = None
    num_cpu_blocks: int | None = None
    padding_layers: float | None = None
    padding_waste_percent: float | None = None
    block_size: int | None = None
    block_size_backend: str | None = Field(
        default=None, description="Attention backend that asked for the block size."
    )
    mamba_padding_percent: float | None = None
    mamba_blocks: int | None = None
    capped_from: int | None = None
    capped_to: int | None = None
    smallest_capture_size: int | None = None
    auto_fit_from: int | None = None
    auto_fit_to: int | None = None
    hybrid_disabled: str | None = Field(default=None, description="That every layer is allocated in full.")
    kv_to_requested_bytes: int | None = None
    kv_to_requested_gib: float | None = None
    kv_to_gpu_bytes: int | None = None
    kv_to_gpu_gib: float | None = None
    kv_in_use_gib: float | None = None
    kv_in_use_bytes: int | None = None
    # workspaces, sleep
    workspace_caller: str | None = Field(default=None, description="Who asked for that workspace.")
    workspace_before_mib: float | None = None
    workspace_mib: float | None = None
    workspace_ubatch: float | None = None
    workspace_lane: float | None = None
    workspace_total_mib: float | None = None
    sleep_freed_gib: float | None = None
    sleep_in_use_gib: float | None = None
    # settings
    version: str | None = Field(default=None, description="vLLM's release.")
    model_runner: str | None = Field(default=None, description="V1 or V2.")
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    attention_backend: str | None = Field(default=None, description="Attention backend.")
    flash_attention: str | None = Field(default=None, description="Version of FlashAttention.")
    loaded_model: str | None = Field(default=None, description="Model as the loader names it.")
    server_up: str | None = Field(default=None, description="That the server came up.")


class Running(_Model):
    """What the periodic lines of a running server said, over the whole log."""

    lines: int = 0
    kv_usage_max_percent: float | None = None
    kv_usage_last_percent: float | None = None
    cpu_kv_usage_percent: float | None = None
    lines_with_full_cache: int = 0
    running_max: int = 0
    waiting_max: int = 0
    swapped_max: int = 0
    preempted: int = 0
    prefix_hit_percent: float | None = None
    prompt_tokens_per_second: float | None = None
    generation_tokens_per_second: float | None = None
    iteration_context_tokens_max: int | None = None
    iteration_context_requests_max: int | None = None
    iteration_generation_requests_max: int | None = None
    iteration_generation_tokens_max: int | None = None
    iteration_encoder_inputs_max: int | None = None
    iteration_encoder_embeddings_max: int | None = None
    iteration_ms: float | None = None
    iterations: int | None = None


class Failure(_Model):
    """One failure; equal ones of several ranks are counted once."""

    kind: FailureKind = Field(description="What happened.")
    reason: Reason | None = Field(
        default=None,
        description="vLLM's own refusal, or what the step says about an out-of-memory error.",
    )
    phase: Phase = Field(default=Phase.UNKNOWN, description="The step of vLLM's start.")
    phase_from: str = Field(
        default="", description="What `phase` rests on: traceback, message, progress, or nothing."
    )
    values: dict[str, float | int | str] = Field(default_factory=dict)
    frames: list[str] = Field(
        default_factory=list, description="Function names of the traceback, outermost first."
    )
    process: str = Field(default="", description="vLLM's name of the process.")
    count: int = 1
    evidence: Evidence = Field(description="The line that says it.")


class StartRecord(_Model):
    """One start of one server or engine."""

    first_line: int = 1
    last_line: int = 1
    version: str | None = Field(default=None, description="vLLM's release.")
    model: str | None = Field(default=None, description="As the log names it.")
    non_default: dict[str, Any] = Field(
        default_factory=dict, description="vLLM's `non-default args`, under vLLM's names."
    )
    engine_config: dict[str, Any] = Field(
        default_factory=dict, description="vLLM's configuration as it prints it, under vLLM's names."
    )
    command: str | None = Field(default=None, description="A `vllm serve` line that the log echoes.")
    processes: dict[str, Figures] = Field(
        default_factory=dict, description="Process -> what it printed; '' without a name."
    )
    engines: list[str] = Field(
        default_factory=list,
        description="Processes that announced an engine (several with data parallelism).",
    )
    phase: Phase = Field(default=Phase.UNKNOWN, description="The step that would come next.")
    running: Running = Field(default_factory=Running, description="What the running server said.")
    failures: list[Failure] = Field(default_factory=list, description="In the order of the log.")
    evidence: dict[str, Evidence] = Field(
        default_factory=dict, description="Figure -> the line it was read from."
    )
    debug: bool = Field(default=False, description="Whether the log has DEBUG lines.")

    def values(self, name: str) -> Iterator[float]:
        for figures in self.processes.values():
            value = getattr(figures, name)
            if value is not None:
                yield value

    def smallest(self, name: str) -> float | None:
        """The least of all processes."""
        return min(self.values(name), default=None)

    def largest(self, name: str) -> float | None:
        return max(self.values(name), default=None)

    def count(self, name: str) -> int | None:
        """A whole number that all processes share, for example tokens; the smallest counts."""
        value = self.smallest(name)
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        """The first process's word."""
        return next((value for f in self.processes.values() if (value := getattr(f, name)) is not None), None)


class LogRecord(_Model):
    """A whole log. `starts` holds the first and the latest; `start_count` says how many there were."""

    lines: int = 0
    recognised: int = 0
    start_count: int = 0
    starts: list[StartRecord] = Field(default_factory=list, description="The first and the latest.")

    @property
    def last(self) -> StartRecord | None:
        return self.starts[-1] if self.starts else None
