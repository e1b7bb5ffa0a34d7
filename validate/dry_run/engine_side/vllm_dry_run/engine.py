"""vLLM's configuration of one rank, from flags that vLLM's own parser reads."""

from __future__ import annotations

from typing import Any


def vllm_config(job: dict[str, Any], *, force_eager: bool) -> Any:
    """What `vllm serve` (or the LLM class) makes of the flags, for the job's data-parallel rank."""
    from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    words = ["--model", job["model"], "--load-format", "dummy", "--skip-tokenizer-init", *job["flags"]]
    if force_eager:
        words.append("--enforce-eager")
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed = parser.parse_args(words)
    arguments = EngineArgs.from_cli_args(parsed)
    ranks_per_engine = (
        arguments.tensor_parallel_size
        * arguments.pipeline_parallel_size
        * getattr(arguments, "prefill_context_parallel_size", 1)
    )
    arguments.distributed_executor_backend = "mp" if ranks_per_engine > 1 else "uni"
    usage = UsageContext.LLM_CLASS if job["usage"] == "offline" else UsageContext.OPENAI_API_SERVER
    config = arguments.create_engine_config(usage_context=usage)
    _place_engine(config, job["rank"] // ranks_per_engine)
    return config


def _place_engine(config: Any, data_parallel_rank: int) -> None:
    """As the engine core does it (v1/engine/core.py: run_engine_core): a dense model's engines are independent."""
    parallel = config.parallel_config
    if parallel.data_parallel_size == 1:
        return
    if config.model_config.is_moe:
        parallel.data_parallel_rank = parallel.data_parallel_index = data_parallel_rank
        parallel.data_parallel_rank_local = 0  # this process sees one GPU, its own
    else:
        parallel.data_parallel_size = parallel.data_parallel_size_local = 1
        parallel.data_parallel_rank = 0


def resolved(config: Any) -> dict[str, Any]:
    """What the configuration came to; the same names as in a plan's `engine`."""
    compilation = config.compilation_config
    return {
        "runner": "V2" if getattr(config, "use_v2_model_runner", False) else "V1",
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "quantization": config.model_config.quantization,
        "max_model_len": config.model_config.max_model_len,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "block_size": config.cache_config.block_size,
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
        "enforce_eager": bool(config.model_config.enforce_eager),
        "compilation_mode": getattr(compilation.mode, "name", str(compilation.mode)),
        "cudagraph_mode": getattr(compilation.cudagraph_mode, "name", str(compilation.cudagraph_mode)),
        "enable_prefix_caching": config.cache_config.enable_prefix_caching,
        "async_scheduling": config.scheduler_config.async_scheduling,
    }
