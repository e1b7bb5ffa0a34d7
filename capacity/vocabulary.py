"""One word, one key and one unit for every number that a user meets: what a plan prints, what JSON calls it, what vLLM does.

Schemas take the meaning and the unit of their numbers from here (`add_meanings`), so no key can have two, and a key that is
not here is an error. docs/glossary.md shows `QUANTITIES`; tests/docs/test_vocabulary.py walks every schema.
"""

from __future__ import annotations

from typing import Any

from vllm_capacity.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Quantity:
    """`word` is what text, tables and pages say; `vllm` is vLLM's own word where it is another one."""

    word: str
    unit: str
    meaning: str
    vllm: str = ""


INSIDE_KV_CACHE = {
    "size_tokens": "kv_cache_size_tokens",
    "second_start_size_tokens": "second_start_kv_cache_size_tokens",
}
"""Inside of `kv_cache` a key leaves that word out."""

QUANTITIES: dict[str, Quantity] = {
    "cuda_total_bytes": Quantity("total", "bytes", "The GPU's memory as CUDA reports it and vLLM budgets it.", "total_memory"),
    "free_bytes": Quantity("free at start-up", "bytes", "Free at vLLM's baseline snapshot, on the fullest rank.",
                           "Free memory on device"),
    "gpu_memory_utilization": Quantity("utilisation", "share of the total", "Share of the GPU's total memory that vLLM budgets.",
                                       "gpu_memory_utilization"),
    "min_gpu_memory_utilization": Quantity("least utilisation", "share of the total",
                                           "Least utilisation that starts, or holds the requests asked for."),
    "max_gpu_memory_utilization": Quantity("most utilisation", "share of the total", "Most that is free at start-up."),
    "requested_bytes": Quantity("requested", "bytes", "Utilisation times the total: what vLLM budgets.", "requested_memory"),
    "weights_bytes": Quantity("weights", "bytes", "Parameters and buffers as loaded.", "Model loading took; model_memory_usage"),
    "activation_peak_bytes": Quantity("activation peak", "bytes", "Highest point of the profile run above the weights, cold "
                                      "compile cache.", "peak activation; torch_peak_increase"),
    "activation_peak_warm_bytes": Quantity("activation peak, second start", "bytes", "The same with a warm compile cache."),
    "non_torch_bytes": Quantity("non-torch", "bytes", "Memory that PyTorch did not allocate, grown between vLLM's snapshots.",
                                "non_torch_increase"),
    "runner_buffers_bytes": Quantity(
        "runner buffers",
        "bytes",
        "The model runner's tensors inside the accounting (0.27.0 on); below 0 where more lie in segments from before it.",
    ),
    "graph_estimate_bytes": Quantity("graph estimate", "bytes", "What vLLM estimates for CUDA graphs, as it prints it.",
                                     "cudagraph_memory_estimate"),
    "graph_applied_bytes": Quantity("graph estimate subtracted", "bytes", "What of the estimate is subtracted.",
                                    "cudagraph_memory_estimate_applied"),
    "graph_actual_bytes": Quantity("graphs", "bytes", "What CUDA graphs take once captured.", "CUDA graph pool memory"),
    "consumed_bytes": Quantity("consumed", "bytes", "Weights, non-torch and runner buffers together (0.27.0 on).",
                               "total_consumed"),
    "available_kv_bytes": Quantity("available for KV cache", "bytes", "Requested less all that is subtracted, on the tightest "
                                   "rank or the one named; before a block override; may be negative.",
                                   "available_kv_cache_memory"),
    "available_kv_low_bytes": Quantity("available for KV cache, from", "bytes", "With every term at the unfavourable end."),
    "available_kv_high_bytes": Quantity("available for KV cache, to", "bytes", "With every term at the favourable end."),
    "request_bytes": Quantity("one request", "bytes", "KV cache that one request of max_model_len tokens needs.",
                              "KV cache is needed"),
    "device_used_bytes": Quantity("in use once up", "bytes", "In use on the GPU once the server is up, as nvidia-smi shows it."),
    "kv_cache_size_tokens": Quantity("KV cache tokens", "tokens", "What one engine's KV cache holds, as this release prints it.",
                                     "GPU KV cache size; kv_cache_size_tokens"),
    "total_kv_cache_size_tokens": Quantity("KV cache tokens of all engines", "tokens", "The same of all engines together."),
    "max_concurrency": Quantity("concurrency", "requests", "Requests of max_model_len tokens that one engine holds at once, "
                                "unrounded.", "Maximum concurrency; kv_cache_max_concurrency"),
    "num_blocks": Quantity("blocks", "blocks", "Blocks of one engine's pool, the null block included.",
                           "num_gpu_blocks; num_blocks"),
    "num_blocks_own": Quantity("own blocks", "blocks", "Blocks that this rank's memory would give; the smallest decides."),
    "block_size": Quantity("block size", "tokens", "Tokens of a block, in the group with the smallest ones or the one named.",
                           "block_size"),
    "max_model_len": Quantity("max_model_len", "tokens", "The longest request.", "max_model_len"),
    "max_model_len_that_fits": Quantity("largest max_model_len", "tokens", "Largest --max-model-len whose request fits; null "
                                        "where none does.", "estimated maximum model length"),
    "max_num_seqs": Quantity("sequences", "sequences", "Sequences of one batch.", "max_num_seqs"),
    "max_num_batched_tokens": Quantity("tokens a batch", "tokens", "Tokens of one batch.", "max_num_batched_tokens"),
    "sequences": Quantity("requests at once", "requests", "Requests in flight at once: asked for, or held by all replicas "
                          "with the margin left out."),
    "engine_sequences": Quantity("requests at once of one engine", "requests", "Requests of the demand that one engine holds, "
                                 "margin left out."),
    "checkpoint_bytes": Quantity("checkpoint", "bytes", "Weight files on disk.", "Checkpoint size"),
    "parameters": Quantity("parameters", "parameters", "Logical parameters: tied heads once, no padding; in the catalogue the "
                           "published number of stored elements; null when unknown."),
    "gpus_per_replica": Quantity("GPUs", "GPUs", "GPUs of one replica: all its ranks.", "world_size"),
    "tensor_parallel_size": Quantity("tp", "GPUs", "GPUs that each layer is split over.", "tensor_parallel_size"),
    "pipeline_parallel_size": Quantity("pp", "stages", "Pipeline stages.", "pipeline_parallel_size"),
    "data_parallel_size": Quantity("dp", "engines", "Engines side by side.", "data_parallel_size"),
    "decode_context_parallel_size": Quantity("dcp", "GPUs", "Ranks that share one sequence's KV cache in decode.",
                                             "decode_context_parallel_size"),
    "prefill_context_parallel_size": Quantity("pcp", "GPUs", "Ranks that share one prompt.", "prefill_context_parallel_size"),
}  # fmt: skip
"""Key -> what it is. Shown in docs/glossary.md, in this order."""

