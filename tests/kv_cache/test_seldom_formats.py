"""Bytes of one block of one layer for cache formats that few plans use, counted by hand from vLLM 0.33.0's sources.

Written because changes of these numbers went unnoticed (docs/mutation.md).
"""

from __future__ import annotations

from typing import Any

import pytest
from kv_building import plan
from vllm_capacity import plan as plan_model
from vllm_capacity.answer import Plan
from vllm_capacity.errors import RefusedError
from vllm_capacity.kv_cache.merging import _merge_swa_mla
from vllm_capacity.kv_cache.pool import bytes_per_block
from vllm_capacity.kv_cache.specs import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheGroup,
    KVCacheSpec,
    KVLayers,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    RequestLimits,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm_capacity.releases import get_release


def specs(model: str, **flags: Any) -> list[KVCacheSpec]:
    found = plan_model(model, vllm_version="0.33.0", suggestions=False, **flags)
    assert isinstance(found, Plan), found.verdict.message
    return list(dict.fromkeys(run.spec for group in found.kv_cache.groups for run in group.layer_specs))


def pages(model: str, **flags: Any) -> list[int]:
    return sorted({spec.page_size_bytes for spec in specs(model, **flags)})


def test_four_bit_sparse_latent_cache() -> None:
    """352 bytes per token (model_executor/layers/attention/mla_attention.py:1386); the indexer keeps 128 fp8 keys and one fp32
    scale (models/deepseek_v2.py). Blocks of 64 tokens.
    """
    found = pages(
        "deepseek-ai/DeepSeek-V3.2", gpu="B200", tensor_parallel_size=8, kv_cache_dtype="nvfp4_ds_mla"
    )
    assert found == [64 * (128 + 4), 64 * 352]


