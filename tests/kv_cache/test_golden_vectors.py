"""Numbers that vLLM's own planner gives for hand-built specs.

The expected values were computed with the `kv_cache_utils` (0.33.0: `kv_cache_planning`) of the named
release, on specs built by hand with 100 GiB, 8,192 tokens a batch and two batches in flight.
"""

from __future__ import annotations

import pytest
from kv_building import plan
from vllm_capacity.kv_cache.specs import (
    FullAttentionSpec,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

LLAMA_8B = [FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)] * 32
GPT_OSS_20B: list[KVCacheSpec] = [
    SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=64, sliding_window=128),
    FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=64),
] * 12
_GEMMA_WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=16, head_size=128, sliding_window=1024)
_GEMMA_FULL = FullAttentionSpec(block_size=16, num_kv_heads=16, head_size=128)
GEMMA_3_27B: list[KVCacheSpec] = [_GEMMA_FULL if i % 6 == 5 else _GEMMA_WINDOW for i in range(62)]
_GDN = MambaSpec(
    block_size=262144,
    shapes=((3, 8192), (32, 128, 128)),
    dtypes=("bfloat16", "bfloat16"),
    page_size_padded=1114112,
)
_QWEN_NEXT_FULL = FullAttentionSpec(block_size=544, num_kv_heads=2, head_size=256)
QWEN3_NEXT_80B: list[KVCacheSpec] = [_QWEN_NEXT_FULL if i % 4 == 3 else _GDN for i in range(48)]
DEEPSEEK_V3_2: list[KVCacheSpec] = [
    MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=132, dtype="uint8"),
    MLAAttentionSpec(
        block_size=64, num_kv_heads=1, head_size=576, dtype="uint8", cache_dtype_str="fp8_ds_mla"
    ),
] * 61


def deepseek_v4_specs() -> list[KVCacheSpec]:
    """43 layers with compress ratios 0, 0, then 4 and 128 by turns, 4 last; fp8_ds_mla."""
    v4 = {"num_kv_heads": 1, "model_version": "deepseek_v4", "alignment": 576}
    fp8 = {"dtype": "uint8", "cache_dtype_str": "fp8_ds_mla", **v4}
    specs: list[KVCacheSpec] = []
    for ratio in [1, 1] + [4, 128] * 20 + [4]:
        specs.append(SlidingWindowMLASpec(block_size=64, head_size=512, sliding_window=128, **fp8))
        if ratio > 1:
            specs.append(MLAAttentionSpec(block_size=256, head_size=512, tokens_per_state=ratio, **fp8))
            coff = 2 if ratio == 4 else 1
            state = {"block_size": 4 if ratio == 4 else 8, "dtype": "float32", "sliding_window": coff * ratio}
            specs.append(SlidingWindowMLASpec(head_size=2 * coff * 512, **state, **v4))
        if ratio == 4:
            specs.append(
                MLAAttentionSpec(block_size=256, head_size=132, dtype="uint8", tokens_per_state=4, **v4)
            )
            specs.append(SlidingWindowMLASpec(head_size=2 * 2 * 128, **state, **v4))
    return specs


@pytest.mark.parametrize(
    ("specs", "max_model_len", "layers", "block_bytes", "blocks", "tokens", "concurrency", "needed"),
    [
        (LLAMA_8B, 131072, [32], 2097152, 51200, 819200, 6.250, 17179869184),
        (GPT_OSS_20B, 131072, [12, 12], 393216, 273066, 3879816, 29.601, 3627417600),
        (GEMMA_3_27B, 131072, [9, 9, 9, 9, 8, 8, 10], 1310720, 81920, 729146, 5.563, 19301662720),
        (QWEN3_NEXT_80B, 262144, [12, 12, 12, 12], 13369344, 8031, 4340780, 16.559, 6484131840),
        (DEEPSEEK_V3_2, 163840, [122], 3076352, 34903, 2233792, 13.634, 7875461120),
        (deepseek_v4_specs(), 1048576, [62, 22, 21, 42, 20], 1039680, 103276, 10815213, 10.314, 11336041728),
    ],
    ids=["llama-8b", "gpt-oss-20b", "gemma-3-27b", "qwen3-next-80b", "deepseek-v3.2", "deepseek-v4"],
)
def test_blocks_tokens_and_concurrency_of_0_26_0(
    specs: list[KVCacheSpec],
    max_model_len: int,
    layers: list[int],
    block_bytes: int,
    blocks: int,
    tokens: int,
    concurrency: float,
    needed: int,
) -> None:
    result = plan(specs, max_model_len=max_model_len)
    assert result.refusal is None
    assert [len(group.layers) for group in result.groups] == layers
    assert result.bytes_per_block == block_bytes
    assert result.num_blocks == blocks
    assert result.size_tokens == tokens
    assert round(result.max_concurrency, 3) == concurrency
    assert result.stages[0].request_bytes == needed


