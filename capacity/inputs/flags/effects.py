"""What each flag of `vllm serve` does to GPU memory, kept by hand; `generated.json` says which release has
which flag.

To model a flag, move its name from `UNMODELLED` to `MODELLED`.
"""

from __future__ import annotations

from typing import Final, Literal

Effect = Literal["modelled", "no_effect", "unmodelled"]

MODELLED: Final = """
    model revision config dtype quantization hf_overrides max_model_len
    tensor_parallel_size pipeline_parallel_size data_parallel_size decode_context_parallel_size
    prefill_context_parallel_size enable_expert_parallel
    gpu_memory_utilization kv_cache_memory_bytes kv_cache_dtype block_size num_gpu_blocks_override
    enable_prefix_caching disable_hybrid_kv_cache_manager
    max_num_batched_tokens max_num_seqs enable_chunked_prefill async_scheduling
    enforce_eager compilation_config cudagraph_capture_sizes max_cudagraph_capture_size optimization_level
    performance_mode attention_backend
    enable_lora max_loras max_lora_rank lora_dtype fully_sharded_loras lora_target_modules
    language_model_only limit_mm_per_prompt mm_encoder_tp_mode skip_mm_profiling mm_processor_kwargs
    speculative_config kv_offloading_size kv_offloading_backend
    cpu_offload_gb offload_backend offload_group_size offload_num_in_group offload_prefetch_step
    moe_backend disable_custom_all_reduce
    runner convert pooler_config disable_sliding_window logprobs_mode reasoning_config max_num_scheduled_tokens
    distributed_executor_backend enable_prompt_embeds enable_sleep_mode
    mamba_cache_mode mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size kv_cache_dtype_skip_layers
    kv_transfer_config kv_events_config cpu_offload_params offload_params
    all2all_backend enable_dbo ubatch_size dbo_prefill_token_threshold enable_eplb eplb_config
    attention_config spec_method spec_model spec_tokens
"""

NO_EFFECT: Final[dict[str, str]] = {
    "the HTTP front end, in host memory": """
        host port uds uvicorn_log_level disable_uvicorn_access_log disable_access_log_for_endpoints
        allow_credentials allowed_origins allowed_methods allowed_headers api_key ssl_keyfile ssl_certfile
        ssl_ca_certs enable_ssl_refresh ssl_cert_reqs ssl_ciphers root_path middleware
        enable_request_id_headers disable_fastapi_docs enable_offline_docs h11_max_incomplete_event_size
        h11_max_header_count grpc grpc_port sse_keep_alive_interval enable_scale_out tokens_only
        fingerprint_mode fingerprint_value enable_tokenizer_info_endpoint enable_server_load_tracking
        enable_per_request_metrics enable_prompt_tokens_details enable_force_include_usage headless
        api_server_count data_parallel_supervisor_port dp_supervisor_probe_interval_s
        dp_supervisor_probe_timeout_s dp_supervisor_probe_failure_threshold shutdown_timeout served_model_name
    """,
    "prompts, tools and answers, in host memory": """
        chat_template chat_template_content_format trust_request_chat_template trust_request_mm_kwargs
        default_chat_template_kwargs reasoning_effort_map response_role return_tokens_as_token_ids
        enable_auto_tool_choice exclude_tools_when_tool_choice_none tool_call_parser tool_parser_plugin
        tool_strict_level tool_server cohere_is_reasoning_model cohere_format
        anthropic_disabled_thinking_effort reasoning_parser reasoning_parser_plugin io_processor_plugin
        stream_interval generation_config override_generation_config skip_tokenizer_init tokenizer
        tokenizer_mode tokenizer_revision interleave_mm_strings renderer_num_workers
    """,
    "logs, metrics and traces": """
        max_log_len enable_log_outputs enable_log_deltas log_error_stack enable_log_requests disable_log_stats
        aggregate_engine_logging log_config_file logging_config log_level enable_logging_iteration_details
        show_hidden_metrics_for_version otlp_traces_endpoint collect_detailed_traces kv_cache_metrics
        kv_cache_metrics_sample cudagraph_metrics enable_layerwise_nvtx_tracing enable_mfu_metrics
        jit_monitor_mode jit_monitor_verbose custom_histogram_buckets per_request_spec_decode_metrics
        profiler_config ray_workers_use_nsight watchdog_config fail_on_environ_validation
    """,
    "how weights are found and read; the same parameters stay on the GPU": """
        load_format download_dir ignore_patterns use_tqdm_on_load safetensors_load_strategy
        safetensors_prefetch_block_size safetensors_prefetch_num_threads model_loader_extra_config
        max_parallel_loading_workers enable_ep_weight_filter code_revision hf_token config_format
        trust_remote_code allow_deprecated_quantization allowed_local_media_path allowed_media_domains
    """,
    "where ranks run and how they find each other; every rank holds the same": """
        data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address
        data_parallel_rpc_port data_parallel_backend data_parallel_hybrid_lb data_parallel_external_lb
        data_parallel_multi_port_external_lb master_addr master_port node_rank device_ids
        distributed_timeout_seconds cpu_distributed_timeout_seconds dp_sync_interval
        numa_bind numa_bind_nodes numa_bind_cpus
    """,
    "which request runs when; buffers are sized by max_num_batched_tokens and max_num_seqs": """
        scheduling_policy max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold
        long_prefill_token_threshold_adaptive scheduler_reserve_full_isl prefill_schedule_interval watermark
        max_num_queued_reqs max_num_queued_tokens max_num_active_seqs prefix_caching_hash_algo
        prefix_match_unit disable_cascade_attn
    """,
    "host memory only": """
        mm_processor_cache_gb mm_processor_cache_type mm_shm_cache_max_object_size_mb mm_hasher_algorithm
        max_cpu_loras enable_shm_tensor_arena
    """,
    "limits a request; memory for it is taken at run time, outside what vLLM profiles": "max_logprobs",
    "seeds the random numbers": "seed",
    "the same blocks from a pool of vLLM's own, mapped in the steps of 2 MiB that PyTorch's segments have": """
        enable_cumem_allocator
    """,
    "which experts a rank holds, not how many": "expert_placement_strategy",
    "the grammar bitmask is allocated whether it is used or not": "structured_outputs_config",
    "adapters fill the slots that --enable-lora reserves": "lora_modules default_mm_loras",
}

