"""A dry-run in the JSON shape of `plan`, with one more key, `dry_run`, for what a plan has no place for."""

from __future__ import annotations

from typing import Any

from vllm_capacity._version import __version__
from vllm_capacity.answer import Status
from vllm_capacity.budget import Account, account_of, device_bytes
from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Lifetime
from vllm_capacity.report.json_report import SCHEMA_VERSION
from vllm_capacity.validate.dry_run import exactness
from vllm_capacity.validate.dry_run.run import DryRun, RankRun
from vllm_capacity.validate.dry_run.terms import is_unseen

REFUSED_FOR = (
    ("No available memory for the cache blocks", Reason.NO_KV_MEMORY),
    ("is larger than the available KV cache memory", Reason.ONE_REQUEST_DOES_NOT_FIT),
    ("KV cache is needed, which is larger", Reason.ONE_REQUEST_DOES_NOT_FIT),
)
"""Parts of vLLM's sentences (v1/core/kv_cache_utils.py: _check_enough_kv_cache_memory) and what they mean."""


def to_dict(run: DryRun) -> dict[str, Any]:
    """All of a dry-run; bytes are integers."""
    first = run.ranks[0].built if run.ranks else None
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "vllm_version": run.release.version,
        "vllm_version_source": "installed in --python",
        "model": {
            "id": run.config.name,
            "architecture": run.config.architectures[0] if run.config.architectures else "",
            "parameters": run.plan.parameters if run.plan else None,
            "source": run.config.source,
        },
        "gpu": {
            "name": run.device.name,
            "cuda_total_bytes": run.device.cuda_total_bytes,
            "nvml_total_bytes": run.device.nvml_total_bytes,
            "free_bytes": min((rank.budget.free_bytes for rank in run.ranks), default=None),
            "compute_capability": ".".join(map(str, run.device.compute_capability)),
        },
        "engine": _engine(run, first) if first else {"tensor_parallel_size": run.parallel.tp},
        "ranks": [_rank(run, rank) for rank in run.ranks],
        "kv_cache": _kv_cache(run, first) if first else None,
        "verdict": {
            "status": (
                Status.DOES_NOT_START if run.refusal else Status.STARTS if run.kv_cache else Status.TOO_CLOSE
            ).value,
            "reason": _reason(run.refusal),
            "message": run.refusal
            or ("" if run.kv_cache else "not every pipeline stage was run: --ranks ends does"),
            "max_model_len_that_fits": None,
            "min_gpu_memory_utilization": None,
            "max_gpu_memory_utilization": None,
            "suggestions": [],
            "concurrency": None,
        },
        "host": None,
        "calibration": None,
        "warnings": list(run.warnings),
        "dry_run": {
            "versions": dict(run.versions),
            "not_exact": not_exact(run),
            "unseen_terms": sorted({t.name for rank in run.ranks for t in rank.terms if is_unseen(t)}),
            "plan_error": run.plan_error,
            "ranks": [_details(rank) for rank in run.ranks],
        },
    }


def not_exact(run: DryRun) -> dict[str, list[str]]:
    """Term -> why it is not exact; an absent term is exact up to what `unseen_terms` says."""
    found: dict[str, list[str]] = {}
    for rank in run.ranks:
        parts = {
            "weights": exactness.weights_reasons(rank.built),
            "load_peak": exactness.load_peak_reasons(rank.built),
            "activation": exactness.activation_reasons(rank.built)
            if "profile_exactness" in rank.built
            else (),
        }
        for name, why in parts.items():
            if why:
                found.setdefault(name, []).extend(
                    reason for reason in why if reason not in found.get(name, [])
                )
    if not run.args.enforce_eager and run.ranks:
        found.setdefault("activation", []).append(
            "the run is compiled: eager peak plus the analytical plan's difference"
        )
    return found


def _reason(refusal: str) -> str | None:
    if not refusal:
        return None
    return next(
        (reason.value for part, reason in REFUSED_FOR if part in refusal), Reason.INVALID_LAYOUT.value
    )


