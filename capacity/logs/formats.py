r"""vLLM's lines about memory, releases 0.10 to 0.33, as patterns with named figures.

The test data (`tests/data/logs/formats.json`) holds vLLM's own format strings of each release; every one
must be read here
with all its figures. Units stand in the names: `_gib`, `_mib`, `_bytes`; percentages are in percent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

Value = float | int | str

F = r"(-?\d+(?:\.\d+)?)"
"""A figure in GiB or as a plain decimal."""
N = r"(-?\d+(?:,\d{3})*)"
"""A count, with or without separators."""

_INTEGERS = re.compile(
    r"(?:tokens|blocks|own|override|bytes|items|requests|layers|reqs|graphs|servers|from|to|size|max_model_len)$"
)


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of line. `needle` is a literal that every such line holds: a cheap test before the pattern."""

    kind: str
    needle: str
    pattern: re.Pattern[str]
    fields: tuple[str, ...]

    def read(self, text: str) -> dict[str, Value] | None:
        """Field -> value; None where the line is another one. Fields that the line leaves out are missing."""
        match = self.pattern.search(text)
        if match is None:
            return None
        values: dict[str, Value] = {}
        for name, found in zip(self.fields, match.groups(), strict=True):
            if found is not None:
                values[name] = _value(name, found)
        return values


def _value(name: str, text: str) -> Value:
    if name.endswith("_text"):
        return text.strip()
    number = text.replace(",", "")
    try:
        return int(number) if _INTEGERS.search(name) and "." not in number else float(number)
    except ValueError:
        return text


def _format(kind: str, needle: str, pattern: str, *fields: str) -> Format:
    compiled = re.compile(pattern.replace("<F>", F).replace("<N>", N))
    assert compiled.groups == len(fields), (kind, compiled.groups, fields)
    return Format(kind, needle, compiled, fields)


_USAGE = (
    r"Actual usage is (?:<F> GiB for weight|<F> GiB for consumed memory \(weights \+ non-torch\)), <F> GiB "
    r"for peak activation"
    r"(?:, <F> GiB for non-torch memory)?(?:,? and <F> GiB for CUDAGraph memory)?"
)

