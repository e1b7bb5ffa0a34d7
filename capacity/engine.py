"""Engine configuration: what the user passes (`EngineArgs`) and what vLLM makes of it (`EngineConfig`).

`EngineArgs` keeps vLLM's own flag names. `resolve_engine` (engine_defaults.py) turns it into `EngineConfig` with vLLM's
defaults for the device, usage and release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from vllm_capacity.frozen import dataclass
from vllm_capacity.parallel import ParallelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """What the user passes; None means "not given". Names and meanings are vLLM's (engine/arg_utils.py).

    Validated by `inputs/engine_args.py`; this class only holds values. `-1` in `max_model_len` means `auto`.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    block_size: int | None = None
    enforce_eager: bool = False
    attention_backend: str | None = None
    num_gpu_blocks_override: int | None = None
    disable_hybrid_kv_cache_manager: bool | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    optimization_level: int | None = None
    performance_mode: str | None = None
    compilation_config: Mapping[str, Any] = field(default_factory=dict)
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    max_cudagraph_capture_size: int | None = None
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    usage: str = "server"
    """'server' (vllm serve) or 'offline' (the LLM class): their defaults differ."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """VLLM_*, NCCL_* and similar variables given with --env or in a pasted line."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Every other vLLM flag by its long name in snake case, as parsed (enable_lora, speculative_config, ...)."""

    def other(self, name: str, default: Any = None) -> Any:
        """An entry of `others`, or `default` when not given."""
        value = self.others.get(name)
        return default if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """`EngineArgs` after vLLM's defaults. All sizes are in tokens, sequences or bytes, as vLLM uses them."""

    parallel: ParallelConfig
    usage: str
    dtype: str
    """Model dtype as torch names it, for example 'bfloat16'."""
    kv_cache_dtype: str
    """vLLM's cache dtype string after resolving `auto` ('auto' stays where it means the model dtype)."""
    kv_dtype: str
    """torch storage dtype of KV pages."""
    max_model_len: int
    derived_max_model_len: int = 0
    """What the model's config allows; `max_model_len` may be less, or more where vLLM lets it."""
    max_model_len_auto: bool
    """True if the user asked for `--max-model-len auto`: the planner lowers it to what fits."""
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int | None
    """What the user gave; the planner derives the one in use."""
    enforce_eager: bool
    cudagraph_mode: str
    """'NONE', 'PIECEWISE', 'FULL', 'FULL_DECODE_ONLY' or 'FULL_AND_PIECEWISE'."""
    cudagraph_capture_sizes: tuple[int, ...]
    compiled: bool
    """True unless eager: torch.compile runs."""
    attention_backends: tuple[str, ...]
    """The backends vLLM selects, in order of first use, for example ('FLASH_ATTN',)."""
    model_runner: str
    """'V1' or 'V2'."""
    async_scheduling: bool
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    hybrid_kv_cache_manager_disabled: bool
    num_gpu_blocks_override: int | None
    max_in_flight_tokens: int
    """Tokens that may be in flight at once: concurrent batches x max_num_batched_tokens (config/vllm.py:512-534)."""
    mamba_cache_mode: str
    """'none', 'align' or 'all'."""
    quantization: str | None
    num_speculative_tokens: int
    args: EngineArgs
    notes: tuple[str, ...] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        return self.args.environment
