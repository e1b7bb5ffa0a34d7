"""What differs between vLLM releases, one row per behaviour, each with the first and last release that has it.

Every row is checked against the wheels by `tools/verify_releases.py`. Add a row where a formula differs; never test a
version number anywhere else.
"""

from __future__ import annotations

from vllm_capacity.releases.release import Feature

FEATURES: tuple[Feature, ...] = (
    Feature("utilization_default_092", "0.20.0", None, "config/cache.py: CacheConfig.gpu_memory_utilization",
            "gpu_memory_utilization defaults to 0.92; before, 0.9"),
    Feature("graph_estimate_subtracted", "0.20.0", None, "envs.py: VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
            "the CUDA graph estimate is subtracted from the KV cache by default; before, printed only"),
    Feature("tokens_from_concurrency", "0.20.1", None, "v1/core/kv_cache_utils.py: capacity log",
            "printed tokens = int(concurrency x max_model_len); before, num_blocks // groups x block_size"),
    Feature("load_max_split_size", "0.22.1", None, "v1/worker/gpu_worker.py: load_model",
            "weights are loaded with max_split_size_mb=20, which changes the allocator's rounding of tensors >= 20 MiB"),
    Feature("in_flight_window_factor", "0.26.0", None, "v1/kv_cache_interface.py: SlidingWindowSpec",
            "sliding-window layers reserve all concurrent batches' tokens, not one batch's"),
    Feature("flashinfer_head_footprint", "0.26.0", None, "v1/attention/backends/flashinfer.py",
            "FlashInfer's workspace is at least tokens x heads x head size x 16 bytes"),
    Feature("hybrid_prefix_caching_off", "0.26.0", "0.27.1", "engine/arg_utils.py",
            "prefix caching is off by default for hybrid (state-space) models"),
    Feature("consumed_accounting", "0.27.0", None, "utils/mem_utils.py: memory_profiling",
            "non-KV memory = free before - free after profiling + transient peak; before: weights + torch peak + non-torch"),
    Feature("v2_profiles_encoder", "0.27.1", None, "v1/worker/gpu/model_runner.py: profile_run",
            "model runner V2 profiles the multimodal encoder"),
    Feature("tier_160_gib", "0.28.0", None, "engine/arg_utils.py: get_batch_defaults",
            "devices of at least 160 GiB default to 16,384 tokens a batch and 1,024 sequences in every usage"),
    Feature("graph_ceiling_1024_sm10x", "0.28.0", None, "config/vllm.py: _set_cudagraph_sizes",
            "CUDA graphs are captured up to 1,024 tokens on SM10x; 512 elsewhere"),
    Feature("bitsandbytes", None, "0.27.1", "model_executor/layers/quantization/__init__.py",
            "quantisation method bitsandbytes exists"),
    Feature("v2_graph_estimate", "0.29.0", None, "v1/worker/gpu/cudagraph_utils.py",
            "model runner V2 estimates CUDA graphs; before, 0"),
    Feature("null_block_in_admission", "0.29.0", None, "v1/core/kv_cache_utils.py / kv_cache_planning.py",
            "the admission check and auto-fit leave one block for the null block"),
    Feature("flashinfer_all_reduce_default", "0.29.0", None, "envs.py: VLLM_ALLREDUCE_USE_FLASHINFER",
            "FlashInfer's standalone all-reduce is on by default"),
    Feature("v2_locks_workspace", "0.30.0", None, "v1/worker/gpu/model_runner.py",
            "model runner V2 locks the workspace after graph capture"),
    Feature("mamba_mode_all", None, "0.31.0", "config/cache.py: MambaCacheMode",
            "mamba cache mode 'all' exists"),
    Feature("kv_planning_module", "0.33.0", None, "v1/core/kv_cache_planning.py",
            "KV planning lives in its own module, with merged buckets and packed groups"),
    Feature("cublas_before_snapshot", "0.33.0", None, "v1/worker/gpu_worker.py: init_device",
            "cuBLAS handles are created before the baseline snapshot"),
)  # fmt: skip