FORMATS: tuple[Format, ...] = (
    # -- who runs what
    _format("api_version", "server version", r"(?:API|gRPC) server version:? (\S+)", "version_text"),
    _format("banner_version", "version ", r"[█▀▄]\s+version (\d\S*)", "version_text"),
    _format(
        "engine_version",
        "LLM engine (v",
        r"Initializing an? (?:V\d )?LLM engine \(v([^)\s]+)\)",
        "version_text",
    ),
    _format("model_runner_v2", "Using V2 Model Runner", r"Using (V2) Model Runner", "model_runner_text"),
    _format("max_model_len", "max model len", r"Using max model len <N>", "max_model_len"),
    _format(
        "chunked_prefill",
        "max_num_batched_tokens=",
        r"Chunked prefill is enabled with "
        r"max_num_batched_tokens=<N>",
        "max_num_batched_tokens",
    ),
    _format(
        "attention_backend",
        "backend",
        r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+|Flash "
        r"Attention|FlashInfer|Triton)"
        r"(?: attention)? backend(?! for vit)",
        "attention_backend_text",
    ),
    _format(
        "flash_attention_version",
        "FlashAttention version",
        r"Using FlashAttention version (\S+)",
        "flash_attention_text",
    ),
    # -- loading
    _format(
        "loading_model", "Starting to load model", r"Starting to load model (\S+?)\.\.\.", "loaded_model_text"
    ),
    _format(
        "model_loading",
        "odel loading took",
        r"Model loading took <F> Gi?B(?: memory)?(?: and <F> "
        r"seconds)?",
        "weights_gib",
        "loading_seconds",
    ),
    _format(
        "model_loading_v0",
        "Loading model weights took",
        r"Loading model weights took <F> Gi?B",
        "weights_gib",
    ),
    _format(
        "load_peak",
        "Peak GPU memory after loading",
        r"Peak GPU memory after loading weights: <F> GiB",
        "load_peak_gib",
    ),
    _format(
        "checkpoint",
        "Checkpoint size",
        r"Checkpoint size: <F> GiB\. Available RAM: <F> GiB",
        "checkpoint_gib",
        "available_ram_gib",
    ),
    # -- profiling
    _format(
        "snapshot",
        "torch_peak=",
        r"torch_peak=<F>GiB, (?:torch_allocated=<F>GiB, "
        r")?free_memory=<F>GiB, total_memory=<F>GiB, "
        r"\w+_memory=<F>GiB, torch_memory=<F>GiB, non_torch_memory=<F>GiB",
        "snapshot_torch_peak_gib",
        "snapshot_allocated_gib",
        "snapshot_free_gib",
        "cuda_total_gib",
        "snapshot_used_gib",
        "snapshot_torch_gib",
        "snapshot_non_torch_gib",
    ),
    _format("requested", "worker requested memory", r"worker requested memory: <F>GiB", "requested_gib"),
    _format(
        "free_requested",
        "Requested memory:",
        r"Initial free memory: <F> GiB; Requested memory: "
        r"<F> \(util\), <F> GiB",
        "free_gib",
        "gpu_memory_utilization",
        "requested_gib",
    ),
    _format(
        "free_after_profiling",
        "Free memory after profiling",
        r"Free memory after profiling: <F> GiB \(total\), <F> GiB \(within requested\)",
        "free_after_profiling_gib",
        "free_within_requested_gib",
    ),
    _format(
        "profile_result",
        "Total non KV cache memory",
        r"Total non KV cache memory: <F>GiB; torch peak "
        r"memory increase: <F>GiB; "
        r"(?:non-torch forward increase memory: <F>GiB|total consumed \(from mem_get_info\): <F>GiB)"
        r"(?:; weights memory: <F>GiB)?",
        "total_non_kv_gib",
        "activation_peak_gib",
        "non_torch_gib",
        "consumed_gib",
        "profiled_weights_gib",
    ),
    _format(
        "profile_seconds", "Memory profiling takes", r"Memory profiling takes <F> seconds", "profile_seconds"
    ),
    _format(
        "profile_v0_share",
        "x gpu_memory_utilization (",
        r"total_gpu_memory \(<F>GiB\) x "
        r"gpu_memory_utilization \(<F>\) = <F>GiB",
        "cuda_total_gib",
        "gpu_memory_utilization",
        "requested_gib",
    ),
    _format("profile_v0_total", "total_gpu_memory ", r"total_gpu_memory <F>GiB", "cuda_total_gib"),
    _format("profile_v0_requested", "instance can use", r"vLLM instance can use <F>GiB", "requested_gib"),
    _format("profile_v0_weights", "model weights take", r"model weights take <F>GiB", "profiled_weights_gib"),
    _format(
        "profile_v0_non_torch", "non_torch_memory ", r"non_torch_memory (?:takes )?<F>x?GiB", "non_torch_gib"
    ),
    _format(
        "profile_v0_activation",
        "PyTorch activation peak memory",
        r"PyTorch activation peak memory "
        r"(?:takes )?<F>GiB",
        "activation_peak_gib",
    ),
    _format("profile_v0_rest", "KV Cache is", r"KV Cache is <F>GiB", "available_kv_gib"),
    _format(
        "profile_v0_available",
        "available_kv_cache_memory",
        r"available_kv_cache_memory <F>GiB",
        "available_kv_gib",
    ),
    _format(
        "profile_v0_results",
        "Memory profiling results:",
        r"total_gpu_memory=<F>GiB "
        r"initial_memory_usage=<F>GiB "
        r"peak_torch_memory=<F>GiB (?:memory_usage_post_profile=<F>GiB )?non_torch_memory=<F>GiB "
        r"kv_cache_size=<F>GiB "
        r"gpu_memory_utilization=<F>",
        "cuda_total_gib",
        "initial_usage_gib",
        "peak_torch_gib",
        "usage_after_profile_gib",
        "non_torch_gib",
        "available_kv_gib",
        "gpu_memory_utilization",
    ),
    _format(
        "available_kv",
        "vailable",
        r"[Aa]vailable (?:for )?KV(?: cache)?(?: memory)?:? (?:remained \w+ "
        r")?\(?<F> Gi?B",
        "available_kv_gib",
    ),
    _format(
        "kv_reserved",
        "as specified by kv_cache_memory_bytes",
        r"Initial free memory <F> GiB, reserved "
        r"<F> ?GiB",
        "free_gib",
        "kv_reserved_gib",
    ),
    _format(
        "startup_plan",
        "persisted startup plan",
        r"kv_cache_memory_bytes=<N> \(<F> GiB\), recorded "
        r"free-memory baseline <F> GiB, "
        r"current <F> GiB",
        "planned_kv_bytes",
        "kv_reserved_gib",
        "planned_free_gib",
        "free_gib",
    ),
    _format(
        "encoder_cache",
        "Encoder cache will be initialized",
        r"budget of <N> tokens, and profiled with "
        r"<N> (\S+) items",
        "encoder_tokens",
        "encoder_items",
        "encoder_modality_text",
    ),
    _format(
        "encoder_skipped",
        "Skipping memory profiling for multimodal",
        r"(Skipping) memory profiling "
        r"for multimodal encoder",
        "encoder_skipped_text",
    ),
    _format(
        "mm_ipc",
        "frontend multimodal decoding",
        r"Reserving <F> GiB of GPU memory for frontend "
        r"multimodal decoding "
        r"\(<F> GiB raw-frame semaphore budget, <F> GiB decoder\+CUDA-context across <N> API "
        r"server\(s\) @ <F> GiB/server\); "
        r"KV cache memory reduced to <F> GiB",
        "mm_reserved_gib",
        "mm_frames_gib",
        "mm_decoder_gib",
        "mm_api_servers",
        "mm_server_gib",
        "available_after_mm_gib",
    ),
    _format(
        "graph_profile",
        "Profiling CUDA graph memory",
        r"Profiling CUDA graph memory: (.+)",
        "graph_groups_text",
    ),
    _format(
        "graph_estimate", "CUDA graph memory:", r"Estimated CUDA graph memory: <F> GiB", "graph_estimate_gib"
    ),
    _format(
        "graph_samples",
        "first-capture",
        r"Estimated (\w+) CUDA graph memory: <F> MiB "
        r"first-capture \+ \(<N>-1\) [×x] <F> MiB",
        "cudagraph_mode_text",
        "graph_first_mib",
        "graph_mode_graphs",
        "graph_each_mib",
    ),
    _format(
        "encoder_graph_estimate",
        "Estimated encoder CUDA graph",
        r"Estimated encoder CUDA graph "
        r"memory: <F> MiB for <N> graphs",
        "encoder_graph_mib",
        "encoder_graphs",
    ),
    _format(
        "graph_equivalent",
        "equivalent to",
        r"(?:--gpu-memory-utilization=)?<F> is equivalent to "
        r"(?:--gpu-memory-utilization=)?<F>"
        r"(?:.*? increase --gpu-memory-utilization to <F>)?",
        "gpu_memory_utilization",
        "equivalent_gpu_memory_utilization",
        "suggested_gpu_memory_utilization",
    ),
    _format(
        "graph_unprofiled",
        "--gpu-memory-utilization from",
        r"--gpu-memory-utilization from <F> to "
        r"<F>",
        "gpu_memory_utilization",
        "suggested_gpu_memory_utilization",
    ),
    # -- KV cache
    _format(
        "capacity",
        "KV cache",
        r"KV cache size:? (?:as reported at startup: )?<N> tokens",
        "kv_cache_size_tokens",
    ),
    _format(
        "concurrency",
        "oncurrency",
        r"[Mm]ax(?:imum)? concurrency (?:for|@|at) <N>(?: tokens)?(?: per "
        r"request)?:? <F>x?",
        "concurrency_max_model_len",
        "max_concurrency",
    ),
    _format(
        "blocks_override",
        "num_gpu_blocks_override",
        r"Overriding num_gpu_blocks=<N> with "
        r"num_gpu_blocks_override=<N>",
        "num_blocks_own",
        "num_gpu_blocks_override",
    ),
    _format("num_blocks", "num_gpu_blocks is", r"num_gpu_blocks is: <N>", "num_blocks"),
    _format(
        "num_gpu_blocks_v0",
        "GPU blocks:",
        r"# GPU blocks: <N>(?:, # C(?:PU|UDA) blocks: <N>)?",
        "num_blocks",
        "num_cpu_blocks",
    ),
    _format(
        "padding_layers",
        "padding layers",
        r"Add <N> padding layers, may waste at most <F>% KV cache "
        r"memory",
        "padding_layers",
        "padding_waste_percent",
    ),
    _format(
        "block_size",
        "block size to",
        r"Setting (?:kv cache|attention) block size to <N>(?: "
        r"tokens)?(?: for (\S+) backend)?",
        "block_size",
        "block_size_backend_text",
    ),
    _format(
        "mamba_padding",
        "Padding mamba page size",
        r"Padding mamba page size by <F>%",
        "mamba_padding_percent",
    ),
    _format(
        "auto_fit_full",
        "Auto-fit max_model_len",
        r"full model context length <N> fits in available "
        r".*?\(?(?:<F> GiB|$)",
        "auto_fit_from",
        "available_kv_gib",
    ),
    _format(
        "auto_fit",
        "Auto-fit max_model_len",
        r"reduced from <N> to <N> to fit in "
        r"available \w+.*?\((?:GPU: )?<F> GiB",
        "auto_fit_from",
        "auto_fit_to",
        "available_kv_gib",
    ),
    _format(
        "hybrid_disabled",
        "ybrid kv cache manager",
        r"(Turning off) hybrid kv cache manager",
        "hybrid_disabled_text",
    ),
    _format(
        "hybrid_disabled_specs",
        "Hybrid KV cache manager is disabled",
        r"(Hybrid KV cache manager is "
        r"disabled)",
        "hybrid_disabled_text",
    ),
    # -- graphs, summary
    _format(
        "graph_progress",
        "Capturing",
        r"Capturing CUDA graphs?[^:]*: +<N>%\|?.*?(\d+/\d+)",
        "graph_progress_percent",
        "graph_progress_text",
    ),
    _format(
        "graph_capture",
        "raph capturing finished",
        r"Graph capturing finished in <F> secs?(?:, took "
        r"<F> GiB)?",
        "graph_capture_seconds",
        "graph_capture_gib",
    ),
    _format(
        "graph_pool",
        "CUDA graph pool memory",
        r"CUDA graph pool memory: <F> GiB \(actual\), <F> "
        r"GiB \(estimated\)"
        r"(?:, difference: <F> GiB \(<F>%\))?",
        "graph_actual_gib",
        "graph_estimate_gib",
        "graph_difference_gib",
        "graph_difference_percent",
    ),
    _format(
        "summary_free",
        "on startup. Desired",
        r"Free memory on device \(<F>/<F> GiB\) on startup\. "
        r"Desired GPU memory utilization is "
        r"\(<F>, <F> GiB\)",
        "free_gib",
        "cuda_total_gib",
        "gpu_memory_utilization",
        "requested_gib",
    ),
    _format(
        "free_alone",
        "Free memory on device (",
        r"Free memory on device \(<F>/<F> GiB\)$",
        "free_gib",
        "cuda_total_gib",
    ),
    _format(
        "summary_usage",
        "Actual usage is",
        _USAGE,
        "profiled_weights_gib",
        "consumed_gib",
        "activation_peak_gib",
        "non_torch_gib",
        "graph_actual_gib",
    ),
    _format("kv_in_use_short", "in use is", r"\.\.\. in use is <F> GiB", "kv_in_use_gib"),
    _format(
        "summary_parts",
        "for peak activation, ",
        r"(?:^|\| )<F> GiB for peak activation, <F> GiB for "
        r"non-torch memory",
        "activation_peak_gib",
        "non_torch_gib",
    ),
    _format(
        "suggestion",
        "--kv-cache-memory=",
        r"--kv-cache-memory=<N>`?(?: \(<F> GiB\))? to fit into "
        r"requested memory(?:, or "
        r"`?--kv-cache-memory=<N>`?(?: \(<F> GiB\))? to fully)?",
        "kv_to_requested_bytes",
        "kv_to_requested_gib",
        "kv_to_gpu_bytes",
        "kv_to_gpu_gib",
    ),
    _format("kv_in_use", "ache memory in use is", r"kv cache memory in use is <F> GiB", "kv_in_use_gib"),
    _format(
        "kv_in_use_bytes",
        "ache memory in use is",
        r"kv cache memory in use is (?:int\()?(\d{6,})(?: "
        r"bytes|\.|$)",
        "kv_in_use_bytes",
    ),
    _format("kv_deferred", "KV cache memory is", r"KV cache memory is <F> GiB", "available_kv_gib"),
    _format(
        "mamba_capped",
        "Mamba cache blocks (",
        r"Capping cudagraph capture sizes from max <N> to <N> "
        r"to fit Mamba cache blocks "
        r"\(<N> blocks",
        "capped_from",
        "capped_to",
        "mamba_blocks",
    ),
    _format(
        "mamba_no_graphs",
        "after capping to Mamba",
        r"capping to Mamba cache blocks \(<N>\)\. The "
        r"smallest capture size was <N>",
        "mamba_blocks",
        "smallest_capture_size",
    ),
    _format(
        "workspace_resized",
        "WORKSPACE DEBUG",
        r"Resized workspace from '([^']*)': <F> MB -> <F> "
        r"MB \((?:ubatch )?<N>(?: ubatches)?"
        r"(?:, lane <N>|, total memory <F> MB)?\)",
        "workspace_caller_text",
        "workspace_before_mib",
        "workspace_mib",
        "workspace_ubatch",
        "workspace_lane",
        "workspace_total_mib",
    ),
    _format(
        "sleep",
        "Sleep mode freed",
        r"Sleep mode freed <F> GiB memory, <F> GiB memory is still in use",
        "sleep_freed_gib",
        "sleep_in_use_gib",
    ),
    # -- running
    _format("kv_usage", "KV cache usage", r"KV cache usage: <F>%", "kv_usage_percent"),
    _format(
        "iteration",
        "context requests",
        r"Iteration\(<N>\): <N> context requests, <N> context tokens, "
        r"<N> generation requests, "
        r"<N> generation tokens, iteration elapsed time: <F> ms",
        "iteration_requests",
        "context_requests",
        "context_tokens",
        "generation_requests",
        "generation_tokens",
        "iteration_ms",
    ),
    _format(
        "iteration_encoder",
        "encoder inputs",
        r"encoder inputs: <N>(?:, encoder output embeddings: "
        r"<N>)?",
        "encoder_inputs_items",
        "encoder_embeddings_items",
    ),
    _format("running", "Running:", r"Running: <N> reqs", "running_reqs"),
    _format("waiting", "Waiting:", r"Waiting: <N> reqs", "waiting_reqs"),
    _format("pending", "Pending:", r"Swapped: <N> reqs, Pending: <N> reqs", "swapped_reqs", "waiting_reqs"),
    _format("preemptions", "Preemptions:", r"Preemptions: <N>", "preempted_requests"),
    _format(
        "preempted_v0",
        "is preempted by",
        r"is preempted by PreemptionMode.*total_num_cumulative_preemp"
        r"tion=<N>",
        "preempted_requests",
    ),
    _format(
        "throughput",
        "prompt throughput",
        r"Avg prompt throughput: <F> tokens/s, Avg generation "
        r"throughput: <F> tokens/s",
        "prompt_tokens_per_second",
        "generation_tokens_per_second",
    ),
    _format("prefix_hits", "Prefix cache hit rate", r"Prefix cache hit rate: <F>%", "prefix_hit_percent"),
    _format("cpu_kv_usage", "CPU KV cache usage", r"CPU KV cache usage: <F>%", "cpu_kv_usage_percent"),
    _format("server_up", "tartup complete", r"(Application startup complete)", "server_up_text"),
)

_NEEDLES: tuple[str, ...] = tuple(dict.fromkeys(item.needle for item in FORMATS))
_BY_NEEDLE: dict[str, tuple[Format, ...]] = {
    needle: tuple(item for item in FORMATS if item.needle == needle) for needle in _NEEDLES
}
ANY_NEEDLE = re.compile("|".join(re.escape(needle) for needle in sorted(_NEEDLES, key=len, reverse=True)))


def read_line(text: str) -> Iterator[tuple[str, dict[str, Value]]]:
    """(kind, figures) of everything in a line that is one of vLLM's, in the table's order."""
    if ANY_NEEDLE.search(text) is None:
        return
    for needle in _NEEDLES:
        if needle in text:
            for item in _BY_NEEDLE[needle]:
                values = item.read(text)
                if values:
                    yield item.kind, values
