"""The scheduler's defaults: tokens a batch, sequences, chunked prefill, prefix caching, async scheduling,
hybrid manager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.facts import is_encoder_only, refuse, switch
from vllm_capacity.engine_defaults.speculation import Speculation
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release
from vllm_capacity.units import GIB

BATCHED_DP_TOKENS = 256
"""SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP (config/scheduler.py, 0.20.0 to 0.33.0)."""

GEMMA4_VIDEO_TOKENS = 32 * (70 + 2 + 6)
"""Frames x (soft tokens + two markers + time stamp) of one video
(model_executor/models/gemma4_mm.py:240-267, 0.26.0).
"""

_HMA = frozenset(
    {
        "DecodeBenchConnector",
        "ExampleHiddenStatesConnector",
        "MooncakeConnector",
        "MooncakeStoreConnector",
        "NixlConnector",
        "NixlPullConnector",
        "NixlPushConnector",
        "OffloadingConnector",
        "SimpleCPUOffloadConnector",
    }
)
"""Connectors whose class derives from SupportsHMA (distributed/kv_transfer/kv_connector/v1, 0.22.0 to
0.33.0).
"""


# -- tokens a batch and sequences ----------------------------------------------------------------------------


def batch_defaults(usage: str, device: Device, release: Release) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) before the model is looked at.

    `EngineArgs.get_batch_defaults`, engine/arg_utils.py:2430-2512 (0.26.0): by NVML's total memory, A100 by
    its name.
    """
    server = usage == "server"
    gib = device.nvml_total_bytes / GIB
    if gib >= 160 and release.has("tier_160_gib"):
        return 16384, 1024
    small = "a100" in device.name.lower() or (
        release.has("gb10_small_tier") and device.compute_capability == (12, 1)
    )
    if gib >= 70 and not small:
        return (8192 if server else 16384), 1024
    return (2048 if server else 8192), 256


def resolve_batch_sizes(
    args: EngineArgs, config: ModelConfig, architecture: Architecture, device: Device, release: Release, *,
    max_model_len: int, chunked_prefill: bool, batched_dp_moe: bool,
) -> tuple[int, int]:  # fmt: skip
    """(max_num_batched_tokens, max_num_seqs) with the defaults' adjustments in vLLM's order.

    `EngineArgs._set_default_max_num_seqs_and_batched_tokens_args`, engine/arg_utils.py:2628-2717 (0.26.0).
    """
    default_tokens, default_seqs = batch_defaults(args.usage, device, release)
    tokens, seqs = args.max_num_batched_tokens, args.max_num_seqs
    if tokens is None:
        tokens = BATCHED_DP_TOKENS if batched_dp_moe else default_tokens
    if seqs is None:
        seqs = default_seqs
    if args.performance_mode == "throughput":
        tokens *= 2 if args.max_num_batched_tokens is None else 1
        seqs *= 2 if args.max_num_seqs is None else 1
    if args.max_num_batched_tokens is None:
        if not chunked_prefill:
            tokens = max(max_model_len, tokens)
        if architecture.is_multimodal and release.has("prefix_lm_item_floor"):
            tokens = max(tokens, _largest_prefix_lm_item(args, config))
        tokens = min(seqs * max_model_len, tokens)
    if args.max_num_seqs is None:
        seqs = min(seqs, tokens)
    return tokens, seqs


def check_batch_sizes(
    args: EngineArgs, tokens: int, seqs: int, max_model_len: int, chunked_prefill: bool, release: Release
) -> None:
    """`SchedulerConfig.verify_max_model_len`, config/scheduler.py:272-321 (0.26.0), in vLLM's words."""
    if tokens < max_model_len and not chunked_prefill:
        raise refuse(
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({max_model_len}). This "
            "effectively limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject "
            "longer sequences. Please increase max_num_batched_tokens or decrease max_model_len."
        )
    if tokens < seqs:
        raise refuse(
            f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs})."
        )
    threshold = args.other("long_prefill_token_threshold", 0)
    if threshold > max_model_len and release.has("long_prefill_threshold_always_checked"):
        raise refuse(
            f"long_prefill_token_threshold ({threshold}) cannot be greater than the max_model_len "
            f"({max_model_len})."
        )


def _largest_prefix_lm_item(args: EngineArgs, config: ModelConfig) -> int:
    """Tokens of the largest item of a prefix-LM whose processor says so beforehand: Gemma 4's video; else 0.

    `_get_min_mm_batched_tokens`, engine/arg_utils.py:2596-2626 (0.26.0); other prefix-LMs leave it to
    profiling.
    """
    if config.text.get("use_bidirectional_attention") != "vision":
        return 0
    limits = args.other("limit_mm_per_prompt", {})
    video = limits.get("video") if isinstance(limits, Mapping) else None
    frames = video.get("num_frames") if isinstance(video, Mapping) else None
    per_frame = GEMMA4_VIDEO_TOKENS // 32
    return min(32, frames) * per_frame if isinstance(frames, int) else GEMMA4_VIDEO_TOKENS


