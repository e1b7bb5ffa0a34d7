"""Bytes in use once the server is up, and the KV cache that is left, against recorded runs."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from recorded import DEVICES, Run, predictions, ranks, run_named, runs
from vllm_capacity.activations.peak import activation_peak
from vllm_capacity.budget import PERSISTENT, device_bytes
from vllm_capacity.overheads import overhead_terms
from vllm_capacity.units import GIB
from vllm_capacity.weights.rank import weight_terms


@pytest.mark.parametrize(
    "name",
    [
        "h200/qwen3-0.6b",
        "h200/llama31-8b",
        "h200/qwen3-30b-a3b",
        "h200/ds-v2-lite",
        "h200/qwen25-7b-t8192-s256",
    ],
)
def test_bytes_in_use_are_within_one_percent_of_the_device(name: str) -> None:
    """total - free as CUDA reports it after start-up; what the sampler's warm-up took stays with PyTorch."""
    run = run_named(name)
    rank = run.measured["ranks"][0]
    ctx = run.context()
    terms = (*overhead_terms(ctx), *activation_peak(ctx).terms, *weight_terms(ctx))
    warm = next(t for t in terms if t.name == "sampler_warmup")
    used = device_bytes(terms, PERSISTENT) + warm.n_bytes + rank["kv_bytes"]
    assert used == pytest.approx(rank["init_total"] - rank["free_now"], abs=0.01 * rank["init_total"])


def covered() -> list[tuple[Run, float, float]]:
    found = []
    for run in runs():
        for stage, _, figures in ranks(run):
            predicted = predictions(run, stage)
            if "available_kv" in figures and "available_kv" in predicted:
                found.append((run, predicted["available_kv"], figures["available_kv"]))
    return found


def test_available_kv_cache_is_met_within_a_thousandth_of_the_device_on_average() -> None:
    errors = [
        abs(predicted - measured) * GIB / DEVICES[run.facts["device"]].cuda_total_bytes
        for run, predicted, measured in covered()
    ]
    assert len(errors) >= 28
    assert mean(errors) < 0.001


def test_no_run_is_off_by_more_than_half_a_percent_of_the_device() -> None:
    for run, predicted, measured in covered():
        total = DEVICES[run.facts["device"]].cuda_total_bytes / GIB
        assert predicted == pytest.approx(measured, abs=0.005 * total), run.name


def test_eager_gives_back_what_graphs_take() -> None:
    ctx = run_named("h200/llama31-8b").context()
    eager = replace(ctx, engine=replace(ctx.engine, enforce_eager=True, compiled=False, cudagraph_mode="NONE",
                                        cudagraph_capture_sizes=()))  # fmt: skip
    assert device_bytes(overhead_terms(eager), PERSISTENT) < device_bytes(overhead_terms(ctx), PERSISTENT)
