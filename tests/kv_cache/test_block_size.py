"""Block sizes: defaults of backends, alignment of hybrid models, layers left unquantised.

`tests/data/kv_planner/alignment.json`: results of `Platform._align_hybrid_block_size`
(vllm/platforms/interface.py) of eight releases, executed from the sources.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.attention_backends import AttentionBackend
from vllm_capacity.errors import RefusedError
from vllm_capacity.kv_cache.block_size import (
    BlockSizes,
    HybridState,
    align_hybrid,
    align_skipped_layers,
    default_block_size,
    window_block_size,
)
from vllm_capacity.releases import get_release

CASES = json.loads((Path(__file__).parents[1] / "data/kv_planner/alignment.json").read_text())
FLASH = AttentionBackend(name="FLASH_ATTN", kernel_block_sizes=(16,))
FLASHMLA = AttentionBackend(name="FLASHMLA", kernel_block_sizes=(64,), takes_multiples=False)
FLASHINFER_MLA = AttentionBackend(name="FLASHINFER_MLA", kernel_block_sizes=(32, 64), takes_multiples=False)
STATE = AttentionBackend(name="MAMBA2_ATTN", is_ssm=True)


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case['release']}" for i, case in enumerate(CASES)])
def test_hybrid_alignment_equals_vllms(case: dict[str, Any]) -> None:
    backend = AttentionBackend(
        name="any", kernel_block_sizes=tuple(case["kernel_blocks"]), takes_multiples=case["multiples"]
    )
    hybrid = HybridState(
        token_bytes=case["token_bytes"],
        state_bytes=case["state_bytes"],
        chunk_size=case["chunk_size"],
        use_mla=case["use_mla"],
        checkpoint_alignment=case["checkpoint_alignment"],
    )
    sizes = align_hybrid(
        case["block_size"],
        hybrid,
        [backend],
        get_release(case["release"]),
        mamba_mode=case["mode"],
        max_model_len=case["max_model_len"],
        user_mamba_block_size=case["user_mamba_block_size"],
    )
    assert [sizes.block_size, sizes.mamba_block_size, sizes.mamba_page_padded] == case["expected"]


def test_defaults_follow_the_backends_kernels() -> None:
    """`get_preferred_block_size`: 16 where a kernel block divides it, else the smallest kernel block."""
    release = get_release("0.26.0")
    assert default_block_size([STATE, FLASH], None, release) == 16
    assert default_block_size([FLASHMLA], None, release) == 64
    assert default_block_size([FLASHINFER_MLA], None, release) == 32
    assert default_block_size([FLASHINFER_MLA], 64, release) == 64
    assert default_block_size([STATE], None, release) == 16


def test_all_backends_decide_from_0_31_0_on() -> None:
    backends = [FLASH, FLASHMLA, FLASHINFER_MLA]
    assert default_block_size(backends, None, get_release("0.30.0")) == 16
    assert default_block_size(backends, None, get_release("0.31.0")) == 64


def test_a_backend_that_takes_any_block_leaves_it_to_the_others() -> None:
    """`_preferred_block_size_for_backends`: 16 suits the first, 64 is the least that suits both."""
    anything = AttentionBackend(name="ANY")
    assert default_block_size([FLASHMLA, anything], None, get_release("0.33.0")) == 64


@pytest.mark.parametrize(
    ("release", "backends", "mla", "block"),
    [
        ("0.19.1", [FLASH], False, 16 * 7), ("0.19.1", [FLASHMLA], True, 64 * 2),
        ("0.19.1", [AttentionBackend(name="CUTLASS_MLA")], True, 128),
        ("0.26.0", [STATE, FLASH, FLASHINFER_MLA], False, 16 * 7),
        ("0.31.0", [STATE, FLASH, FLASHINFER_MLA], False, 16 * 7),
        ("0.32.0", [STATE, FLASH, FLASHINFER_MLA], False, 32 * 4),
        ("0.33.0", [STATE, FLASHINFER_MLA, FLASH], False, 32 * 4),
    ],
)  # fmt: skip
def test_blocks_grow_to_whole_kernel_blocks(
    release: str, backends: list[AttentionBackend], mla: bool, block: int
) -> None:
    """100 tokens hold a state. 0.19.1: `HybridAttentionMambaModelConfig` (models/config.py) knows 16, with MLA 64 or
    CUTLASS_MLA's 128; `_align_hybrid_block_size` asks the first attention backend, from 0.32.0 on all of them.
    """
    hybrid = HybridState(token_bytes=10, state_bytes=1000, chunk_size=0, use_mla=mla, checkpoint_alignment=1)
    sizes = align_hybrid(16, hybrid, backends, get_release(release), mamba_mode="none", max_model_len=4096)
    assert sizes == BlockSizes(block_size=block, mamba_block_size=4096, mamba_page_padded=block * 10)


def test_cutlass_alone_had_blocks_of_128() -> None:
    """130 tokens hold a state: three blocks of 64 or two of 128 (models/config.py, 0.19.1)."""
    hybrid = HybridState(token_bytes=10, state_bytes=1300, chunk_size=0, use_mla=True, checkpoint_alignment=1)
    found = [
        align_hybrid(16, hybrid, [b], get_release("0.19.1"), mamba_mode="none", max_model_len=4096).block_size
        for b in (FLASHMLA, AttentionBackend(name="CUTLASS_MLA"))
    ]
    assert found == [3 * 64, 2 * 128]


def test_multiples_of_a_window_s_kernel_block_are_whole() -> None:
    """`_largest_kernel_block_within`, 0.30.0: 72 tokens hold four kernel blocks of 16."""
    found = window_block_size(FLASH, 4096, BlockSizes(block_size=72), get_release("0.30.0"))
    assert (found, type(found)) == (64, int)
    padded = BlockSizes(block_size=16, skip_page_padded=100 * 33)
    found = window_block_size(FLASH, 100, padded, get_release("0.30.0"))
    assert (found, type(found)) == (32, int)


def test_windows_take_their_own_block() -> None:
    """`_largest_kernel_block_within`: smallest kernel block in 0.26.0, the main block size from 0.30.0 on."""
    sizes = BlockSizes(block_size=64)
    assert window_block_size(FLASH, 4096, sizes, get_release("0.24.0")) == 64
    assert window_block_size(FLASH, 4096, sizes, get_release("0.26.0")) == 16
    assert window_block_size(FLASH, 4096, sizes, get_release("0.30.0")) == 64
    padded = BlockSizes(block_size=64, skip_page_padded=64 * 4096)
    flashinfer = AttentionBackend(name="FLASHINFER", kernel_block_sizes=(16, 32, 64), takes_multiples=False)
    assert window_block_size(flashinfer, 8192, padded, get_release("0.26.0")) == 32


def test_quantised_pages_grow_to_cover_unquantised_ones() -> None:
    """fp8 beside bf16: blocks of 32 tokens hold what 16 unquantised ones take."""
    sizes = align_skipped_layers(BlockSizes(block_size=16), 2048, 4096, FLASH)
    assert sizes == BlockSizes(block_size=32, skip_page_padded=32 * 2048)
    same = BlockSizes(block_size=16)
    assert align_skipped_layers(same, 4096, 4096, FLASH) is same


def test_backends_without_a_common_block_are_refused() -> None:
    odd = AttentionBackend(name="B12X", kernel_block_sizes=(), takes_multiples=False)
    assert default_block_size([odd, FLASH], None, get_release("0.33.0")) == 16
    with pytest.raises(RefusedError, match="no supported KV cache block size"):
        default_block_size(
            [FLASH, _Never(name="NEVER", kernel_block_sizes=(48,))], None, get_release("0.33.0")
        )


class _Never(AttentionBackend):
    def supports_block_size(self, block_size: int) -> bool:
        return False
