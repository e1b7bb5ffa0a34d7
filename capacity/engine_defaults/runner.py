"""Which of vLLM's two model runners runs the model: they profile, capture and allocate differently."""

from __future__ import annotations

from collections.abc import Callable

from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.facts import is_moe, pass_config, refuse, switch
from vllm_capacity.engine_defaults.speculation import Speculation
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"

_LISTED: tuple[tuple[str, frozenset[str]], ...] = (
    ("v2_list_moe", frozenset({"DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM"})),
    ("v2_list_inkling_longcat", frozenset({"InklingForCausalLM", "InklingForConditionalGeneration",
                                           "LongcatFlashNgramForCausalLM"})),
    ("v2_list_kimi_k3", frozenset({"KimiK3ForConditionalGeneration"})),
    ("v2_list_deepseek_v4", frozenset({"DeepseekV4ForCausalLM"})),
)  # fmt: skip
_LISTED_DENSE = frozenset({"Qwen3ForCausalLM"})
_LISTED_DENSE_SINCE_0_23 = _LISTED_DENSE | {"LlamaForCausalLM", "MistralForCausalLM"}
_ROCM_V1 = frozenset({"DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM"})


def resolve_runner(
    args: EngineArgs,
    config: ModelConfig,
    architecture: Architecture,
    device: Device,
    release: Release,
    *,
    pooling: bool,
    speculation: Speculation,
    mamba_cache_mode: str,
    compilation_mode: str | None,
    graphs: str | None,
) -> str:
    """'V1' or 'V2'. `VllmConfig.use_v2_model_runner`, config/vllm.py:549-622 (0.26.0).

    Order: VLLM_USE_V2_MODEL_RUNNER, what forces V2, the default list of the release, unsupported features.
    `graphs` is the cudagraph mode asked for. Raises RefusedError where a forced runner lacks a feature.
    """
    unsupported = _v2_unsupported(
        args, architecture, release, speculation=speculation, mamba_cache_mode=mamba_cache_mode,
        compilation_mode=compilation_mode, graphs=graphs, pooling=pooling,
    )  # fmt: skip
    forced = switch(args, _VARIABLE, None)
    if forced is None:
        runs_on_v2 = _default(args, config, architecture, device, release, pooling, speculation, unsupported)
    else:
        runs_on_v2 = forced
    if runs_on_v2:
        if unsupported and release.has("v2_validated"):
            names = ", ".join(unsupported)
            if release.has("v2_refusal_names_variable"):
                raise refuse(f"VLLM_USE_V2_MODEL_RUNNER does not yet support: {names}")
            raise refuse(f"Model Runner V2 does not yet support: {names}")
        return "V2"
    _check_v1(args, release, speculation)
    return "V1"


def _default(
    args: EngineArgs,
    config: ModelConfig,
    architecture: Architecture,
    device: Device,
    release: Release,
    pooling: bool,
    speculation: Speculation,
    unsupported: list[str],
) -> bool:
    if not release.has("v2_by_default"):
        return False
    if args.prefill_context_parallel_size > 1 and release.has("pcp_forces_v2"):
        return True
    if speculation.method == "dspark" and release.has("dspark_forces_v2"):
        return True
    if speculation.mixes_windows() and release.has("v2_list_inkling_longcat"):
        return True
    names = set(config.architectures)
    if release.has("v2_everything"):
        if device.vendor == "amd" and release.has("rocm_v1_list") and names & _ROCM_V1:
            return False
        return not unsupported
    if pooling:
        return False
    listed = {name for feature, group in _LISTED if release.has(feature) for name in group}
    if release.has("v2_dense_list_only"):
        dense = _LISTED_DENSE_SINCE_0_23 if release.has("v2_list_llama_mistral") else _LISTED_DENSE
        by_list = bool(names & dense) and not is_moe(config, architecture) and config.quantization is None
    elif not release.has("v2_dense"):
        by_list = bool(names & (listed | _LISTED_DENSE_SINCE_0_23))
    else:
        on_list = bool(names & listed)
        hybrid_counts = on_list and release.has("v2_list_kimi_k3")
        by_list = (
            (not architecture.is_hybrid or hybrid_counts)
            and architecture.has_attention
            and (on_list or not is_moe(config, architecture))
        )
    return by_list and not unsupported


