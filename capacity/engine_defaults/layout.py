"""Parallel sizes: what vLLM's configuration refuses before it builds a model."""

from __future__ import annotations

from vllm_capacity.architecture.modules import Architecture, Attention
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.facts import is_moe, refuse
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.releases.release import Release

_SIZES = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
    "prefill_context_parallel_size",
)  # fmt: skip


def resolve_parallel(args: EngineArgs) -> ParallelConfig:
    """The layout as asked for. InputError for sizes below 1 and a malformed VLLM_PP_LAYER_PARTITION."""
    for name in _SIZES:
        if getattr(args, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    partition = args.environment.get("VLLM_PP_LAYER_PARTITION")
    sizes = None
    if partition is not None:
        try:
            sizes = tuple(int(part) for part in partition.split(","))
        except ValueError:
            raise InputError(f"Invalid partition string: {partition} (VLLM_PP_LAYER_PARTITION)") from None
    return ParallelConfig(
        tp=args.tensor_parallel_size, pp=args.pipeline_parallel_size, dp=args.data_parallel_size,
        expert_parallel=args.enable_expert_parallel, dcp=args.decode_context_parallel_size,
        pcp=args.prefill_context_parallel_size, layer_partition=sizes,
    )  # fmt: skip


def check_parallel(
    args: EngineArgs,
    parallel: ParallelConfig,
    config: ModelConfig,
    architecture: Architecture,
    device: Device,
    release: Release,
) -> None:
    """Raises RefusedError(INVALID_LAYOUT) in vLLM's words and order.

    `ParallelConfig._validate_parallel_config`, config/parallel.py:440-525, then
    `ModelConfig.verify_with_parallel_config`, config/model.py:1212-1283 (0.26.0; the releases' differences
    are the features asked for).
    """
    _check_eplb(args, parallel, release)
    _check_context_parallel(args, parallel, device, release)
    heads = config.text.get("num_attention_heads")
    if isinstance(heads, int) and heads % parallel.tp != 0:
        raise _layout(
            f"Total number of attention heads ({heads}) must be divisible by tensor parallel size "
            f"({parallel.tp})."
        )
    if parallel.expert_parallel and not is_moe(config, architecture):
        raise _layout(
            "Number of experts in the model must be greater than 0 when expert parallelism is enabled."
        )
    if parallel.dcp > 1 and not architecture.has_attention:
        raise _layout("ZeroDivisionError: integer division or modulo by zero (the model has no KV heads)")
    if parallel.dcp > 1 and not architecture.use_mla and isinstance(heads, int):
        _check_dcp_heads(parallel, heads, _kv_heads(config, architecture), release)


def _kv_heads(config: ModelConfig, architecture: Architecture) -> int:
    """`get_total_num_kv_heads`, transformers_utils/model_arch_config_convertor.py: families name them in their own ways."""
    mixers = (m for g in architecture.layers for m in g.mixers if isinstance(m, Attention))
    return next((mixer.num_kv_heads for mixer in mixers), config.num_key_value_heads)


def _check_eplb(args: EngineArgs, parallel: ParallelConfig, release: Release) -> None:
    tp, pcp, dp = parallel.tp, parallel.pcp, parallel.dp
    if args.other("enable_eplb"):
        if not parallel.expert_parallel:
            raise _layout("enable_expert_parallel must be True to use EPLB.")
        if release.has("pcp_layouts"):
            if tp * pcp * dp <= 1:
                raise _layout(
                    f"EPLB requires tensor, prefill-context, or data parallelism, but got TP={tp}, "
                    f"PCP={pcp}, DP={dp}."
                )
        elif tp * dp <= 1:
            raise _layout(
                "EPLB requires tensor_parallel_size or data_parallel_size to be greater than 1, but got "
                f"TP={tp},DP={dp}."
            )
        return
    redundant = (args.other("eplb_config") or {}).get("num_redundant_experts", 0)
    if redundant != 0:
        raise _layout(
            f"num_redundant_experts is set to {redundant} but EPLB is not enabled. Either enable EPLB or "
            "unset num_redundant_experts."
        )


def check_micro_batches(args: EngineArgs, device: Device, release: Release) -> None:
    """`VllmConfig.__post_init__`, config/vllm.py: which kernels dual batch overlap works with.

    Asked after the runner is settled. Raises RefusedError(INVALID_LAYOUT).
    """
    if not args.other("enable_dbo") and int(args.other("ubatch_size", 0)) <= 1:
        return
    names = ["deepep_low_latency", "deepep_high_throughput"]
    names += ["nixl_ep"] if release.has("dbo_nixl_ep") else []
    names += ["allgather_reducescatter"] if device.vendor == "amd" and release.has("dbo_by_platform") else []
    backend = args.other("all2all_backend") or "allgather_reducescatter"
    if backend not in names:
        listed = f"{', '.join(names[:-1])}{',' if len(names) > 2 else ''} and {names[-1]}"
        raise _layout(
            f"Microbatching currently only supports the {listed} all2all backends. {backend} is not supported."
        )


def _check_context_parallel(
    args: EngineArgs, parallel: ParallelConfig, device: Device, release: Release
) -> None:
    tp, pcp, dcp = parallel.tp, parallel.pcp, parallel.dcp
    if not release.has("pcp_layouts"):
        if tp % dcp != 0:
            raise _layout(f"tp_size={tp} must be divisible bydcp_size={dcp}.")
    else:
        if pcp > 1 and parallel.dp > 1:
            if release.has("pcp_refuses_dp"):
                raise _layout("PCP does not support data parallelism yet.")
            if release.has("pcp_refuses_dp_on_cuda") and device.vendor == "nvidia":
                raise _layout("PCP does not support data parallelism on CUDA yet.")
        if pcp == 1 and tp % dcp != 0:
            raise _layout(f"tp_size={tp} must be divisible by dcp_size={dcp}.")
        if pcp > 1 and dcp not in (1, pcp, tp * pcp):
            raise _layout(
                "When PCP is enabled, DCP must be disabled, span the PCP axis, or span the full TP x PCP "
                f"axis. Got TP={tp}, PCP={pcp}, DCP={dcp}; valid DCP sizes are {sorted({1, pcp, tp * pcp})}."
            )
    if args.other("dcp_comm_backend") == "a2a" and dcp <= 1 and release.has("a2a_needs_dcp"):
        raise _layout("dcp_comm_backend='a2a' requires decode_context_parallel_size > 1.")


def _check_dcp_heads(parallel: ParallelConfig, heads: int, kv_heads: int, release: Release) -> None:
    """Grouped-query attention shards KV tokens over the ranks that would hold copies of one KV head."""
    tp, dcp = parallel.tp, parallel.dcp
    worded = release.has("dcp_value_errors")
    if tp <= kv_heads:
        raise _layout(
            f"Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({tp}) to be greater "
            f"than the model's total number of KV heads ({kv_heads}). Increase `--tensor-parallel-size` or "
            "set `--decode-context-parallel-size 1`."
            if worded
            else f"tensor parallel size {tp} must be greater than total num kv heads {kv_heads} when enable "
            "decode context parallel for GQA/MQA"
        )
    most = tp // kv_heads
    if dcp > most:
        raise _layout(
            f"`--decode-context-parallel-size` ({dcp}) exceeds the maximum supported value ({most}) for "
            f"`--tensor-parallel-size` ({tp}) and {kv_heads} model KV heads."
            if worded
            else f"decode context parallel size must less than or equal to (tensor parallel size {tp} // "
            f"total num kv heads {kv_heads}) = {most}, but got {dcp}"
        )
    queries = heads // kv_heads
    if queries % dcp != 0:
        raise _layout(
            f"The model's number of query heads per KV head ({queries}) must be divisible by "
            f"`--decode-context-parallel-size` ({dcp}) for GQA/MQA."
            if worded
            else f"Total number of q per kv attn heads ({queries}) must be divisible by dcp world size when "
            f"enable decode context parallel for GQA ({dcp})."
        )


def uses_batched_dp_moe(args: EngineArgs, parallel: ParallelConfig, release: Release) -> bool:
    """`ParallelConfig.use_batched_dp_moe`, config/parallel.py:671-680 (0.26.0)."""
    return (
        release.has("batched_dp_tokens_256")
        and args.other("all2all_backend") in ("deepep_low_latency", "nixl_ep")
        and parallel.expert_parallel
        and parallel.dp > 1
    )


def _layout(message: str) -> RefusedError:
    return refuse(message, Reason.INVALID_LAYOUT)