NUMBERS: dict[str, tuple[str, str]] = {
    # the plan
    "nvml_total_bytes": ("bytes", "What nvidia-smi reports; vLLM's default tiers look at it."),
    "bytes": ("bytes", "Per GPU."),
    "low_bytes": ("bytes", "Lower end of the interval; `bytes` where the term is exact."),
    "high_bytes": ("bytes", "Upper end of the interval."),
    "rank": ("index", "Global rank; each GPU is one."),
    "tp_rank": ("index", "Place in its tensor-parallel group."),
    "pp_rank": ("index", "Pipeline stage."),
    "dp_rank": ("index", "Data-parallel engine."),
    "layers": ("layers", "Layers that share a block table."),
    "page_size_bytes": ("bytes", "One block of one layer."),
    "pool_tokens": ("tokens", "Tokens that the usable blocks hold."),
    "second_start_num_blocks": ("blocks", "Blocks of a start that finds its kernels in the compile cache."),
    "second_start_kv_cache_size_tokens": ("tokens", "KV cache tokens of such a start."),
    "marginal_bytes_per_token": ("bytes per token", "What one token more costs, per GPU."),
    "fixed_bytes_per_sequence": (
        "bytes per sequence",
        "Windows at their cap and states, whatever the length.",
    ),
    "kv_cache_memory_bytes": ("bytes", "KV cache per GPU, in place of the share; null where not given."),
    "cudagraph_capture_sizes": ("tokens", "Batch sizes that graphs are captured for."),
    "num_gpu_blocks_override": ("blocks", "Blocks to use whatever fits; null where not given."),
    "num_speculative_tokens": ("tokens", "Draft tokens of a step; 0 without a draft."),
    "available_kv_bytes_delta": ("bytes", "More (or less) available for KV cache, per GPU."),
    "kv_cache_size_tokens_delta": ("tokens", "More (or fewer) KV cache tokens."),
    "asked": ("requests", "Requests of max_model_len tokens at once, as asked."),
    "pinned_bytes": ("bytes", "Pinned host memory, per node."),
    "shared_memory_bytes": ("bytes", "What /dev/shm must hold, per node."),
    "recorded_runs": ("runs", "Runs behind this release's accounting."),
    # size
    "mean_tokens": ("tokens", "Mean length of a request of the demand."),
    "p95_tokens": ("tokens", "95th percentile of the lengths."),
    "longest_tokens": ("tokens", "The longest request of the demand."),
    "shared_tokens": ("tokens", "Of each prompt, in common to all."),
    "replicas": ("replicas", "Servers of this layout that hold the demand together."),
    "gpus_used": ("GPUs", "GPUs of all replicas."),
    "gpus_bought": ("GPUs", "With what whole boxes leave over."),
    "nodes": ("nodes", "Boxes bought."),
    "gpus_per_node": ("GPUs", "GPUs of one box, which is bought whole."),
    "headroom": ("share of the demand", "(sequences - asked for) / asked for."),
    "margin_bytes_per_gpu": ("bytes", "Safety margin, taken off what is held at once."),
    "cost": ("`currency`, per `price_unit`", "Of all that is bought; null without a price."),
    "power_watts": (
        "watts",
        "The vendor's board power, of all GPUs that the object stands for; null where unknown.",
    ),
    "decode_tokens_per_second_ceiling": (
        "tokens per second",
        "Of all replicas, an upper bound from memory bandwidth.",
    ),
    "distance": ("share of the value now", "How far the assumption can move; null where it is no number."),
    "plans_made": ("plans", "Plans that the search made."),
    # compare, explain's figures beside the log's, validate
    "a": ("as `unit` says", "First side; null where it has no such figure."),
    "b": ("as `unit` says", "Second side; null where it has no such figure."),
    "difference": ("as `unit` says", "b - a; null for text."),
    "predicted": ("as `unit` says", "The plan's figure; null where it has none."),
    "logged": (
        "as `unit` says",
        "The log's figure; one printed in GiB is exact to its last printed digit only.",
    ),
    "measured": ("as `unit` says", "What the run measured; null where it did not."),
    "error": ("as `unit` says", "predicted - measured."),
    "relative_error": ("share of the measured", "error / measured; null where that is 0 or unknown."),
    "exit_code": ("exit code", "What `validate` ends with for this run."),
    # explain
    "missing_bytes": ("bytes", "How much was missing at least; null where the log does not tell."),
    "frees_bytes": ("bytes", "What the change frees at the failing step, per GPU; null where unknown."),
    "spare_bytes": (
        "bytes",
        "Left at the failing step with the change; negative: still missing; null where unknown.",
    ),
    "line": ("line number", "Of the log, from 1."),
    "first_line": ("line number", "First line of this start."),
    "last_line": ("line number", "Last line of this start."),
    "start_count": ("starts", "Starts in the log."),
    "recognised": ("lines", "Lines that held something of vLLM's about memory."),
    "figures": ("in the name", "The log's own, as printed; names end in the unit."),
    "values": ("in the name", "Numbers by name: those of the formula, or those of the failure's own line."),
    "lines": ("lines", "Lines of the log, or those of its kind."),
    "count": ("occurrences", "How often: equal failures of several ranks, or requests of the batch."),
    # explain: what a process printed
    "profiled_weights_gib": ("GiB", "Weights as the lines about profiling and the summary give them."),
    "loading_seconds": ("seconds", "Time that loading took."),
    "load_peak_gib": ("GiB", "Peak while loading."),
    "available_ram_gib": ("GiB", "Free host memory while loading."),
    "snapshot_torch_peak_gib": ("GiB", "PyTorch's peak at a DEBUG snapshot."),
    "snapshot_allocated_gib": ("GiB", "Allocated by PyTorch at a DEBUG snapshot."),
    "snapshot_free_gib": ("GiB", "Free at a DEBUG snapshot."),
    "snapshot_used_gib": ("GiB", "In use at a DEBUG snapshot."),
    "snapshot_torch_gib": ("GiB", "Reserved by PyTorch at a DEBUG snapshot."),
    "snapshot_non_torch_gib": ("GiB", "Not PyTorch's at a DEBUG snapshot."),
    "profile_seconds": ("seconds", "Time of the profile run."),
    "total_non_kv_gib": ("GiB", "All that profiling found beside the KV cache."),
    "free_after_profiling_gib": ("GiB", "Free after the profile run."),
    "free_within_requested_gib": ("GiB", "Free of the requested share after the profile run."),
    "initial_usage_gib": ("GiB", "In use before the profile run (old releases)."),
    "peak_torch_gib": ("GiB", "PyTorch's peak in the profile run (old releases)."),
    "usage_after_profile_gib": ("GiB", "In use after the profile run (old releases)."),
    "kv_reserved_gib": ("GiB", "KV cache as given by kv_cache_memory_bytes."),
    "planned_kv_bytes": ("bytes", "KV cache of a persisted start-up plan."),
    "planned_free_gib": ("GiB", "Free memory that a persisted start-up plan was made with."),
    "encoder_tokens": ("tokens", "Budget of the multimodal encoder."),
    "encoder_items": ("items", "Multimodal items of the profile run."),
    "mm_reserved_gib": ("GiB", "Reserved for decoding media on the GPU."),
    "mm_frames_gib": ("GiB", "Of that, raw frames."),
    "mm_decoder_gib": ("GiB", "Of that, decoder and CUDA context."),
    "mm_api_servers": ("processes", "API servers that decode media."),
    "mm_server_gib": ("GiB", "Of that, per API server."),
    "available_after_mm_gib": ("GiB", "Available for KV cache after that."),
    "graph_first_mib": ("MiB", "First graph of a mode, in the estimate."),
    "graph_mode_graphs": ("graphs", "Graphs of that mode."),
    "graph_each_mib": ("MiB", "Each further graph of that mode."),
    "encoder_graph_mib": ("MiB", "Graphs of the encoder, in the estimate."),
    "encoder_graphs": ("graphs", "Graphs of the encoder."),
    "equivalent_gpu_memory_utilization": (
        "share of the total",
        "Utilisation that gives the same without the graph estimate.",
    ),
    "suggested_gpu_memory_utilization": ("share of the total", "Utilisation that vLLM suggests."),
    "graph_progress_percent": ("per cent", "Graphs captured, of all."),
    "graph_capture_seconds": ("seconds", "Time of capturing graphs."),
    "graph_capture_gib": ("GiB", "Growth of memory in use while graphs were captured."),
    "graph_difference_gib": ("GiB", "Graphs less their estimate."),
    "graph_difference_percent": ("per cent", "The same of the graphs."),
    "concurrency_max_model_len": ("tokens", "max_model_len in the line about concurrency."),
    "num_cpu_blocks": ("blocks", "Blocks in host memory (old releases)."),
    "padding_layers": ("layers", "Layers that only pad a group."),
    "padding_waste_percent": ("per cent", "KV cache that padding may waste."),
    "mamba_padding_percent": ("per cent", "Padding of a state's page."),
    "mamba_blocks": ("blocks", "Blocks for states."),
    "capped_from": ("sequences", "Largest graph size before it was capped to the blocks for states."),
    "capped_to": ("sequences", "Largest graph size afterwards."),
    "smallest_capture_size": ("sequences", "Smallest graph size, which did not fit."),
    "auto_fit_from": ("tokens", "max_model_len before vLLM fitted it."),
    "auto_fit_to": ("tokens", "max_model_len that vLLM fitted."),
    "kv_to_requested_bytes": ("bytes", "KV cache that fills the requested share, by vLLM's figures."),
    "kv_to_requested_gib": ("GiB", "The same in GiB."),
    "kv_to_gpu_bytes": ("bytes", "KV cache that fills the GPU, by vLLM's figures."),
    "kv_to_gpu_gib": ("GiB", "The same in GiB."),
    "kv_in_use_gib": ("GiB", "KV cache as vLLM's summary gives it."),
    "kv_in_use_bytes": ("bytes", "The same in bytes."),
    "workspace_before_mib": ("MiB", "A workspace before it grew."),
    "workspace_mib": ("MiB", "The largest workspace."),
    "workspace_ubatch": ("index", "Micro-batch of that workspace."),
    "workspace_lane": ("index", "Lane of that workspace."),
    "workspace_total_mib": ("MiB", "All workspaces."),
    "sleep_freed_gib": ("GiB", "Freed by sleep mode."),
    "sleep_in_use_gib": ("GiB", "Still in use in sleep mode."),
    # explain: a running server
    "kv_usage_max_percent": ("per cent", "Highest KV cache usage."),
    "kv_usage_last_percent": ("per cent", "Last KV cache usage."),
    "cpu_kv_usage_percent": ("per cent", "Last usage of blocks in host memory."),
    "lines_with_full_cache": ("lines", "Lines with a KV cache usage of 99 % or more."),
    "running_max": ("requests", "Most requests running at once."),
    "waiting_max": ("requests", "Most requests waiting at once."),
    "swapped_max": ("requests", "Most requests swapped out at once."),
    "preempted": ("requests", "Preemptions."),
    "prefix_hit_percent": ("per cent", "Last hit rate of the prefix cache."),
    "prompt_tokens_per_second": ("tokens per second", "Last prompt throughput."),
    "generation_tokens_per_second": ("tokens per second", "Last generation throughput."),
    "iteration_context_tokens_max": ("tokens", "Most prompt tokens of one step."),
    "iteration_context_requests_max": ("requests", "Most requests in prefill in one step."),
    "iteration_generation_requests_max": ("requests", "Most requests in decode in one step."),
    "iteration_generation_tokens_max": ("tokens", "Most tokens decoded in one step."),
    "iteration_encoder_inputs_max": ("items", "Most encoder inputs of one step."),
    "iteration_encoder_embeddings_max": ("tokens", "Most encoder embeddings of one step."),
    "iteration_ms": ("milliseconds", "Time of the last step."),
    "iterations": ("steps", "Number of the last step."),
    # catalogues
    "num_sms": ("multiprocessors", "Streaming multiprocessors."),
    "bandwidth_bytes_per_second": ("bytes per second", "Memory bandwidth; null where unknown."),
    "cuda_total_low_bytes": ("bytes", "Least total seen on this GPU; null where only one is known."),
    "cuda_total_high_bytes": ("bytes", "Most."),
    # records of `validate`: vLLM's own names where it has them
    "prompt_tokens": ("tokens", "Mean prompt length of the requests."),
    "output_tokens": ("tokens", "Mean output length of the requests."),
    "limit_s": ("seconds", "Time limit of the run."),
    "expect_s": ("seconds", "How long it will probably take, where no earlier record says."),
    "index": ("index", "As nvidia-smi counts."),
    "used_before_bytes": ("bytes", "In use on the GPU before the run."),
    "used_after_bytes": ("bytes", "In use on the GPU after it."),
    "requested_memory": ("bytes", "vLLM's own value of what is requested."),
    "model_memory_usage": ("bytes", "vLLM's own value of the weights."),
    "graph_estimate": ("bytes", "vLLM's own value of the graph estimate."),
    "graph_applied": ("bytes", "What of it was subtracted."),
    "graph_actual": ("bytes", "What capture_model() returned."),
    "available_kv_cache_memory_bytes": ("bytes", "vLLM's own value of what is available for KV cache."),
    "returned": ("bytes", "What determine_available_memory() returned."),
    "workspaces": ("bytes", "Workspaces, by moment."),
    "buffers": ("bytes", "Tensors that the model runner holds, by moment and attribute."),
    "attention_backends": ("layers", "Backend -> layers that use it."),
    "phase_seconds": ("seconds", "Phase -> time."),
    "durations": ("seconds", "Part of the run -> time."),
    "stages": ("bytes", "Stage -> snapshot; keys are torch's and vLLM's own."),
    # the API
    "workers": ("processes", "Processes that are ready to calculate, or at it."),
    "status": ("HTTP status", "Of the answer."),
    "concurrency": ("requests", "Requests of max_model_len tokens at once."),
    "prompt_p95": ("tokens", "95th percentile of the prompt lengths. Default: the mean."),
    "output_p95": ("tokens", "95th percentile of the output lengths. Default: the mean."),
    "concurrent_users": ("requests", "Requests in flight at once."),
    "prefix_share": ("share of the prompt", "What all requests have in common of each prompt."),
    "max_gpus": ("GPUs", "Most GPUs of one replica."),
}
"""Key -> (unit, meaning) of the numbers that only one answer has."""


