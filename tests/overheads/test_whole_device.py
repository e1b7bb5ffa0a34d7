"""Bytes in use once the server is up, and the KV cache that is left, against recorded runs."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any

import pytest
from recorded import DEVICES, Run, predictions, ranks, run_named, runs
from vllm_capacity import plan
from vllm_capacity.activations.peak import activation_peak
from vllm_capacity.answer import Plan
from vllm_capacity.budget import PERSISTENT, device_bytes
from vllm_capacity.overheads import overhead_terms
from vllm_capacity.units import GIB, MIB
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


# -- what PyTorch's cache keeps of the warm-up (tests/data/records/h200_vllm_0.33.0.jsonl, stage `ready`)
@pytest.mark.parametrize(
    ("model", "flags", "in_use", "within"),
    [
        ("meta-llama/Llama-3.1-8B", {}, 136_693_219_328, 8 * MIB),
        (
            "Qwen/Qwen3-30B-A3B",
            {"compilation_config": {"cudagraph_capture_sizes": [1, 8]}},
            136_653_373_440,
            8 * MIB,
        ),
        ("meta-llama/Llama-3.1-8B", {"enforce_eager": True}, 138_029_105_152, 200 * MIB),
        ("ibm-granite/granite-4.0-h-tiny", {"enforce_eager": True}, 137_785_835_520, 200 * MIB),
    ],
)
def test_device_in_use_once_the_server_is_up(
    model: str, flags: dict[str, Any], in_use: int, within: int
) -> None:
    """Capturing graphs empties the cache of the sampler's warm-up before it; an eager run leaves a forward's tensors."""
    planned = plan(
        model, gpu="H200", vllm_version="0.33.0", suggestions=False, dtype="bfloat16", max_model_len=32768,
        max_num_batched_tokens=8192, max_num_seqs=1024, **flags,
    )  # fmt: skip
    assert isinstance(planned, Plan)
    assert abs(planned.ranks[0].device_used_bytes - in_use) <= within


@pytest.mark.parametrize(
    ("release", "eager", "name", "n_bytes"),
    [
        ("0.29.0", False, "sampler_warmup", None),
        ("0.30.0", False, "sampler_warmup_before_graphs", None),
        ("0.30.0", True, "sampler_warmup", None),
        ("0.31.0", True, "sampler_warmup", 0),
    ],
)
def test_the_sampler_is_warmed_up_after_the_graphs_before_them_or_not_at_all(
    release: str, eager: bool, name: str, n_bytes: int | None
) -> None:
    """v1/worker/gpu_worker.py: compile_or_warm_up_model; config/vllm.py: enable_jit_warmup (0.29.0 to 0.31.0)."""
    planned = plan("Qwen/Qwen3-8B", gpu="H200", vllm_version=release, enforce_eager=eager, suggestions=False)
    assert isinstance(planned, Plan)
    found = [t for t in planned.ranks[0].terms if t.name.startswith("sampler_warmup")]
    assert [t.name for t in found] == [name]
    assert found[0].n_bytes == n_bytes if n_bytes is not None else found[0].n_bytes > 0