def test_decode_context_parallel_doubles_the_printed_tokens() -> None:
    result = plan(LLAMA_8B, dcp=2)
    assert (result.num_blocks, result.size_tokens, result.max_concurrency) == (51200, 1638400, 12.5)
    assert result.stages[0].request_bytes == 8589934592


@pytest.mark.parametrize(
    ("release", "specs", "blocks", "tokens", "concurrency", "needed"),
    [
        ("0.20.2", GPT_OSS_20B, 273066, 4107805, 31.34, 3426091008),
        ("0.20.2", GEMMA_3_27B, 81920, 921350, 7.029, 15275130880),
        ("0.20.2", LLAMA_8B, 51200, 819200, 6.25, 17179869184),
        ("0.33.0", GPT_OSS_20B, 273066, 3879816, 29.601, 3627417600),
        ("0.33.0", GEMMA_3_27B, 81920, 729146, 5.563, 19301662720),
        ("0.33.0", LLAMA_8B, 51200, 819200, 6.25, 17179869184),
    ],
)
def test_other_releases(
    release: str, specs: list[KVCacheSpec], blocks: int, tokens: int, concurrency: float, needed: int
) -> None:
    result = plan(specs, release=release)
    assert (result.num_blocks, result.size_tokens) == (blocks, tokens)
    assert result.max_concurrency == pytest.approx(concurrency, abs=5e-3)
    assert result.stages[0].request_bytes == needed


def test_0_19_0_prints_blocks_per_group_but_concurrency_of_the_whole_pool() -> None:
    """A public log of gemma-3-27b under 0.19.0: 15,998 blocks, 36,560 tokens, 4.46x at 8,192."""
    specs: list[KVCacheSpec] = GEMMA_3_27B
    page = GEMMA_3_27B[0].page_size_bytes
    result = plan(specs, 15998 * 10 * page, "0.19.0", max_model_len=8192)
    assert (result.num_blocks, len(result.groups), result.size_tokens) == (15998, 7, 36560)
    assert f"{result.max_concurrency:.2f}" == "4.46"


@pytest.mark.parametrize(
    ("mode", "dtype", "full", "window"),
    [
        (KVQuantMode.NONE, "bfloat16", 65536, 65536),
        (KVQuantMode.FP8_PER_TENSOR, "uint8", 32768, 32768),
        (KVQuantMode.INT8_PER_TOKEN_HEAD, "int8", 33792, 33792),
        (KVQuantMode.FP8_PER_TOKEN_HEAD, "uint8", 33792, 33792),
        (KVQuantMode.INT4_PER_TOKEN_HEAD, "uint8", 17408, 33792),
        (KVQuantMode.NVFP4, "uint8", 18432, 18432),
    ],
)
def test_page_bytes_by_cache_dtype(mode: KVQuantMode, dtype: str, full: int, window: int) -> None:
    """Pages of 16 tokens, 8 heads of 128; the window class has no int4 branch in 0.26.0."""
    common = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": dtype, "kv_quant_mode": mode}
    assert FullAttentionSpec(**common).page_size_bytes == full
    assert SlidingWindowSpec(**common, sliding_window=128).page_size_bytes == window


def test_deepseek_v4_page_sizes() -> None:
    pages = {(spec.block_size, spec.page_size_bytes) for spec in deepseek_v4_specs()}
    assert pages == {(64, 37440), (256, 37440), (256, 1728), (256, 8640), (4, 8640), (4, 32832), (8, 32832)}