UNMODELLED: Final[dict[str, str]] = {
    "an encoder without its language model, or other kernels in it; no recorded run": """
        mm_encoder_only mm_encoder_attn_backend mm_encoder_attn_dtype disable_chunked_mm_input
    """,
    "multimodal inputs prepared on the GPU": "mm_ipc_gpu_memory_gb mm_tensor_ipc mm_processor_device",
    "LoRA slots in an encoder, and graphs per number of adapters": "specialize_active_lora enable_tower_connector_lora",
    "graphs captured a second time, in two halves": "dbo_decode_token_threshold",
    "kernels with layouts and workspaces of their own": "linear_backend kernel_config",
    "NCCL over the network: its buffers are in no recorded run": "nnodes",
    "code from elsewhere, which may keep tensors on the GPU": "logits_processors",
    "two compiled halves of Gemma 3n and 4, with buffers between them": "kv_sharing_fast_prefill",
    "buffers of routed experts and encoder outputs": "enable_return_routed_experts ec_transfer_config",
    "multimodal inputs of other sizes": """
        video_pruning_rate video_pruning_method enable_mm_embeds media_io_kwargs mm_device_do_normalize
        mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin
        ec_manager_config
    """,
    "LoRA for mixtures of experts and classifiers": """
        enable_mixed_moe_lora_format enable_moe_shared_loras max_lora_cls_labels
    """,
    "kernels of single families": """
        enable_flashinfer_autotune ir_op_priority gdn_prefill_backend kda_prefill_backend kda_decode_backend
        sparse_indexer_topk_backend enable_bf16x3_router_gemm monokernel enable_hc_sp use_fp64_gumbel
        override_attention_dtype calculate_kv_scales mamba_backend mamba_ssu_algorithm
        enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds use_replayssm replayssm_buffer_len
    """,
    "which cached blocks are kept": """
        prefix_cache_retention_interval swa_bounded_replay enable_mamba_fine_grained_prefix_cache
        enable_mamba_shared_prefix_checkpoint
    """,
    "buffers of context parallelism": """
        dcp_comm_backend dcp_kv_cache_interleave_size cp_kv_cache_interleave_size dcp_q_replicate
    """,
    "ranks that come and go": """
        enable_elastic_ep elastic_ep_max_dp_size enable_fault_tolerance fault_tolerance_config
        disable_nccl_for_dp_synchronization enable_nccl_comm_suspend
    """,
    "what is kept while asleep": """
        sleep_mode_backend sleep_mode_offload_cudagraph sleep_preserve_parameter_names
    """,
    "code or a config from elsewhere": """
        worker_cls worker_extension_cls scheduler_cls model_impl model_class_overrides hf_config_path
        additional_config quantization_config
    """,
    "weights pass through GPU memory": "pt_load_map_location weight_transfer_config",
    "outputs with buffers of their own": """
        return_sampling_mask aux_output_config watermark_config enable_batch_sharded_sampling
        enable_flash_late_interaction enable_trace_replay
    """,
    "models of another kind": "diffusion_config engram_config",
}


KEYS_MODELLED: Final = """
    compilation_config.mode compilation_config.cudagraph_mode compilation_config.cudagraph_capture_sizes
    compilation_config.max_cudagraph_capture_size compilation_config.splitting_ops
    compilation_config.pass_config compilation_config.pass_config.fuse_allreduce_rms attention_config.backend
"""

