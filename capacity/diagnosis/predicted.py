"""The plan beside what vLLM printed."""

from __future__ import annotations

from vllm_capacity.budget import Account
from vllm_capacity.diagnosis.causes import PredictedRow
from vllm_capacity.diagnosis.margins import request_bytes
from vllm_capacity.diagnosis.rebuild import Rebuilt
from vllm_capacity.logs.record import StartRecord
from vllm_capacity.units import GIB


def predicted_rows(start: StartRecord, rebuilt: Rebuilt) -> tuple[PredictedRow, ...]:
    """Every figure that both have; per GPU, of the rank that decides."""
    plan = rebuilt.plan
    budget = plan.tightest.budget
    totals = budget.totals
    weights = start.largest("model_loading_gib")
    if weights is None:
        weights = start.largest("weights_gib")
    graphs = start.largest("graph_actual_gib")
    if graphs is None:
        graphs = start.largest("graph_capture_gib")
    needed = next((float(f.values["needed_gib"]) for f in start.failures if "needed_gib" in f.values), None)
    consumed = totals[Account.WEIGHTS] + totals[Account.NON_TORCH] + totals[Account.RUNNER_BUFFERS]
    rows: list[tuple[str, str, float, float | None, str]] = [
        (
            "free at the start",
            "Free memory on device",
            budget.free_bytes / GIB,
            start.smallest("free_at_start_gib"),
            "GiB",
        ),
        (
            "requested",
            "Desired GPU memory utilization",
            budget.requested_bytes / GIB,
            start.smallest("requested_gib"),
            "GiB",
        ),
        ("weights", "Model loading took", totals[Account.WEIGHTS] / GIB, weights, "GiB"),
        (
            "activation peak",
            "peak activation",
            totals[Account.ACTIVATION] / GIB,
            start.largest("activation_peak_gib"),
            "GiB",
        ),
        (
            "non-torch",
            "non-torch memory",
            totals[Account.NON_TORCH] / GIB,
            start.largest("non_torch_gib"),
            "GiB",
        ),
        ("consumed", "consumed memory", consumed / GIB, start.largest("consumed_gib"), "GiB"),
        (
            "graph estimate",
            "Estimated CUDA graph memory",
            budget.graph_estimate_bytes / GIB,
            start.largest("graph_estimate_gib"),
            "GiB",
        ),
        ("graphs", "CUDA graph pool memory", plan.tightest.graph_actual_bytes / GIB, graphs, "GiB"),
        (
            "available for KV cache",
            "Available KV cache memory",
            budget.available_kv_bytes / GIB,
            start.smallest("available_kv_gib"),
            "GiB",
        ),
        ("one request", "KV cache is needed", request_bytes(plan) / GIB, needed, "GiB"),
        (
            "KV cache tokens",
            "GPU KV cache size",
            float(plan.kv_cache.tokens),
            start.count("kv_tokens"),
            "tokens",
        ),
        (
            "concurrency",
            "Maximum concurrency",
            plan.kv_cache.max_concurrency,
            start.smallest("max_concurrency"),
            "x",
        ),
    ]
    return tuple(
        PredictedRow(name, logged_as, round(predicted, 4), logged, unit)
        for name, logged_as, predicted, logged, unit in rows
        if logged is not None
    )
