"""Buffers whose size vLLM's source fixes: all-reduce, FlashInfer, MLA, sampler state, and which release has
them where.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from recorded import H100, H200, run_named
from vllm_capacity.budget import Account, account_of
from vllm_capacity.context import RankContext
from vllm_capacity.device import Device
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm
from vllm_capacity.overheads import graph_estimate, overhead_terms
from vllm_capacity.overheads.requests import heavy_requests, request_warnings
from vllm_capacity.releases import get_release
from vllm_capacity.units import MIB

B200 = Device(
    name="NVIDIA B200",
    cuda_total_bytes=191_500_000_000,
    nvml_total_bytes=192_600_000_000,
    compute_capability=(10, 0),
    num_sms=148,
    nvlink=True,
)


def context(
    name: str = "h200/llama31-8b",
    *,
    release: str | None = None,
    device: Device = H200,
    tp: int | None = None,
    **engine: Any,
) -> RankContext:
    ctx = run_named(name).context()
    if tp is not None:
        engine["parallel"] = replace(ctx.engine.parallel, tp=tp)
    return replace(
        ctx,
        device=device,
        engine=replace(ctx.engine, **engine),
        release=get_release(release) if release else ctx.release,
    )


def named(ctx: RankContext, name: str) -> MemoryTerm:
    return next(t for t in overhead_terms(ctx) if t.name == name)


@pytest.mark.parametrize(
    ("device", "tp", "symmetric", "buffer"),
    [(H200, 2, 64, 8), (H200, 4, 32, 8), (H200, 8, 64, 0.25), (B200, 2, 8, 2), (B200, 8, 128, 1)],
)
def test_all_reduce_buffers_follow_vllms_tables(
    device: Device, tp: int, symmetric: float, buffer: float
) -> None:
    """CUSTOM_ALL_REDUCE_MAX_SIZES and SYMM_MEM_ALL_REDUCE_MAX_SIZES of all_reduce_utils.py, 0.26.0."""
    ctx = context(device=device, tp=tp)
    assert (
        named(ctx, "symmetric_memory").n_bytes == (symmetric + 2 * bool(symmetric)) * MIB
    )  # with signal pads
    custom = named(ctx, "custom_all_reduce")
    assert custom.values["buffer"] == buffer * MIB
    assert custom.lifetime is Lifetime.BEFORE_SNAPSHOT


@pytest.mark.parametrize(("tp", "multicast"), [(2, 96), (4, 96), (8, 96), (16, 192)])
def test_custom_all_reduce_gathers_and_scatters_from_0_27_on(tp: int, multicast: int) -> None:
    """custom_all_reduce.py of 0.27.0 to 0.33.0: a legacy buffer of max(max_size, 16 MiB), and six stages of max(gather x world,
    16 MiB) where NVLink multicast is there. Recorded starts of 0.33.0 without it: 26 MiB at two GPUs, no stages.
    """
    ctx = context(release="0.33.0", device=H200, tp=tp)
    custom = named(ctx, "custom_all_reduce")
    assert custom.values["buffer"] == 16 * MIB
    assert named(ctx, "custom_all_reduce_multicast").n_bytes == multicast * MIB
    off = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}
    without = context(release="0.33.0", device=H200, tp=tp, args=replace(ctx.engine.args, environment=off))
    assert named(without, "custom_all_reduce_multicast").n_bytes == 0
    assert named(without, "custom_all_reduce").n_bytes == 26 * MIB
    assert not [t for t in overhead_terms(context(tp=tp)) if t.name == "custom_all_reduce_multicast"]


@pytest.mark.parametrize("tp", [1, 3, 5])
def test_no_custom_all_reduce_for_odd_groups(tp: int) -> None:
    t = named(context(tp=tp), "custom_all_reduce")
    assert t.n_bytes == 0
    assert t.note


def test_flashinfer_is_zero_with_its_reason_where_flash_attention_serves() -> None:
    t = named(context(), "flashinfer_workspace")
    assert (t.n_bytes, t.note) == (0, "FLASH_ATTN is chosen on sm90")


@pytest.mark.parametrize(
    ("release", "tokens", "expected"),
    [("0.20.2", 8192, 394 * MIB), ("0.26.0", 8192, 8192 * 32 * 128 * 16), ("0.26.0", 2048, 394 * MIB)],
)
def test_flashinfer_workspace_grows_with_the_head_footprint_since_0_26(
    release: str, tokens: int, expected: int
) -> None:
    """v1/attention/backends/flashinfer.py: _get_workspace_buffer."""
    ctx = context(release=release, attention_backends=("FLASHINFER",), max_num_batched_tokens=tokens)
    assert named(ctx, "flashinfer_workspace").n_bytes == expected


def test_mla_workspace_is_made_with_the_cache_not_in_the_profile_run() -> None:
    """65,536 tokens x 576 x 2 bytes: mla_attention.py:1688-1716 and 1801-1831 (0.26.0)."""
    t = named(context("h200/ds-v2-lite"), "mla_chunked_prefill_workspace")
    assert (t.n_bytes, t.lifetime) == (65536 * 576 * 2, Lifetime.AFTER_PROFILE)


def test_penalty_counts_are_outside_the_budget_up_to_0_26_and_inside_from_0_27() -> None:
    ctx = context()
    counts = named(ctx, "penalty_counts")
    assert counts.n_bytes == 526_385_152, (
        "1024 x 128256 x 4 bytes in a segment of its own, a multiple of 2 MiB"
    )
    assert account_of(counts, get_release("0.26.0")) is Account.OUTSIDE
    assert account_of(counts, get_release("0.27.0")) is Account.RUNNER_BUFFERS


def test_runner_v2_estimates_no_graphs_before_0_29() -> None:
    assert graph_estimate(context(release="0.28.0")) is None
    estimate = graph_estimate(context(release="0.29.0"))
    assert estimate is not None
    assert estimate.n_bytes > 0


def test_eager_captures_and_estimates_nothing() -> None:
    ctx = context("h200/qwen3-8b-eager", model_runner="V1")
    assert graph_estimate(ctx) is None
    assert named(ctx, "cuda_graphs").n_bytes == 0


def test_fewer_capture_sizes_take_less() -> None:
    many = named(context(), "cuda_graphs").n_bytes
    few = named(context(cudagraph_capture_sizes=(1, 8)), "cuda_graphs").n_bytes
    assert few < many / 2


def test_graphs_of_two_sizes_take_a_tenth_of_a_gib() -> None:
    """Recorded: "Graph capturing finished in 1 secs, took 0.10 GiB" (Llama-3.1-8B, sizes 1 and 8, H200,
    0.26.0).
    """
    assert named(context("h200/llama31-8b-kvfp8"), "cuda_graphs").n_bytes / 2**30 == pytest.approx(
        0.10, abs=0.03
    )


def test_cublas_moves_before_the_snapshot_in_0_33() -> None:
    before = [t for t in overhead_terms(context(release="0.33.0")) if t.name == "cublas_workspace"]
    assert [t.lifetime for t in before] == [Lifetime.BEFORE_SNAPSHOT]
    assert not [t for t in overhead_terms(context(release="0.32.0")) if t.name == "cublas_workspace"]


def test_stages_before_the_last_have_no_sampler_state() -> None:
    ctx = context(parallel=replace(context().engine.parallel, pp=2))
    names = {t.name for t in overhead_terms(ctx)}
    assert "penalty_counts" not in names
    assert "sampler_modules" not in names


def test_terms_say_their_component_once_per_cause() -> None:
    names = [t.name for t in overhead_terms(context(tp=2, device=H100))]
    assert len(names) == len(set(names))
    assert {t.component for t in overhead_terms(context())} >= {Component.FLASHINFER, Component.LORA}


def test_prompt_logprobs_of_runner_v1_take_a_whole_batch_of_logits() -> None:
    """V1: logits and fp32 log-softmax of every prompt token of the step; V2: 1,024 rows of logits."""
    v1 = named(context(model_runner="V1"), "prompt_logprobs")
    v2 = named(context(), "prompt_logprobs")
    assert v1.n_bytes == 16384 * 128256 * 6
    assert v2.n_bytes == 1024 * 128256 * 2


def test_heavy_requests_are_those_that_only_some_requests_need() -> None:
    ctx = context(model_runner="V1")
    names = {t.name for t in heavy_requests(overhead_terms(ctx))}
    assert names == {"sampler_warmup", "prompt_logprobs", "penalties"}


def test_a_request_that_cannot_fit_is_named_with_its_numbers() -> None:
    terms = overhead_terms(context(model_runner="V1"))
    (warning, *others) = request_warnings(terms, 4 * 2**30)
    assert "prompt logprobs" in warning
    assert "11.74 GiB" in warning
    assert "4.00 GiB are left" in warning
    assert not others
    assert request_warnings(terms, 20 * 2**30) == ()