KEYS_NO_EFFECT: Final[dict[str, str]] = {
    "where compiled code is kept": """
        compilation_config.debug_dump_path compilation_config.cache_dir
        compilation_config.compile_cache_save_format
    """,
    "how often a graph runs before it is captured": "compilation_config.cudagraph_num_of_warmups",
    "how fast a compiled model starts": "compilation_config.fast_moe_cold_start",
    "kernels that are grouped or timed otherwise: the recorded peak stays": """
        compilation_config.inductor_compile_config.combo_kernels
        compilation_config.inductor_compile_config.benchmark_combo_kernel
    """,
}

KEYS_UNMODELLED: Final[dict[str, str]] = {
    "graphs of the multimodal encoder": """
        compilation_config.compile_mm_encoder compilation_config.cudagraph_mm_encoder
        compilation_config.encoder_cudagraph_token_budgets
        compilation_config.encoder_cudagraph_max_images_per_batch
        compilation_config.encoder_cudagraph_max_vision_items_per_batch
        compilation_config.encoder_cudagraph_max_frames_per_batch
    """,
    "other compiled code, with other activations": """
        compilation_config.backend compilation_config.custom_ops compilation_config.compile_sizes
        compilation_config.compile_ranges_endpoints compilation_config.inductor_compile_config
        compilation_config.inductor_passes compilation_config.use_inductor_graph_partition
        compilation_config.dynamic_shapes_config compilation_config.ir_enable_torch_wrap
    """,
    "other graphs or copies of their inputs": """
        compilation_config.cudagraph_copy_inputs compilation_config.cudagraph_specialize_lora
        compilation_config.cudagraph_decoder_replay compilation_config.decoder_replay_cudagraph_capture_sizes
        compilation_config.decoder_replay_trim_threshold
    """,
    "fusions with buffers of their own": """
        compilation_config.pass_config.fuse_norm_quant compilation_config.pass_config.fuse_act_quant
        compilation_config.pass_config.fuse_attn_quant compilation_config.pass_config.eliminate_noops
        compilation_config.pass_config.enable_sp compilation_config.pass_config.sp_min_token_num
        compilation_config.pass_config.fuse_gemm_comms
        compilation_config.pass_config.fi_allreduce_fusion_max_size_mb
        compilation_config.pass_config.enable_qk_norm_rope_fusion
        compilation_config.pass_config.fuse_act_padding compilation_config.pass_config.fuse_rope_kvcache
        compilation_config.pass_config.rope_kvcache_fusion_max_token_num
        compilation_config.pass_config.fuse_minimax_qk_norm
        compilation_config.pass_config.fuse_mla_dual_rms_norm
        compilation_config.pass_config.fuse_rope_kvcache_cat_mla
        compilation_config.pass_config.fuse_qk_norm_rope_kvcache
    """,
    "attention with other workspaces": """
        attention_config.flash_attn_version attention_config.use_prefill_decode_attention
        attention_config.flash_attn_max_num_splits_for_cuda_graph attention_config.use_cudnn_prefill
        attention_config.use_trtllm_ragged_deepseek_prefill attention_config.use_trtllm_attention
        attention_config.disable_flashinfer_prefill attention_config.disable_flashinfer_q_quantization
        attention_config.use_prefill_query_quantization attention_config.tq_max_kv_splits_for_cuda_graph
        attention_config.use_fp4_indexer_cache attention_config.mla_prefill_backend
        attention_config.use_non_causal attention_config.flex_attn_block_m attention_config.flex_attn_block_n
        attention_config.flex_attn_q_block_size attention_config.flex_attn_kv_block_size
        attention_config.indexer_kv_dtype attention_config.backend_per_kind
        attention_config.sparse_mla_force_mqa attention_config.minimax_m3_msa_decode_backend
        attention_config.hisparse_config attention_config.indexer_sparse_logits
        attention_config.tokenspeed_mla_min_split_kv attention_config.sparse_mla_prefill_workspace_factor
        attention_config.trtllm_ragged_backend attention_config.indexer_tp_shard_min_rows
        attention_config.minimax_m3_indexer_cp
    """,
}


def _effects(
    modelled: str, no_effect: dict[str, str], unmodelled: dict[str, str]
) -> dict[str, tuple[Effect, str]]:
    effects: dict[str, tuple[Effect, str]] = dict.fromkeys(modelled.split(), ("modelled", ""))
    for reason, names in no_effect.items():
        effects |= dict.fromkeys(names.split(), ("no_effect", reason))
    for reason, names in unmodelled.items():
        effects |= dict.fromkeys(names.split(), ("unmodelled", reason))
    return effects


EFFECTS: Final = _effects(MODELLED, NO_EFFECT, UNMODELLED)
"""Flag name -> (effect, why)."""

KEY_EFFECTS: Final = _effects(KEYS_MODELLED, KEYS_NO_EFFECT, KEYS_UNMODELLED)
"""'flag.key' of a config given as JSON -> (effect, why)."""
