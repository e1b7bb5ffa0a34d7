"""The answer of `size` as plain data: JSON and CSV. Nothing here computes."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vllm_capacity import reproduce
from vllm_capacity._version import __version__

if TYPE_CHECKING:
    from vllm_capacity.sizing.ask import Report
    from vllm_capacity.sizing.row import Row

SCHEMA_VERSION = 1


def answer_to_dict(report: Report) -> dict[str, Any]:
    """Everything `size` found; bytes are integers, lengths are in tokens."""
    question, demand = report.question, report.question.demand
    prices = question.prices
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "vllm_version": question.release.version,
        "vllm_version_source": question.release_source,
        "models": [config.name for config in question.models],
        "demand": {
            "sequences": demand.sequences,
            "mean_tokens": demand.mean_tokens,
            "p95_tokens": demand.p95_tokens,
            "longest_tokens": demand.longest_tokens,
            "shared_tokens": demand.shared_tokens,
            "how": list(demand.how),
        },
        "sort": question.sort.value,
        "currency": prices.currency if prices else None,
        "price_unit": prices.unit if prices else None,
        "rows": [row_to_dict(report, row) for row in report.rows],
        "left_out": [{"gpu": gpu, "reason": reason} for gpu, reason in report.left_out],
        "sensitivities": [
            {**asdict(item), "assumption": item.assumption.value, "beyond": list(item.beyond)}
            for item in report.sensitivities
        ],
        "plans_made": report.plans_made,
        "warnings": list(report.warnings),
    }


def row_to_dict(report: Report, row: Row) -> dict[str, Any]:
    """One row, flat, so that CSV has the same columns."""
    cache = row.plan.kv_cache
    return {
        "gpu": row.device.name,
        "vendor": row.device.vendor,
        "status": row.status.value,
        "message": row.plan.verdict.message,
        "model": row.model,
        "quantised_variant": row.quantised_variant,
        "kv_cache_dtype": row.args.kv_cache_dtype,
        "tensor_parallel_size": row.layout.tp,
        "pipeline_parallel_size": row.layout.pp,
        "data_parallel_size": row.layout.dp,
        "enable_expert_parallel": row.layout.expert_parallel,
        "gpu_memory_utilization": row.plan.engine.gpu_memory_utilization,
        "max_num_seqs": row.plan.engine.max_num_seqs,
        "gpus_per_replica": row.layout.gpus,
        "replicas": row.purchase.replicas,
        "gpus_used": row.purchase.gpus_used,
        "gpus_bought": row.purchase.gpus_bought,
        "nodes": row.purchase.nodes,
        "gpus_per_node": row.node.gpus,
        "kv_cache_size_tokens": cache.size_tokens,
        "max_concurrency": cache.max_concurrency,
        "engine_sequences": row.capacity.sequences,
        "total_kv_cache_size_tokens": row.total_kv_cache_size_tokens,
        "sequences": row.sequences,
        "headroom": row.headroom,
        "binding": row.binding.value,
        "engine_limit": row.capacity.limit.value,
        "margin_bytes_per_gpu": row.margin.n_bytes,
        "margin_basis": row.margin.basis,
        "available_kv_bytes": row.plan.tightest.budget.available_kv_bytes,
        "cost": row.cost,
        "power_watts": row.power_watts,
        "decode_tokens_per_second_ceiling": row.decode_ceiling,
        "command": serve_line(report, row),
    }


def serve_line(report: Report, row: Row) -> str:
    """The `vllm serve` line of one replica."""
    return reproduce.serve_line(row.model, row.args, report.question.release)


def answer_to_csv(report: Report) -> str:
    """A header and one line per row."""
    rows = [row_to_dict(report, row) for row in report.rows]
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
