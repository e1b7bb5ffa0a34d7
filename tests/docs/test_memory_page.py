"""docs/memory.md states what plans say: its figures, recomputed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from vllm_capacity.kv_cache.specs import FullAttentionSpec, SlidingWindowSpec
from vllm_capacity.units import GIB

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from memory_pictures import planned  # noqa: E402

PAGE = re.sub(r"\s+", " ", (ROOT / "docs" / "memory.md").read_text(encoding="utf-8"))


def test_the_total_of_an_h100() -> None:
    total = planned("meta-llama/Llama-3.1-8B-Instruct", gpu="H100-80GB").device.cuda_total_bytes
    assert f'{total / GIB:.2f} GiB for an H100 with "80 GB"' in PAGE


def test_page_and_block_of_full_attention() -> None:
    cache = planned("meta-llama/Llama-3.1-8B-Instruct", gpu="H100-80GB").kv_cache
    (group,) = cache.groups
    spec = group.spec
    assert isinstance(spec, FullAttentionSpec)
    page = 16 * 2 * spec.num_kv_heads * spec.head_size * 2
    assert (page, cache.bytes_per_block) == (spec.page_size_bytes, page * len(group.layers))
    assert f"16 x 2 x {spec.num_kv_heads} x {spec.head_size} x 2 = {page:,} bytes" in PAGE
    assert f"{len(group.layers)} x {page:,} = {cache.bytes_per_block:,} bytes" in PAGE


def test_groups_of_windows() -> None:
    groups = planned("google/gemma-3-27b-it", gpu="H200").kv_cache.groups
    windows = sum(len(group.layers) for group in groups if isinstance(group.spec, SlidingWindowSpec))
    full = sum(len(group.layers) for group in groups) - windows
    assert f"{full} layers with full attention and {windows} with windows" in PAGE
    assert (len(groups), max(len(group.layers) for group in groups)) == (7, 10)
    assert "seven groups of at most 10" in PAGE


def test_latent_vectors_are_whole_on_every_gpu() -> None:
    per_token = {
        tp: planned(
            "deepseek-ai/DeepSeek-V3", gpu="B300", tensor_parallel_size=tp
        ).kv_cache.marginal_bytes_per_token
        for tp in (1, 8)
    }
    assert per_token[1] == per_token[8] == 61 * 576 * 2
    assert "576 values for DeepSeek V3" in PAGE


def test_blocks_beside_states_are_long() -> None:
    block = planned("Qwen/Qwen3-Next-80B-A3B-Instruct", gpu="B300").kv_cache.block_size
    assert f"{block} tokens for Qwen3-Next on one GPU instead of 16" in PAGE


@pytest.mark.parametrize(("release", "batches"), [("0.25.1", 1), ("0.26.0", 2)])
def test_a_window_holds_the_tokens_of_the_batches_that_overlap(release: str, batches: int) -> None:
    """gpt-oss-120b: the window (128) less one, and the tokens in flight, of a request that is longer than both."""
    cache = planned(
        "openai/gpt-oss-120b", gpu="B300", vllm_version=release, max_num_batched_tokens=8192
    ).kv_cache
    (window,) = (group.spec for group in cache.groups if isinstance(group.spec, SlidingWindowSpec))
    kept = window.sliding_window - 1 + batches * 8192
    assert window.max_pages(cache.limits) == -(-kept // window.block_size) + 1


def test_captured_sizes_on_hopper() -> None:
    sizes = planned("meta-llama/Llama-3.1-8B-Instruct", gpu="H100-80GB").engine.cudagraph_capture_sizes
    assert f"{len(sizes)} batch sizes by default on Hopper" in PAGE
