"""Bytes that backends pack into a slot: TurboQuant's by `TurboQuantConfig.slot_size_aligned`
(vllm/model_executor/layers/quantization/turboquant/config.py, 0.26.0), the others by `customize_spec` (0.33.0).
"""

from __future__ import annotations

from math import ceil

import pytest
from vllm_capacity.kv_cache.cache_dtypes import packing, turboquant_slot
from vllm_capacity.kv_cache.specs import FullAttentionSpec, KVQuantMode
from vllm_capacity.releases import get_release

NEWEST, BEFORE_PACKING = get_release("0.33.0"), get_release("0.27.0")


@pytest.mark.parametrize(
    ("dtype", "key_bits", "value_bits", "norm"),
    [("turboquant_k8v4", 8, 4, 0), ("turboquant_4bit_nc", 4, 4, 2), ("turboquant_k3v4_nc", 3, 4, 2),
     ("turboquant_3bit_nc", 3, 3, 2)],
)  # fmt: skip
@pytest.mark.parametrize("head_size", [64, 80, 100, 104, 128, 129, 256])
def test_a_slot_of_turboquant(dtype: str, key_bits: int, value_bits: int, norm: int, head_size: int) -> None:
    """Bits of keys with a norm, bits of values with scale and zero; an even number of bytes."""
    size = ceil(head_size * key_bits / 8) + norm + ceil(head_size * value_bits / 8) + 4
    assert turboquant_slot(dtype, head_size) == size + size % 2
    assert packing("TURBOQUANT", dtype, head_size, head_size, 8, NEWEST) == {
        "state_content_bytes": size + size % 2
    }


def test_before_0_28_0_backends_pack_nothing() -> None:
    """`customize_spec` came with 0.28.0; TurboQuant had a spec of its own."""
    for dtype in ("turboquant_k8v4", "nvfp4", "int8_per_token_head"):
        assert packing("FLASHINFER", dtype, 128, 128, 8, BEFORE_PACKING) == {}


@pytest.mark.parametrize("dtype", ["nvfp4", "nvfp4_4over6"])
def test_four_bits_are_packed_by_flashinfer_alone(dtype: str) -> None:
    """`FlashInferBackend.customize_spec`: a slot for the keys and one for the values of each head."""
    slots = {"num_head_slots": 16, "state_content_bytes": 128 // 2 + 128 // 16}
    assert packing("FLASHINFER", dtype, 128, 128, 8, NEWEST) == slots
    assert packing("TRITON_FLASHINFER", dtype, 128, 128, 8, NEWEST) == slots
    assert packing("TRITON_ATTN", dtype, 128, 128, 8, NEWEST) == {}


@pytest.mark.parametrize(
    ("dtype", "keys_and_values"),
    [("int8_per_token_head", 128 + 96), ("fp8_per_token_head", 128 + 96), ("int4_per_token_head", 64 + 48)],
)
def test_scales_of_tokens_and_heads_stand_behind_keys_and_values(dtype: str, keys_and_values: int) -> None:
    """`TritonAttentionBackend.customize_spec`: two fp32 scales; heads of 128 keys and 96 values."""
    found = packing("TRITON_ATTN", dtype, 128, 96, 8, NEWEST)
    assert found == {"state_content_bytes": keys_and_values + 8}
    assert type(found["state_content_bytes"]) is int


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "fp8", "fp8_e5m2"])
def test_dense_pages_need_no_packing(dtype: str) -> None:
    assert packing("FLASHINFER", dtype, 128, 128, 8, NEWEST) == {}


def test_scales_of_four_bits_are_whole_bytes() -> None:
    """One fp8 scale per 16 elements, utils/torch_utils.py: `nvfp4_kv_cache_full_dim`."""
    spec = FullAttentionSpec(
        block_size=16, num_kv_heads=2, head_size=80, dtype="uint8", kv_quant_mode=KVQuantMode.NVFP4
    )
    assert (spec.page_size_bytes, type(spec.page_size_bytes)) == (16 * 2 * 2 * (40 + 5), int)
