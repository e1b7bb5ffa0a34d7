"""The plan beside what vLLM printed."""

from __future__ import annotations

from vllm_capacity.budget import Account
from vllm_capacity.diagnosis.causes import PredictedRow
from vllm_capacity.diagnosis.margins import request_bytes
from vllm_capacity.diagnosis.rebuild import Rebuilt
from vllm_capacity.logs.record import StartRecord
from vllm_capacity.units import GIB
from vllm_capacity.vocabulary import QUANTITIES

LOGGED_AS = {
    "free_bytes": "Free memory on device",
    "requested_bytes": "Desired GPU memory utilization",
    "weights_bytes": "Model loading took",
    "activation_peak_bytes": "peak activation",
    "non_torch_bytes": "non-torch memory",
    "consumed_bytes": "consumed memory",
    "graph_estimate_bytes": "Estimated CUDA graph memory",
    "graph_actual_bytes": "CUDA graph pool memory",
    "available_kv_bytes": "Available KV cache memory",
    "request_bytes": "KV cache is needed",
    "kv_cache_size_tokens": "GPU KV cache size",
    "max_concurrency": "Maximum concurrency",
}
"""Key -> vLLM's words in the log, in the order of its start."""


def predicted_rows(start: StartRecord, rebuilt: Rebuilt) -> tuple[PredictedRow, ...]:
    """Every figure that both have; per GPU, of the rank that decides. The log's GiB become bytes."""
    plan = rebuilt.plan
    budget, totals = plan.tightest.budget, plan.tightest.budget.totals
    predicted: dict[str, int | float] = {
        "free_bytes": budget.free_bytes,
        "requested_bytes": budget.requested_bytes,
        "weights_bytes": totals[Account.WEIGHTS],
        "activation_peak_bytes": totals[Account.ACTIVATION],
        "non_torch_bytes": totals[Account.NON_TORCH],
        "consumed_bytes": totals[Account.WEIGHTS]
        + totals[Account.NON_TORCH]
        + totals[Account.RUNNER_BUFFERS],
        "graph_estimate_bytes": budget.graph_estimate_bytes,
        "graph_actual_bytes": plan.tightest.graph_actual_bytes,
        "available_kv_bytes": budget.available_kv_bytes,
        "request_bytes": request_bytes(plan),
        "kv_cache_size_tokens": plan.kv_cache.size_tokens,
        "max_concurrency": plan.kv_cache.max_concurrency,
    }
    logged = _logged(start)
    return tuple(
        PredictedRow(name, words, predicted[name], value, QUANTITIES[name].unit)
        for name, words in LOGGED_AS.items()
        if (value := logged[name]) is not None
    )


def _logged(start: StartRecord) -> dict[str, int | float | None]:
    needed = next((float(f.values["request_gib"]) for f in start.failures if "request_gib" in f.values), None)
    return {
        "free_bytes": _bytes(start.smallest("free_gib")),
        "requested_bytes": _bytes(start.smallest("requested_gib")),
        "weights_bytes": _bytes(_first(start, "weights_gib", "profiled_weights_gib")),
        "activation_peak_bytes": _bytes(start.largest("activation_peak_gib")),
        "non_torch_bytes": _bytes(start.largest("non_torch_gib")),
        "consumed_bytes": _bytes(start.largest("consumed_gib")),
        "graph_estimate_bytes": _bytes(start.largest("graph_estimate_gib")),
        "graph_actual_bytes": _bytes(_first(start, "graph_actual_gib", "graph_capture_gib")),
        "available_kv_bytes": _bytes(start.smallest("available_kv_gib")),
        "request_bytes": _bytes(needed),
        "kv_cache_size_tokens": start.count("kv_cache_size_tokens"),
        "max_concurrency": start.smallest("max_concurrency"),
    }


def _first(start: StartRecord, *names: str) -> float | None:
    return next((value for name in names if (value := start.largest(name)) is not None), None)


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else round(gib * GIB)