def _engine(run: DryRun, first: Any) -> dict[str, Any]:
    parallel = run.parallel
    return {
        **{key: value for key, value in first["resolved"].items() if key != "runner"},
        "model_runner": first["resolved"]["runner"],
        "usage": run.args.usage,
        "tensor_parallel_size": parallel.tp,
        "pipeline_parallel_size": parallel.pp,
        "data_parallel_size": parallel.dp,
        "decode_context_parallel_size": parallel.dcp,
        "prefill_context_parallel_size": parallel.pcp,
        "enable_expert_parallel": parallel.expert_parallel,
        "attention_backends": first["backends"],
        "environment": dict(run.args.environment),
    }


def _rank(run: DryRun, rank: RankRun) -> dict[str, Any]:
    budget, parallel = rank.budget, run.parallel
    per_stage = parallel.tp * parallel.pcp
    kv_bytes = run.kv_cache["bytes"][run.ranks.index(rank)] if run.kv_cache else 0
    return {
        "rank": rank.rank,
        "tp_rank": rank.rank % per_stage,
        "pp_rank": rank.stage,
        "dp_rank": rank.rank // parallel.world_size,
        "requested_bytes": budget.requested_bytes,
        "weights_bytes": budget.totals[Account.WEIGHTS],
        "activation_peak_bytes": budget.totals[Account.ACTIVATION],
        "activation_peak_warm_bytes": budget.totals[Account.ACTIVATION],
        "non_torch_bytes": budget.totals[Account.NON_TORCH],
        "runner_buffers_bytes": budget.totals[Account.RUNNER_BUFFERS],
        "graph_estimate_bytes": budget.graph_estimate_bytes,
        "graph_applied_bytes": budget.graph_applied_bytes,
        "graph_actual_bytes": budget.totals[Account.CUDA_GRAPHS],
        "available_kv_bytes": budget.available_kv_bytes,
        "available_kv_low_bytes": budget.available_kv_low_bytes,
        "available_kv_high_bytes": budget.available_kv_high_bytes,
        "num_blocks_own": run.kv_cache["num_blocks"] if run.kv_cache else 0,
        "device_used_bytes": device_bytes(rank.terms, (life for life in Lifetime if life not in _PASSING)) + kv_bytes,
        "terms": [
            {
                "name": t.name, "component": t.component.value, "allocator": t.allocator.value, "lifetime": t.lifetime.value,
                "account": account_of(t, run.release).value, "bytes": t.n_bytes, "low_bytes": t.low, "high_bytes": t.high,
                "formula": t.formula, "values": dict(t.values), "source": t.source, "note": t.note,
            }
            for t in rank.terms
        ],
    }  # fmt: skip


_PASSING = (Lifetime.PROFILE_TRANSIENT, Lifetime.RUNTIME)


def _kv_cache(run: DryRun, first: Any) -> dict[str, Any] | None:
    kv = run.kv_cache
    if kv is None:
        return None
    block = first["resolved"]["block_size"] or 0
    return {
        "num_blocks": kv["num_blocks"],
        "block_size": block,
        "size_tokens": kv["tokens"],
        "second_start_num_blocks": kv["num_blocks"],
        "second_start_size_tokens": kv["tokens"],
        "pool_tokens": kv["num_blocks"] * block,
        "max_concurrency": kv["max_concurrency"],
        "marginal_bytes_per_token": run.plan.kv_cache.marginal_bytes_per_token if run.plan else 0,
        "fixed_bytes_per_sequence": run.plan.kv_cache.fixed_bytes_per_sequence if run.plan else 0,
        "groups": [
            {key: g[key] for key in ("layers", "spec", "page_size_bytes", "block_size")} for g in kv["groups"]
        ],
    }


def _details(rank: RankRun) -> dict[str, Any]:
    built = rank.built
    return {
        "rank": rank.rank,
        "parameters_on_rank": built["parameters"],
        "load_peak_bytes": built["load_peak_bytes"],
        "groups": built["groups"],
        "kv_layers": built["kv_layers"],
        "profile": built.get("profile"),
        "load_exactness": built["load_exactness"],
        "profile_exactness": built.get("profile_exactness"),
        "seconds": built["seconds"],
        "max_rss_bytes": built["max_rss_bytes"],
    }
