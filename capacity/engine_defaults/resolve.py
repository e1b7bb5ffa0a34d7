"""`EngineArgs` to `EngineConfig`, in the order in which vLLM does it."""

from __future__ import annotations

from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs, EngineConfig
from vllm_capacity.engine_defaults.backends import resolve_backends
from vllm_capacity.engine_defaults.draft_models import draft_length
from vllm_capacity.engine_defaults.dtypes import resolve_dtype, resolve_kv_cache_dtype, storage_dtype
from vllm_capacity.engine_defaults.facts import is_moe, runner_type
from vllm_capacity.engine_defaults.graph_support import settle_graphs
from vllm_capacity.engine_defaults.graphs import (
    requested_graphs,
    requested_mode,
    resolve_capture_sizes,
    resolve_compilation,
)
from vllm_capacity.engine_defaults.layout import (
    check_micro_batches,
    check_parallel,
    resolve_parallel,
    uses_batched_dp_moe,
)
from vllm_capacity.engine_defaults.lengths import derived_max_model_len, resolve_max_model_len
from vllm_capacity.engine_defaults.lora import check_lora
from vllm_capacity.engine_defaults.next_token import check_next_token
from vllm_capacity.engine_defaults.quantization import resolve_quantization
from vllm_capacity.engine_defaults.runner import resolve_runner
from vllm_capacity.engine_defaults.scheduling import (
    check_batch_sizes,
    check_mamba_block_size,
    hybrid_manager_disabled,
    max_in_flight_tokens,
    resolve_async_scheduling,
    resolve_batch_sizes,
    resolve_chunked_prefill,
    resolve_mamba_cache_mode,
    resolve_prefix_caching,
)
from vllm_capacity.engine_defaults.speculation import check_draft_slots, resolve_speculation
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def resolve_engine(
    args: EngineArgs, config: ModelConfig, architecture: Architecture, device: Device, release: Release
) -> EngineConfig:
    """What vLLM makes of `args` for this model, device and release.

    `EngineArgs.create_engine_config`, engine/arg_utils.py:1847-2400, and `VllmConfig.__post_init__`,
    config/vllm.py:948-1640 (0.26.0; differences of other releases are features). Raises InputError for values
    that no vLLM reads and RefusedError, in vLLM's own words, for what this release refuses.
    """
    pooling = runner_type(args, architecture) == "pooling"
    dtype = resolve_dtype(args, config, architecture, device, release)
    quantization = resolve_quantization(args, config)
    max_model_len = resolve_max_model_len(args, config, release, pooling=pooling)
    chunked = resolve_chunked_prefill(args, architecture, pooling=pooling)
    prefix_caching = resolve_prefix_caching(args, architecture, release, pooling=pooling)
    kv_cache_dtype = resolve_kv_cache_dtype(args, config, architecture, dtype, device, release)
    utilization = _utilization(args, release)
    parallel = resolve_parallel(args)
    check_parallel(args, parallel, config, architecture, device, release)
    speculation = resolve_speculation(args, config)
    check_next_token(speculation, config, release, stages=parallel.pp)
    tokens, seqs = resolve_batch_sizes(
        args, config, architecture, device, release, max_model_len=max_model_len, chunked_prefill=chunked,
        batched_dp_moe=uses_batched_dp_moe(args, parallel, release),
    )  # fmt: skip
    check_batch_sizes(args, tokens, seqs, max_model_len, chunked, release)
    check_lora(args, config, release, tokens=tokens, seqs=seqs, speculative=speculation.num_tokens)
    mamba_mode = resolve_mamba_cache_mode(
        args,
        architecture,
        release,
        prefix_caching=prefix_caching,
        chunked_prefill=chunked,
        speculation=speculation,
    )
    check_mamba_block_size(args, prefix_caching=prefix_caching, max_model_len=max_model_len)
    runner = resolve_runner(
        args, config, architecture, device, release, pooling=pooling, speculation=speculation,
        mamba_cache_mode=mamba_mode, compilation_mode=requested_mode(args), graphs=requested_graphs(args),
    )  # fmt: skip
    check_micro_batches(args, device, release)
    v2 = runner == "V2"
    async_scheduling = resolve_async_scheduling(args, speculation, release, pooling=pooling, runs_on_v2=v2)
    if v2 and release.has("max_len_limited_by_draft"):
        max_model_len = min(max_model_len, draft_length(speculation, config, release) or max_model_len)
    compilation = resolve_compilation(
        args,
        config,
        architecture,
        release,
        pooling=pooling,
        moe=is_moe(config, architecture),
        speculation=speculation,
        runs_on_v2=v2,
    )
    check_draft_slots(speculation, args, tokens, seqs, release)
    sizes = resolve_capture_sizes(
        args, compilation, device, release, tokens=tokens, seqs=seqs, speculation=speculation
    )
    backends = resolve_backends(
        args, config, architecture, parallel, device, release, kv_cache_dtype=kv_cache_dtype, dtype=dtype
    )
    graphs, sizes = settle_graphs(
        compilation, sizes, backends, device, release, speculation=speculation, runs_on_v2=v2
    )
    return EngineConfig(
        parallel=parallel,
        usage=args.usage,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        kv_dtype=storage_dtype(kv_cache_dtype, dtype),
        max_model_len=max_model_len,
        derived_max_model_len=max_model_len
        if args.max_model_len is None
        else derived_max_model_len(args, config, release, pooling=pooling),
        max_model_len_auto=args.max_model_len == -1,
        gpu_memory_utilization=utilization,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        block_size=args.block_size,
        enforce_eager=args.enforce_eager,
        cudagraph_mode=graphs,
        cudagraph_capture_sizes=sizes,
        compiled=compilation.mode != "NONE",
        attention_backends=tuple(backend.name for backend in backends),
        model_runner=runner,
        async_scheduling=async_scheduling,
        enable_prefix_caching=prefix_caching,
        enable_chunked_prefill=chunked,
        hybrid_kv_cache_manager_disabled=hybrid_manager_disabled(args, config, speculation, release),
        num_gpu_blocks_override=args.num_gpu_blocks_override,
        max_in_flight_tokens=max_in_flight_tokens(
            tokens, parallel.pp, async_scheduling=async_scheduling, runs_on_v2=v2, release=release
        ),
        mamba_cache_mode=mamba_mode,
        quantization=quantization,
        num_speculative_tokens=speculation.num_tokens,
        args=args,
        notes=_notes(args, config, max_model_len),
    )


def _utilization(args: EngineArgs, release: Release) -> float:
    """`CacheConfig.gpu_memory_utilization`, config/cache.py: above 0 and at most 1."""
    if args.gpu_memory_utilization is None:
        return 0.92 if release.has("utilization_default_092") else 0.9
    if not 0 < args.gpu_memory_utilization <= 1:
        raise InputError(
            f"--gpu-memory-utilization must be above 0 and at most 1, not {args.gpu_memory_utilization}"
        )
    return args.gpu_memory_utilization


def _notes(args: EngineArgs, config: ModelConfig, max_model_len: int) -> tuple[str, ...]:
    notes = []
    if args.max_model_len not in (None, -1) and args.max_model_len != max_model_len:
        notes.append(f"max_model_len is lowered to the draft model's {max_model_len}")
    if args.enforce_eager and (args.cudagraph_capture_sizes or args.max_cudagraph_capture_size):
        notes.append("--enforce-eager captures no CUDA graphs: the capture sizes given have no effect")
    if args.kv_cache_memory_bytes is not None and args.gpu_memory_utilization is not None:
        notes.append(
            "--kv-cache-memory-bytes sets the KV cache; --gpu-memory-utilization is only checked at start-up"
        )
    return tuple(notes)