def unit_and_meaning(key: str) -> tuple[str, str]:
    """Of a number's key. A figure quoted from a log in GiB is the quantity of its stem. Raises KeyError."""
    key = INSIDE_KV_CACHE.get(key, key)
    if key in QUANTITIES:
        found = QUANTITIES[key]
        return found.unit, found.meaning
    if key in NUMBERS:
        return NUMBERS[key]
    quoted = QUANTITIES.get(f"{key.removesuffix('_gib')}_bytes") if key.endswith("_gib") else None
    if quoted is None:
        raise KeyError(f"{key}: no number of this name in capacity/vocabulary.py")
    return "GiB", f"{quoted.word[0].upper()}{quoted.word[1:]}, as the log prints it."


def is_number(schema: dict[str, Any]) -> bool:
    """Whether a property is a number, a list of numbers or a table of numbers, null or not."""
    if "anyOf" in schema:
        return any(is_number(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return is_number(schema.get("items", {}))
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return isinstance(values, dict) and is_number(values)
    return schema.get("type") in ("integer", "number") and "const" not in schema


def add_meanings(schema: dict[str, Any]) -> None:
    """Gives every number among the properties of an object its meaning and its unit; pydantic's `json_schema_extra`."""
    for key, member in schema.get("properties", {}).items():
        if is_number(member):
            member["unit"], member["description"] = unit_and_meaning(key)