# -- chunked prefill, prefix caching, mamba mode -------------------------------------------------------------


def resolve_chunked_prefill(args: EngineArgs, architecture: Architecture, *, pooling: bool) -> bool:
    """`is_chunked_prefill_supported`, config/model.py:1810-1854, and `SchedulerConfig.__post_init__`
    (0.26.0).
    """
    if architecture.is_encoder_decoder:
        return False
    if args.enable_chunked_prefill is not None:
        return args.enable_chunked_prefill
    return _pools_over_a_prefix(args, architecture) if pooling else True


def resolve_prefix_caching(
    args: EngineArgs, architecture: Architecture, release: Release, *, pooling: bool
) -> bool:
    """`is_prefix_caching_supported`, config/model.py:1856-1909, and the default of
    engine/arg_utils.py:2514-2547 (0.26.0).

    On for decoders; hybrid (state-space and attention) models had it off until 0.27.1.
    """
    if args.enable_prefix_caching is not None:
        return args.enable_prefix_caching
    if pooling:
        return _pools_over_a_prefix(args, architecture)
    if architecture.is_hybrid:
        return not release.has("hybrid_prefix_caching_off")
    return not architecture.is_encoder_decoder and architecture.has_attention


def _pools_over_a_prefix(args: EngineArgs, architecture: Architecture) -> bool:
    """Causal attention, and a pooling that looks at the last token only."""
    pooler = args.other("pooler_config", {})
    pooling = {
        str(pooler.get(k, "")).upper() for k in ("pooling_type", "seq_pooling_type", "tok_pooling_type")
    }
    return not is_encoder_only(architecture) and not pooling & {"MEAN", "CLS", "STEP"}


def resolve_mamba_cache_mode(
    args: EngineArgs,
    architecture: Architecture,
    release: Release,
    *,
    prefix_caching: bool,
    chunked_prefill: bool,
    speculation: Speculation,
) -> str:
    """'none', 'align' or 'all'. `MambaModelConfig.verify_and_update_config`, models/config.py:545-602
    (0.26.0).
    """
    asked = args.other("mamba_cache_mode")
    modes = ("align", "none") + (("all",) if release.has("mamba_mode_all") else ())
    if asked is not None and asked not in modes:
        if asked != "all":
            raise InputError(f"--mamba-cache-mode must be one of {', '.join(modes)}, not {asked!r}")
        raise refuse(f"argument --mamba-cache-mode: invalid choice: 'all' (choose from {', '.join(modes)})")
    if not architecture.has_state_space or not prefix_caching:
        return "none"
    can_all = architecture.supports_mamba_prefix_caching
    mode = asked or "none"
    if mode == "none":
        if (
            release.has("mamba_default_align")
            or not can_all
            or (release.has("mamba_align_with_speculation") and speculation.method is not None)
        ):
            mode = "align"
        else:
            mode = "all"
    if mode == "all" and not can_all:
        mode = "align"
    if mode == "align" and not chunked_prefill:
        raise refuse("Chunked prefill is required for mamba cache mode 'align'.")
    return mode


def check_mamba_block_size(args: EngineArgs, *, prefix_caching: bool, max_model_len: int) -> None:
    """`VllmConfig.validate_mamba_block_size`, config/vllm.py:2292-2304 (0.26.0; 0.20.0 to 0.33.0 alike)."""
    if args.other("mamba_block_size") not in (None, max_model_len) and not prefix_caching:
        raise refuse("--mamba-block-size can only be set with --enable-prefix-caching")


# -- async scheduling and what is in flight ------------------------------------------------------------------


def resolve_async_scheduling(
    args: EngineArgs, speculation: Speculation, release: Release, *, pooling: bool, runs_on_v2: bool
) -> bool:
    """`VllmConfig.__post_init__`, config/vllm.py:1035-1107 (0.26.0): on unless something does not support it.

    Raises RefusedError, in vLLM's words, where it was asked for and is not supported.
    """
    hinders = _hinders_async(
        args, speculation, release, runs_on_v2=runs_on_v2, asked=bool(args.async_scheduling)
    )
    if args.async_scheduling:
        if hinders is not None:
            raise refuse(hinders)
        return True
    if args.async_scheduling is False:
        return False
    if pooling and release.has("no_async_for_pooling"):
        return False
    if args.pipeline_parallel_size > 1 and not runs_on_v2 and release.has("async_pp_needs_v2"):
        return False
    return hinders is None