def _v2_unsupported(
    args: EngineArgs,
    architecture: Architecture,
    release: Release,
    *,
    speculation: Speculation,
    mamba_cache_mode: str,
    compilation_mode: str | None,
    graphs: str | None,
    pooling: bool,
) -> list[str]:
    """Features that V2 does not support, in vLLM's words (config/vllm.py:2127-2214, 0.26.0)."""
    has: Callable[[str], bool] = release.has
    state_space, pp = architecture.has_state_space, args.pipeline_parallel_size
    pcp = args.prefill_context_parallel_size > 1
    sp = pass_config(args).get("enable_sp") and args.tensor_parallel_size > 1
    logprobs = args.other("logprobs_mode", "raw_logprobs")
    checks: tuple[tuple[str, object, str], ...] = (
        ("v2_refuses_inner_state", state_space, "hybrid/mamba models"),
        ("v2_refuses_mamba_align", state_space and mamba_cache_mode == "align",
         "hybrid/mamba models with align cache mode"),
        ("v2_refuses_pcp", pcp, "prefill context parallelism"),
        ("v2_refuses_pcp_without_mla", pcp and not architecture.use_mla, "prefill context parallelism"),
        ("v2_refuses_stock_compile", compilation_mode == "STOCK_TORCH_COMPILE", "stock torch.compile"),
        ("v2_refuses_sequence_parallelism", sp, "sequence parallelism"),
        ("v2_refuses_external_launcher_pp",
         args.other("distributed_executor_backend") == "external_launcher" and pp > 1,
         "pipeline parallelism with external_launcher"),
    )  # fmt: skip
    found = [label for feature, hit, label in checks if hit and has(feature)]
    found += _speculation_unsupported(speculation, pp, release)
    reasoning = args.other("reasoning_config") or args.other("reasoning_parser")
    checks = (
        ("v2_refuses_reasoning", reasoning, "reasoning budget enforcement"),
        ("v2_refuses_dbo", args.other("enable_dbo"), "dual batch overlap"),
        ("v2_refuses_elastic_ep", args.other("enable_elastic_ep"), "elastic expert parallelism"),
        ("v2_refuses_routed_experts", args.other("enable_return_routed_experts"), "routed experts capture"),
        ("v2_refuses_logits_processors", args.other("logits_processors"), "custom logits processors"),
        ("v2_refuses_prompt_embeds", args.other("enable_prompt_embeds"), "prompt embeds"),
        ("v2_refuses_logprobs_modes", not pooling and logprobs in ("raw_logits", "processed_logits"),
         f"logprobs mode '{logprobs}'"),
        ("v2_refuses_fast_prefill", args.other("kv_sharing_fast_prefill"), "KV sharing fast prefill"),
        ("v2_refuses_ec_transfer", args.other("ec_transfer_config"), "EC transfer"),
        ("v2_refuses_mamba_all", mamba_cache_mode == "all", "mamba cache mode 'all'"),
    )  # fmt: skip
    found += [label for feature, hit, label in checks if hit and has(feature)]
    if has("v2_limits_dbo") and (args.other("enable_dbo") or args.other("ubatch_size", 0) > 1):
        found += _dbo_unsupported(args, architecture, speculation, graphs)
    return found