def test_four_bit_cache_has_a_slot_for_keys_and_one_for_values_of_each_head() -> None:
    """`FlashInferBackend.customize_spec`: 2 x heads slots of head_size / 2 bytes and head_size / 16 scales."""
    found = specs(
        "meta-llama/Llama-3.1-8B-Instruct", gpu="B200", kv_cache_dtype="nvfp4", attention_backend="FLASHINFER"
    )
    assert [spec.page_size_bytes for spec in found] == [16 * (2 * 8) * (128 // 2 + 128 // 16)]


@pytest.mark.parametrize(
    ("dtype", "per_head"),
    [
        ("int8_per_token_head", 128 + 128 + 8),
        ("fp8_per_token_head", 128 + 128 + 8),
        ("int4_per_token_head", 64 + 64 + 8),
    ],
)
def test_a_scale_per_token_and_head_is_kept_beside_keys_and_values(dtype: str, per_head: int) -> None:
    """TritonAttentionBackend.customize_spec: two fp32 scales."""
    assert pages("meta-llama/Llama-3.1-8B-Instruct", gpu="H200", kv_cache_dtype=dtype) == [16 * 8 * per_head]


def test_the_indexer_of_deepseek_v4_keeps_fp8_keys_and_a_scale_for_every_four_tokens() -> None:
    """256 tokens are 64 states of 128 + 4 bytes, rounded up to multiples of 576 (models/deepseek_v4)."""
    found = specs("deepseek-ai/DeepSeek-V4-Flash", gpu="H200", tensor_parallel_size=8, kv_cache_dtype="fp8")
    indexers = [spec for spec in found if isinstance(spec, MLAAttentionSpec) and spec.head_size == 128 + 4]
    assert [spec.page_size_bytes for spec in indexers] == [-(-64 * 132 // 576) * 576]


def test_the_states_of_deepseek_v4_are_sums_of_keys_and_scores_in_fp32() -> None:
    """models/deepseek_v4/attention.py: 2 x 512 (indexer: 2 x 128) numbers, twice as many where windows overlap (ratio 4), in
    blocks of 4 states and 8; pages are multiples of 576 bytes.
    """
    found = specs("deepseek-ai/DeepSeek-V4-Flash", gpu="H200", tensor_parallel_size=8, kv_cache_dtype="fp8")
    states = {
        (s.block_size, s.page_size_bytes)
        for s in found
        if isinstance(s, AttentionSpec) and s.dtype == "float32"
    }

    def page(states: int, numbers: int) -> int:
        return -(-states * numbers * 4 // 576) * 576

    assert states == {(4, page(4, 2 * 128 * 2)), (4, page(4, 2 * 512 * 2)), (8, page(8, 2 * 512))}


def test_a_model_without_a_cache_asks_for_no_block() -> None:
    free = plan(KVLayers(runs=(), layer_index=(), block_size=16))
    assert (free.num_blocks, free.blocks_per_request, free.size_tokens, free.max_concurrency) == (
        1,
        0,
        0,
        0.0,
    )


def test_windows_beside_full_attention_of_the_same_size_stay_apart() -> None:
    """No latent cache there: nothing is allocated as if it were full (_get_kv_cache_groups_full_allocation)."""
    full = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)
    window = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=128, sliding_window=1024)
    found = plan([full if i % 6 == 5 else window for i in range(24)], release="0.33.0")
    assert {type(group.spec) for group in found.groups} == {FullAttentionSpec, SlidingWindowSpec}


def test_a_pool_of_states_alone_holds_as_many_longest_requests_as_it_has_blocks() -> None:
    """A state takes one block of each layer whatever the length; block 0 is nobody's."""
    state = MambaSpec(block_size=32768, shapes=((3, 64), (8000,)), dtypes=("bfloat16",) * 2)
    found = plan([state] * 4, 64 * 1000 * 1000, max_model_len=32768)
    assert found.num_blocks > 10
    assert found.pool_tokens == (found.num_blocks - 1) * 32768


def test_the_indexer_of_minimax_m3_keeps_one_key_in_bfloat16() -> None:
    """`MiniMaxM3IndexerCache`, models/minimax_m3/common/indexer.py: 128 elements for each of 128 tokens."""
    found = specs("nvidia/MiniMax-M3-NVFP4", gpu="H200", tensor_parallel_size=8)
    keys = [spec.page_size_bytes for spec in found if isinstance(spec, MLAAttentionSpec)]
    assert keys == [128 * 128 * 2]


def test_latents_of_four_bits_take_half_a_byte_each_and_a_pair_of_scales() -> None:
    """`MLAAttentionSpec.real_page_size_bytes`, v1/kv_cache_interface.py:398-416 (0.26.0), and the scales of :190-193."""
    spec = MLAAttentionSpec(
        block_size=16,
        num_kv_heads=1,
        head_size=576,
        dtype="int8",
        kv_quant_mode=KVQuantMode.INT4_PER_TOKEN_HEAD,
    )
    assert spec.page_size_bytes == 16 * (576 // 2 + 8)


def test_tokens_retained_for_speculation_widen_the_window() -> None:
    """`SlidingWindowSpec.max_num_tokens`, v1/kv_cache_interface.py:935-944 (0.33.0)."""
    limits = RequestLimits(max_model_len=100_000, in_flight_tokens=2048)
    plain = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=128, sliding_window=1024)
    wider = SlidingWindowSpec(
        block_size=16, num_kv_heads=8, head_size=128, sliding_window=1024, extra_retained_tokens=64
    )
    assert plain.max_pages(limits) == -(-(1023 + 2048) // 16) + 1
    assert wider.max_pages(limits) == plain.max_pages(limits) + 4


def test_a_window_s_page_that_fits_no_page_of_the_full_cache_is_refused() -> None:
    """Up to 0.26.0 windows of DeepSeek-V4 are padded to a page of the full group (v1/core/kv_cache_utils.py)."""
    full = MLAAttentionSpec(
        block_size=256, num_kv_heads=1, head_size=64, dtype="uint8", model_version="deepseek_v4"
    )
    window = SlidingWindowMLASpec(
        block_size=64,
        num_kv_heads=1,
        head_size=2048,
        dtype="uint8",
        sliding_window=128,
        model_version="deepseek_v4",
    )
    with pytest.raises(RefusedError, match="larger than every full attention page"):
        plan([full, window] * 4, release="0.26.0")
    assert plan([full, window] * 4, release="0.33.0").num_blocks > 0


def test_a_rank_without_a_cache_has_no_bytes_to_divide_by() -> None:
    """`group_size must be greater than 0`, v1/core/kv_cache_utils.py (0.26.0)."""
    nobody = KVCacheGroup(FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128), ())
    with pytest.raises(RefusedError, match="group_size must be greater than 0"):
        bytes_per_block((nobody,), get_release("0.33.0"), block_outermost=False)


def test_without_a_latent_cache_pages_that_do_not_divide_are_refused() -> None:
    """`_get_kv_cache_groups_full_allocation` (0.27.0) helps only where a latent cache stands beside windows."""
    full = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)
    window = SlidingWindowSpec(block_size=16, num_kv_heads=3, head_size=128, sliding_window=1024)
    with pytest.raises(RefusedError, match="page size is not divisible"):
        plan([full, window] * 6, release="0.28.0")


def test_latent_windows_of_two_lengths_are_no_one_spec() -> None:
    """`SlidingWindowMLASpec.merge`, v1/kv_cache_interface.py:1036-1062 (0.33.0)."""
    windows = [
        SlidingWindowMLASpec(
            block_size=64, num_kv_heads=1, head_size=512, dtype="uint8", sliding_window=length
        )
        for length in (128, 256)
    ]
    assert _merge_swa_mla(windows) is None
    assert _merge_swa_mla([windows[0], windows[0]]) == windows[0]


def test_a_model_of_states_alone_needs_no_alignment_with_attention() -> None:
    """`_align_hybrid_block_size` is for hybrids; a state's block spans the longest request without prefix caching."""
    found = specs("tiiuae/falcon-mamba-7b", gpu="H200", max_model_len=4096)
    assert {(type(spec), spec.block_size) for spec in found} == {(MambaSpec, 4096)}