def _hinders_async(
    args: EngineArgs, speculation: Speculation, release: Release, *, runs_on_v2: bool, asked: bool
) -> str | None:
    """vLLM's sentence why async scheduling does not work, or None."""
    executor = args.other("distributed_executor_backend")
    unsupported = f"`{executor}` does not support async scheduling yet." if executor == "ray" else None
    method = speculation.method
    if release.has("async_limits_of_v1_only"):
        if runs_on_v2:
            return unsupported
        what = None
        if method is not None and method not in _async_methods(release, asked=True):
            what = f"{method}-based speculative decoding"
        elif speculation.values.get("disable_padded_drafter_batch"):
            what = "disable_padded_drafter_batch=True"
        elif args.pipeline_parallel_size > 1:
            what = "pipeline parallelism"
        return unsupported if what is None else (
            f"Async scheduling is not supported by the V1 model runner with {what}."
        )  # fmt: skip
    if method is not None and method not in _async_methods(release, asked=asked):
        kinds = "EAGLE/MTP/Draft Model/NGram GPU" + ("/DSpark" if release.has("async_with_dspark") else "")
        return f"Currently, async scheduling is only supported with {kinds} kind of speculative decoding"
    if speculation.values.get("disable_padded_drafter_batch"):
        return "Async scheduling is not compatible with disable_padded_drafter_batch=True."
    return unsupported


def _async_methods(release: Release, *, asked: bool) -> frozenset[str]:
    """Speculative methods with async scheduling. A draft model works, but until 0.27.1 only when asked
    for.
    """
    methods = {"eagle", "eagle3", "extract_hidden_states", "mtp", "ngram_gpu"}
    methods |= {"dflash"} if release.has("dflash_counts_as_eagle") else set()
    methods |= {"dspark"} if release.has("async_with_dspark") else set()
    methods |= {"draft_model"} if asked or release.has("async_default_with_draft_model") else set()
    return frozenset(methods)


def max_in_flight_tokens(
    tokens: int, pp: int, *, async_scheduling: bool, runs_on_v2: bool, release: Release
) -> int:
    """Concurrent batches x tokens a batch.

    `max_concurrent_batches`, config/vllm.py:512-534 (0.23.0 and later); before, of the executors
    (v1/executor).
    """
    batches = pp
    if async_scheduling:
        if runs_on_v2 and release.has("v2_adds_a_batch_in_flight"):
            batches = pp + 1
        elif pp <= 1:
            batches = 2
    return batches * tokens


# -- hybrid KV cache manager ---------------------------------------------------------------------------------


def hybrid_manager_disabled(
    args: EngineArgs, config: ModelConfig, speculation: Speculation, release: Release
) -> bool:
    """`VllmConfig.__post_init__`, config/vllm.py:1571-1637 (0.26.0). RefusedError where it was forced on
    in vain.
    """
    must = bool(args.other("kv_events_config")) and release.has("kv_events_disable_hybrid_manager")
    if config.get("attention_chunk_size") is not None:
        must = must or speculation.use_eagle(release)
        must = must or not switch(args, "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE", True)
    asked = args.disable_hybrid_kv_cache_manager
    if asked is None:
        return must or _connector_disables(args, release)
    if asked is False and must:
        raise refuse(
            "Hybrid KV cache manager was explicitly enabled but is not supported in this configuration. "
            "Consider omitting the --no-disable-hybrid-kv-cache-manager flag to let vLLM decide "
            "automatically."
        )
    return asked


def _connector_disables(args: EngineArgs, release: Release) -> bool:
    """A KV connector that cannot serve several groups turns the manager off."""
    transfer = args.other("kv_transfer_config")
    if not release.has("connectors_keep_hybrid_manager"):
        return bool(transfer)
    connector: Any = transfer.get("kv_connector") if isinstance(transfer, Mapping) else None
    if args.other("kv_offloading_size") is not None:
        native = args.other("kv_offloading_backend", "native") == "native"
        connector = "OffloadingConnector" if native else "LMCacheConnectorV1"
    if connector is None:
        return False
    names = [connector]
    if connector == "MultiConnector" and isinstance(transfer, Mapping):
        extra = transfer.get("kv_connector_extra_config") or {}
        names = [
            child.get("kv_connector") for child in extra.get("connectors", []) if isinstance(child, Mapping)
        ]
    known = _HMA
    known |= {"HiSparseConnector", "MoRIIOConnector"} if release.has("hma_hisparse_moriio") else set()
    known |= {"UMBPStoreConnector"} if release.has("hma_umbp") else set()
    return not set(names) <= known
