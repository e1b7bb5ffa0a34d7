"""docs/memory-claims.md: what it says about numbers, from plans. `M` is Llama-3.1-8B-Instruct on one H100-80GB, as there."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_capacity import InputError, Plan, plan
from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Allocator, Lifetime

RELEASES = ("0.19.0", "0.26.0", "0.33.0")


def m(**flags: Any) -> Plan:
    answer = plan(
        "meta-llama/Llama-3.1-8B-Instruct", gpu="H100-80GB", suggestions=False, calibration="none", **flags
    )
    assert isinstance(answer, Plan)
    return answer


@pytest.mark.parametrize(("release", "share"), [("0.19.1", 0.9), ("0.20.0", 0.92), ("0.33.0", 0.92)])
def test_the_share_is_of_the_total_and_its_default_moved_in_0_20(release: str, share: float) -> None:
    answer = m(vllm_version=release)
    assert answer.tightest.budget.requested_bytes == pytest.approx(
        share * answer.device.cuda_total_bytes, abs=1
    )


def test_free_memory_is_only_compared_with_the_request() -> None:
    half, full = m(used_memory="1GiB"), m()
    assert half.tightest.budget.requested_bytes == full.tightest.budget.requested_bytes
    refused = m(used_memory="10GiB").verdict
    assert refused.reason is Reason.FREE_BELOW_REQUESTED
    assert "is less than desired GPU memory utilization" in refused.message


def test_a_lower_share_shrinks_the_kv_cache_and_nothing_else() -> None:
    low, high = m(gpu_memory_utilization=0.8).tightest, m(gpu_memory_utilization=0.9).tightest
    others = [
        [(term.name, term.n_bytes) for term in rank.terms if term.component != "kv_cache"]
        for rank in (low, high)
    ]
    assert others[0] == others[1]
    assert low.kv_bytes < high.kv_bytes


def test_kv_cache_memory_bytes_is_taken_as_given() -> None:
    answer = m(kv_cache_memory_bytes=12_884_901_888)
    block = answer.kv_cache.bytes_per_block
    assert 12_884_901_888 - block < answer.tightest.kv_bytes <= 12_884_901_888


@pytest.mark.parametrize(("release", "subtracted"), [("0.26.0", False), ("0.28.0", False), ("0.29.0", True)])
def test_model_runner_v2_subtracts_graphs_from_0_29_on(release: str, subtracted: bool) -> None:
    answer = m(vllm_version=release)
    assert answer.engine.model_runner == "V2"
    assert (answer.tightest.budget.graph_applied_bytes > 0) is subtracted
    assert answer.tightest.graph_actual_bytes > 0


def test_communicators_exist_before_the_snapshot() -> None:
    terms = {term.name: term.lifetime for term in m(tensor_parallel_size=2).tightest.terms}
    assert terms["nccl_communicators"] is Lifetime.BEFORE_SNAPSHOT
    assert terms["collective_buffers"] is Lifetime.PROFILE_PERSISTENT


@pytest.mark.parametrize("release", RELEASES)
def test_max_model_len_hardly_moves_the_kv_cache(release: str) -> None:
    """Block tables and some buffers follow it, nothing else: well under a hundredth."""
    short, long = (m(vllm_version=release, max_model_len=n).tightest.kv_bytes for n in (8192, 32768))
    assert short == pytest.approx(long, rel=0.01)


def test_the_default_length_is_the_configs() -> None:
    assert m().kv_cache.max_model_len == 131_072


def test_activations_follow_the_tokens_of_a_batch_not_the_length() -> None:
    peaks = {
        (length, tokens): m(
            max_model_len=length, max_num_batched_tokens=tokens, enforce_eager=True
        ).tightest.activation.n_bytes
        for length in (8192, 32768)
        for tokens in (8192, 32768)
    }
    assert peaks[8192, 8192] == peaks[32768, 8192] < peaks[32768, 32768]


def test_vllm_max_model_len_is_no_variable() -> None:
    with pytest.raises(InputError, match="VLLM_MAX_MODEL_LEN does not exist"):
        m(environment={"VLLM_MAX_MODEL_LEN": "4096"})


def test_flashinfers_buffer_is_a_torch_tensor_made_after_the_kv_cache_was_sized() -> None:
    terms = m(attention_backend="FLASHINFER").tightest.terms
    (buffer,) = (term for term in terms if term.name == "flashinfer_workspace")
    assert (buffer.allocator, buffer.lifetime) == (Allocator.TORCH, Lifetime.AFTER_PROFILE)


def test_offloading_moves_weights_to_pinned_memory() -> None:
    plain, offloaded = m(), m(cpu_offload_gb=4)
    moved = offloaded.host.pinned_bytes - plain.host.pinned_bytes
    assert 0 < moved <= 4 * 2**30
    assert offloaded.tightest.kv_bytes > plain.tightest.kv_bytes