def _speculation_unsupported(speculation: Speculation, pp: int, release: Release) -> list[str]:
    method, found = speculation.method, []
    if method is None:
        return []
    if release.has("v2_speculates_all_but_listed"):
        refused = {"suffix", "custom_class"}
        refused |= set() if release.has("v2_speculates_medusa") else {"medusa", "mlp_speculator"}
        refused |= set() if release.has("v2_speculates_ngram") else {"ngram", "ngram_gpu"}
        refused |= set() if release.has("v2_speculates_draft_model") else {"draft_model"}
        if method in refused:
            found.append(f"speculative method '{method}'")
    elif method in ("ngram", "ngram_gpu") and release.has("v2_by_default"):
        found.append("ngram/ngram_gpu speculative decoding")
    else:
        supported = {"eagle", "eagle3", "mtp"}
        supported |= {"dflash"} if release.has("v2_speculates_dflash") else set()
        supported |= {"dspark"} if release.has("v2_speculates_dspark") else set()
        supported |= {"extract_hidden_states"} if release.has("v2_speculates_hidden_states") else set()
        if method not in supported:
            found.append(f"speculative method '{method}'")
    if speculation.dynamic and release.has("v2_refuses_dynamic_speculation"):
        found.append("dynamic speculative decoding")
    if speculation.values.get("parallel_drafting") and release.has("v2_refuses_parallel_drafting"):
        if not release.has("v2_speculates_dflash"):
            found.append("parallel drafting for speculative decoding")
        elif method not in ("dflash", "dspark"):
            found.append("parallel drafting for EAGLE speculative decoding")
    if method == "eagle3" and pp > 1 and release.has("v2_refuses_eagle3_pp"):
        found.append("EAGLE3 with pipeline parallelism")
    if speculation.values.get("use_heterogeneous_vocab") and release.has("v2_refuses_heterogeneous_vocab"):
        found.append("heterogeneous-vocabulary draft models")
    return found


def _dbo_unsupported(
    args: EngineArgs, architecture: Architecture, speculation: Speculation, graphs: str | None
) -> list[str]:
    """`_get_dbo_unsupported_features`, config/vllm.py (0.30.0 to 0.33.0)."""
    if switch(args, _VARIABLE, None) is None:
        return ["dual batch overlap"]
    context = args.decode_context_parallel_size > 1 or args.prefill_context_parallel_size > 1
    checks = (
        (args.other("enable_lora"), "LoRA"),
        (speculation.method is not None, "speculative decoding"),
        (args.pipeline_parallel_size > 1, "pipeline parallelism"),
        (context, "context parallelism"),
        (architecture.is_multimodal or architecture.is_encoder_decoder, "multimodal models"),
        (architecture.is_hybrid, "hybrid models"),
        (graphs == "PIECEWISE", "PIECEWISE CUDA graphs"),
    )
    return [f"dual batch overlap with {what}" for hit, what in checks if hit]


def _check_v1(args: EngineArgs, release: Release, speculation: Speculation) -> None:
    """`_validate_v1_model_runner`, config/vllm.py (0.29.0 to 0.33.0), and the pcp check of 0.27 and 0.28."""
    pcp = args.prefill_context_parallel_size > 1
    if pcp and release.has("pcp_forces_v2"):
        raise refuse(
            "Prefill context parallelism requires Model Runner V2. Remove VLLM_USE_V2_MODEL_RUNNER=0."
        )
    if not release.has("v1_refusals"):
        return
    async_pp = (
        args.pipeline_parallel_size > 1 and args.async_scheduling and release.has("v1_refuses_async_pp")
    )
    checks = (
        (pcp, "prefill context parallel"),
        (async_pp, "pipeline parallelism with async scheduling"),
        (speculation.method == "dspark", "dspark speculative decoding"),
        (speculation.values.get("enable_adaptive_verification"), "adaptive draft verification"),
        (speculation.mixes_windows(), "mixed sliding/full dflash drafts"),
        (args.other("enable_batch_sharded_sampling"), "batch-sharded sampling"),
    )
    found = [label for hit, label in checks if hit]
    if found:
        raise refuse(f"Model Runner V1 does not support: {', '.join(found)}")
