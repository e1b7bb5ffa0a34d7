"""What the plan says beyond vLLM's own numbers: refusals by release, what the pool holds, sizing figures."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_building import GIB, engine, kv_layers_from_specs, plan, plan_kv_cache
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.kv_cache.planning import minimal_kv_bytes
from vllm_capacity.kv_cache.specs import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)
from vllm_capacity.releases import get_release, supported_releases

FULL = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=128, sliding_window=1024)
STATE = MambaSpec(
    block_size=32768,
    shapes=((3, 64), (8000,)),
    dtypes=("bfloat16",) * 2,
    page_size_padded=FULL.page_size_bytes,
)
HYBRID: list[KVCacheSpec] = [FULL if i % 4 == 3 else STATE for i in range(12)]
GEMMA_LIKE: list[KVCacheSpec] = [FULL if i % 6 == 5 else WINDOW for i in range(24)]


def test_refusal_for_a_request_that_does_not_fit_says_what_would() -> None:
    """Text of `_check_enough_kv_cache_memory`; 4 layers x 32,768 tokens x 4 KiB = 0.5 GiB, a quarter of 2
    GiB is there.
    """
    result = plan([FULL] * 4, GIB // 4, max_model_len=32768)
    assert result.refusal is not None
    assert result.refusal.reason is Reason.ONE_REQUEST_DOES_NOT_FIT
    assert result.refusal.estimated_max_model_len == 16384
    assert result.refusal.message.startswith(
        "To serve at least one request with the model's max seq len (32768), (0.5 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (0.25 GiB). Based on the available memory, the "
        "estimated maximum model length is 16384. "
    )


def test_the_null_block_costs_one_block_of_admission_from_0_29_0_on() -> None:
    exact = 2048 * 4 * FULL.page_size_bytes
    assert plan([FULL] * 4, exact, "0.28.0", max_model_len=32768).refusal is None
    refused = plan([FULL] * 4, exact, "0.29.0", max_model_len=32768)
    assert refused.refusal is not None
    assert refused.refusal.estimated_max_model_len == 32768 - 16
    assert plan([FULL] * 4, exact + 4 * FULL.page_size_bytes, "0.29.0", max_model_len=32768).refusal is None


@pytest.mark.parametrize("available", [0, -1, -5 * GIB])
def test_no_memory_at_all_is_its_own_reason(available: int) -> None:
    result = plan([FULL], available)
    assert result.refusal is not None
    assert result.refusal.reason is Reason.NO_KV_MEMORY
    assert result.refusal.message.startswith("No available memory for the cache blocks.")
    assert result.num_blocks == 0


def test_max_model_len_auto_is_lowered_to_what_fits() -> None:
    result = plan([FULL] * 4, GIB // 4, max_model_len=32768, max_model_len_auto=True)
    assert result.refusal is None
    assert result.max_model_len == 16384
    assert result.max_concurrency == 1.0


def test_max_model_len_auto_refuses_where_no_token_fits() -> None:
    result = plan([FULL] * 4, 1000, max_model_len_auto=True)
    assert result.refusal is not None
    assert "Cannot auto-fit max_model_len" in result.refusal.message


def test_the_smallest_stage_decides() -> None:
    result = plan([FULL] * 4, [GIB, GIB // 2], stages=((0, 2), (2, 4)), max_model_len=4096)
    assert [stage.num_blocks_own for stage in result.stages] == [8192, 4096]
    assert result.num_blocks == 4096
    assert [stage.kv_bytes for stage in result.stages] == [GIB // 2, GIB // 2]


def test_a_block_override_replaces_memory_only_from_0_20_1_on() -> None:
    before = plan([FULL] * 4, GIB // 4, "0.20.0", max_model_len=32768, num_gpu_blocks_override=4096)
    after = plan([FULL] * 4, GIB // 4, "0.20.1", max_model_len=32768, num_gpu_blocks_override=4096)
    assert before.refusal is not None
    assert after.refusal is None
    assert before.num_blocks == after.num_blocks == 4096


def test_full_graphs_need_a_state_block_per_sequence() -> None:
    few = 200 * 3 * FULL.page_size_bytes
    result = plan(HYBRID, few, max_model_len=1024)
    assert result.refusal is not None
    assert result.refusal.reason is Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS
    assert result.refusal.message.startswith("max_num_seqs (256) exceeds available Mamba cache blocks (200).")
    assert plan(HYBRID, few, max_model_len=1024, max_num_seqs=200).refusal is None
    assert plan(HYBRID, few, max_model_len=1024, cudagraph_mode="PIECEWISE").refusal is None
    capped = plan(HYBRID, few, "0.19.1", max_model_len=1024)
    assert (capped.refusal, capped.graph_size_cap) == (None, 200)


def test_sliding_windows_refuse_decode_context_parallelism() -> None:
    with pytest.raises(RefusedError, match="DCP not support sliding window"):
        plan(GEMMA_LIKE, dcp=2)


def test_attention_free_models_get_one_block() -> None:
    result = plan([], GIB)
    assert (result.num_blocks, result.size_tokens, result.groups) == (1, 0, ())


def test_the_number_of_memory_sizes_must_fit_the_stages() -> None:
    with pytest.raises(InputError, match="2 KV memory sizes for 1 pipeline stages"):
        plan_kv_cache(kv_layers_from_specs([FULL], 16), [GIB, GIB], engine(), get_release("0.26.0"))


def test_the_pool_holds_all_blocks_but_the_null_block() -> None:
    assert plan([FULL] * 4, GIB).pool_tokens == (4096 - 1) * 16
    sinks = SinkFullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, sink_len=64)
    assert plan([sinks] * 4, GIB, max_model_len=4096).pool_tokens == (4096 - 1 - 4) * 16


def test_the_pool_of_windows_is_what_one_sequence_can_fill() -> None:
    result = plan(GEMMA_LIKE, 4 * GIB, max_model_len=8192)
    assert (
        result.blocks_for(result.pool_tokens)
        <= result.num_blocks - 1
        < result.blocks_for(result.pool_tokens + 1)
    )


def test_profiling_graphs_takes_a_block_per_sequence_or_graph_size() -> None:
    layers = kv_layers_from_specs([FULL] * 4, 16)
    block = 4 * FULL.page_size_bytes
    assert minimal_kv_bytes(layers, engine(max_num_seqs=64), get_release("0.25.1")) == 512 * block
    assert minimal_kv_bytes(layers, engine(max_num_seqs=64), get_release("0.26.0")) == 64 * block
    assert minimal_kv_bytes(layers, engine(cudagraph_capture_sizes=()), get_release("0.26.0")) == block


MODELS = st.sampled_from([[FULL] * 8, GEMMA_LIKE, HYBRID, [FULL] * 4 + [WINDOW] * 4])


@given(
    specs=MODELS,
    release=st.sampled_from(supported_releases()),
    available=st.integers(GIB // 8, 64 * GIB),
    extra=st.integers(0, 8 * GIB),
    length=st.integers(1, 65536),
)
def test_more_memory_never_gives_less(
    specs: list[KVCacheSpec], release: str, available: int, extra: int, length: int
) -> None:
    less = plan(specs, available, release, max_model_len=length, cudagraph_mode="NONE")
    more = plan(specs, available + extra, release, max_model_len=length, cudagraph_mode="NONE")
    assert more.num_blocks >= less.num_blocks
    assert more.size_tokens >= less.size_tokens
    assert more.pool_tokens >= less.pool_tokens
    assert (less.refusal is None) <= (more.refusal is None)


@given(specs=MODELS, release=st.sampled_from(supported_releases()), length=st.integers(1, 65536))
def test_longer_requests_never_need_fewer_blocks(specs: list[KVCacheSpec], release: str, length: int) -> None:
    result = plan(specs, 8 * GIB, release, max_model_len=65536)
    assert result.blocks_for(length) <= result.blocks_for(length + 1)


@given(specs=MODELS, release=st.sampled_from(supported_releases()), available=st.integers(1, 2 * GIB))
def test_the_estimate_in_a_refusal_is_the_longest_that_starts(
    specs: list[KVCacheSpec], release: str, available: int
) -> None:
    refusal = plan(specs, available, release, max_model_len=65536, cudagraph_mode="NONE").refusal
    if refusal is None or not refusal.estimated_max_model_len:
        return
    best = refusal.estimated_max_model_len
    assert plan(specs, available, release, max_model_len=best, cudagraph_mode="NONE").refusal is None
    assert plan(specs, available, release, max_model_len=best + 1, cudagraph_mode="NONE").refusal is not None


@given(specs=MODELS, length=st.integers(1024, 65536))
def test_marginal_and_fixed_bytes_add_up_to_a_request(specs: list[KVCacheSpec], length: int) -> None:
    stage = plan(specs, 64 * GIB, max_model_len=length, cudagraph_mode="NONE").stages[0]
    estimate = stage.fixed_bytes_per_sequence + stage.marginal_bytes_per_token * length
    assert 0 <= stage.request_bytes - estimate < stage.bytes_per_block


def test_a_uniform_model_is_planned_in_a_third_of_a_millisecond() -> None:
    layers, settings, release = kv_layers_from_specs([FULL] * 126, 16), engine(), get_release("0.26.0")
    best = min(_timed(layers, settings, release) for _ in range(50))
    assert best < 3e-4


def _timed(*arguments: object) -> float:
    layers, settings, release = arguments
    start = time.perf_counter()
    plan_kv_cache(layers, [64 * GIB], settings, release)  # type: ignore[arg-type]
    return time.perf_counter() - start
