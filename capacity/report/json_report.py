"""A plan as plain data: what `--json` prints and the library's `to_dict` gives. Its schema: `report/schema.py`.

Plain dictionaries, because a plan must print without building a single pydantic class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm_capacity._version import __version__
from vllm_capacity.answer import Plan, RankPlan, RefusedPlan, Verdict
from vllm_capacity.budget import Account
from vllm_capacity.inputs.environment import planned

if TYPE_CHECKING:
    from vllm_capacity.device import Device

SCHEMA_VERSION = 1


def plans_to_dict(plans: Sequence[Plan | RefusedPlan]) -> dict[str, Any]:
    """One plan as itself, several as `plans[]`."""
    if len(plans) == 1:
        return plan_to_dict(plans[0])
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "plans": [plan_to_dict(plan) for plan in plans],
    }


def plan_to_dict(plan: Plan | RefusedPlan) -> dict[str, Any]:
    """All of a plan; bytes are integers."""
    head: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "vllm_version": plan.release.version,
        "vllm_version_source": plan.release_source,
    }
    if isinstance(plan, RefusedPlan):
        return head | {
            "model": {
                "id": plan.config.name,
                "architecture": plan.config.architectures[0] if plan.config.architectures else "",
                "parameters": None,
                "source": plan.config.source,
            },
            "gpu": _gpu(plan, None),
            "engine": {"tensor_parallel_size": plan.tp},
            "ranks": [],
            "kv_cache": None,
            "verdict": _verdict(plan.verdict),
            "host": None,
            "calibration": None,
            "warnings": [],
        }
    return head | {
        "model": {
            "id": plan.config.name,
            "architecture": plan.architecture.name,
            "parameters": plan.parameters,
            "source": plan.config.source,
        },
        "gpu": _gpu(plan, min(rank.budget.free_bytes for rank in plan.ranks)),
        "engine": _engine(plan),
        "ranks": _ranks(plan),
        "kv_cache": _kv_cache(plan),
        "verdict": _verdict(plan.verdict),
        "host": {
            "pinned_bytes": plan.host.pinned_bytes,
            "shared_memory_bytes": plan.host.shared_memory_bytes,
            "checkpoint_bytes": plan.host.checkpoint_bytes,
            "checkpoint_bytes_source": plan.host.checkpoint_bytes_source,
        },
        "calibration": {
            "source": plan.coverage.source,
            "recorded_runs": plan.coverage.recorded_runs,
            "outside_measured": list(plan.coverage.outside_measured),
        },
        "warnings": list(plan.warnings),
    }


def device_to_dict(device: Device) -> dict[str, Any]:
    """A GPU of the catalogue, as `gpus --json` prints it."""
    from dataclasses import asdict

    return {**asdict(device), "compute_capability": _capability(device)}


def _capability(device: Device) -> str:
    return f"{device.compute_capability[0]}.{device.compute_capability[1]}"


def _gpu(plan: Plan | RefusedPlan, free_bytes: int | None) -> dict[str, Any]:
    device = plan.device
    return {
        "name": device.name,
        "cuda_total_bytes": device.cuda_total_bytes,
        "nvml_total_bytes": device.nvml_total_bytes,
        "free_bytes": free_bytes,
        "compute_capability": _capability(device),
    }


def _engine(plan: Plan) -> dict[str, Any]:
    engine, parallel = plan.engine, plan.engine.parallel
    return {
        "model_runner": engine.model_runner,
        "usage": engine.usage,
        "tensor_parallel_size": parallel.tp,
        "pipeline_parallel_size": parallel.pp,
        "data_parallel_size": parallel.dp,
        "decode_context_parallel_size": parallel.dcp,
        "prefill_context_parallel_size": parallel.pcp,
        "enable_expert_parallel": parallel.expert_parallel,
        "dtype": engine.dtype,
        "quantization": engine.quantization,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "max_model_len": plan.kv_cache.max_model_len,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "kv_cache_memory_bytes": engine.kv_cache_memory_bytes,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "block_size": plan.kv_cache.block_size,
        "enforce_eager": engine.enforce_eager,
        "cudagraph_mode": engine.cudagraph_mode,
        "cudagraph_capture_sizes": list(engine.cudagraph_capture_sizes),
        "attention_backends": list(engine.attention_backends),
        "async_scheduling": engine.async_scheduling,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "enable_chunked_prefill": engine.enable_chunked_prefill,
        "hybrid_kv_cache_manager_disabled": engine.hybrid_kv_cache_manager_disabled,
        "num_gpu_blocks_override": engine.num_gpu_blocks_override,
        "mamba_cache_mode": engine.mamba_cache_mode,
        "num_speculative_tokens": engine.num_speculative_tokens,
        "environment": planned(engine.environment, plan.release),
    }


def _ranks(plan: Plan) -> list[dict[str, Any]]:
    parallel = plan.engine.parallel
    rows = []
    for rank_plan in plan.ranks:
        shared = _rank(rank_plan)
        for tp_rank, pp_rank, dp_rank in rank_plan.ranks:
            rows.append(
                {
                    "rank": (dp_rank * parallel.pp + pp_rank) * parallel.tp * parallel.pcp + tp_rank,
                    "tp_rank": tp_rank,
                    "pp_rank": pp_rank,
                    "dp_rank": dp_rank,
                    **shared,
                }
            )
    return sorted(rows, key=lambda row: row["rank"])


def _rank(rank: RankPlan) -> dict[str, Any]:
    budget = rank.budget
    return {
        "requested_bytes": budget.requested_bytes,
        "weights_bytes": budget.totals[Account.WEIGHTS],
        "activation_peak_bytes": budget.totals[Account.ACTIVATION],
        "activation_peak_warm_bytes": rank.activation_peak_warm_bytes,
        "non_torch_bytes": budget.totals[Account.NON_TORCH],
        "runner_buffers_bytes": budget.totals[Account.RUNNER_BUFFERS],
        "graph_estimate_bytes": budget.graph_estimate_bytes,
        "graph_applied_bytes": budget.graph_applied_bytes,
        "graph_actual_bytes": rank.graph_actual_bytes,
        "available_kv_bytes": budget.available_kv_bytes,
        "available_kv_low_bytes": budget.available_kv_low_bytes,
        "available_kv_high_bytes": budget.available_kv_high_bytes,
        "num_blocks_own": rank.num_blocks_own,
        "device_used_bytes": rank.device_used_bytes,
        "terms": [
            {
                "name": t.name,
                "component": t.component.value,
                "allocator": t.allocator.value,
                "lifetime": t.lifetime.value,
                "account": account.value,
                "bytes": t.n_bytes,
                "low_bytes": t.low,
                "high_bytes": t.high,
                "formula": t.formula,
                "values": dict(t.values),
                "source": t.source,
                "note": t.note,
            }
            for t, account in zip(rank.terms, rank.accounts, strict=True)
        ],
    }


def _kv_cache(plan: Plan) -> dict[str, Any]:
    kv, warm = plan.kv_cache, plan.kv_cache_warm or plan.kv_cache
    return {
        "num_blocks": kv.num_blocks,
        "block_size": kv.block_size,
        "size_tokens": kv.size_tokens,
        "pool_tokens": kv.pool_tokens,
        "max_concurrency": kv.max_concurrency,
        "second_start_num_blocks": warm.num_blocks,
        "second_start_size_tokens": warm.size_tokens,
        "marginal_bytes_per_token": kv.marginal_bytes_per_token,
        "fixed_bytes_per_sequence": kv.fixed_bytes_per_sequence,
        "groups": [
            {
                "layers": len(group.layers),
                "spec": type(group.spec).__name__,
                "page_size_bytes": group.spec.page_size_bytes,
                "block_size": group.spec.block_size,
            }
            for group in kv.groups
        ],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": verdict.status.value,
        "reason": verdict.reason.value if verdict.reason else None,
        "message": verdict.message,
        "max_model_len_that_fits": verdict.max_model_len_that_fits,
        "min_gpu_memory_utilization": verdict.min_gpu_memory_utilization,
        "max_gpu_memory_utilization": verdict.max_gpu_memory_utilization,
        "suggestions": [
            {
                "change": s.change,
                "flags": list(s.flags),
                "effect": {
                    "starts": s.effect.starts,
                    "available_kv_bytes_delta": s.effect.available_kv_bytes_delta,
                    "kv_cache_size_tokens_delta": s.effect.kv_cache_size_tokens_delta,
                },
            }
            for s in verdict.suggestions
        ],
        "concurrency": None
        if verdict.concurrency is None
        else {
            "asked": verdict.concurrency.asked,
            "fits": verdict.concurrency.fits,
            "min_gpu_memory_utilization": verdict.concurrency.min_gpu_memory_utilization,
        },
    }
