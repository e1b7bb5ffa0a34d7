"""The caches of a DeepSeek-V4 layer, by hand from vllm/models/deepseek_v4/attention.py and compressor.py (0.33.0)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from vllm_capacity.architecture.modules import Compression, Indexer, MultiHeadLatentAttention
from vllm_capacity.errors import InputError, RefusedError
from vllm_capacity.kv_cache.compressed_latent import cache_parts, compressed_latent_spec
from vllm_capacity.kv_cache.specs import KVCacheSpec, MLAAttentionSpec, SlidingWindowMLASpec
from vllm_capacity.releases import get_release


def mixer(ratio: int, indexer: int = 0) -> MultiHeadLatentAttention:
    return MultiHeadLatentAttention(
        num_heads=64, q_lora_rank=1024, kv_lora_rank=448, qk_nope_head_dim=448, qk_rope_head_dim=64, v_head_dim=512,
        indexer=Indexer(num_heads=64, head_size=indexer, top_k=512) if indexer else None,
        compression=Compression(sliding_window=128, ratio=ratio),
    )  # fmt: skip


def caches(layer: MultiHeadLatentAttention, *, fp4: bool = False) -> Mapping[str, KVCacheSpec]:
    return {
        part: compressed_latent_spec(layer, part, "fp8", 256, get_release("0.33.0"), fp4_indexer=fp4)
        for part in cache_parts(layer)
    }


def test_a_layer_has_the_caches_of_its_ratio() -> None:
    """Compressor from ratio 2 on (attention.py:369), indexer where the config has one; in the order of registration."""
    assert cache_parts(mixer(1)) == ("window",)
    assert cache_parts(mixer(2)) == cache_parts(mixer(128)) == ("window", "compressed", "compressor_state")
    assert cache_parts(mixer(4, indexer=128)) == (
        "indexer", "indexer_state", "window", "compressed", "compressor_state",
    )  # fmt: skip


@pytest.mark.parametrize(("ratio", "overlap", "block"), [(4, 2, 4), (128, 1, 8)])
def test_states_hold_sums_of_keys_and_scores_over_their_window(ratio: int, overlap: int, block: int) -> None:
    """compressor.py: coff = 1 + (ratio == 4); window coff x ratio, 2 x coff x head size numbers in fp32."""
    found = caches(mixer(ratio, indexer=128))
    for part, head in (("compressor_state", 512), ("indexer_state", 128)):
        state = found[part]
        assert isinstance(state, SlidingWindowMLASpec)
        assert state.sliding_window == overlap * ratio
        assert (state.block_size, state.num_kv_heads, state.head_size) == (block, 1, 2 * overlap * head)
        assert (state.dtype, state.alignment) == ("float32", 576)


def test_latents_take_584_bytes_for_every_state() -> None:
    """448 fp8 elements, 64 of bfloat16 and 8 scales; pages are multiples of 576."""
    found = caches(mixer(4, indexer=128))
    window, compressed = found["window"], found["compressed"]
    assert isinstance(window, SlidingWindowMLASpec)
    assert isinstance(compressed, MLAAttentionSpec)
    assert (window.block_size, window.sliding_window, window.num_kv_heads, window.head_size) == (
        64,
        128,
        1,
        512,
    )
    assert (compressed.num_states, compressed.num_kv_heads, compressed.head_size) == (64, 1, 512)
    assert window.unpadded_page_size_bytes == compressed.unpadded_page_size_bytes == 64 * 584
    assert window.page_size_bytes == compressed.page_size_bytes == 65 * 576


@pytest.mark.parametrize(
    ("keys", "fp8", "fp4"),
    [(128, 128 + 4, 64 + 4), (256, 256 + 8, 128 + 8), (192, 192 + 4, 96 + 6), (127, 127, 63 + 3)],
)
def test_keys_of_the_indexer_have_scales(keys: int, fp8: int, fp4: int) -> None:
    """fp8: an fp32 scale per 128 keys (attention.py:1028); fp4: a byte of scale per 32 (:1023)."""
    for wanted, four_bits in ((fp8, False), (fp4, True)):
        indexer = caches(mixer(4, indexer=keys), fp4=four_bits)["indexer"]
        assert isinstance(indexer, MLAAttentionSpec)
        assert (indexer.head_size, type(indexer.head_size), indexer.num_states) == (wanted, int, 64)


def test_a_ratio_without_a_block_size_is_refused() -> None:
    """compressor.py:173."""
    with pytest.raises(RefusedError, match="Invalid compress ratio: 8"):
        caches(mixer(8))


@pytest.mark.parametrize("release", ["0.26.0", "0.33.0"])
def test_only_fp8_is_stored(release: str) -> None:
    """`_resolve_dsv4_kv_cache_dtype`: 'auto' is fp8 from 0.30.0 on, an error before."""

    def spec(dtype: str) -> KVCacheSpec:
        return compressed_latent_spec(mixer(1), "window", dtype, 256, get_release(release))

    assert spec("fp8") == spec("fp8_e4m3") == spec("fp8_ds_mla")
    if release == "0.33.0":
        assert spec("auto") == spec("fp8")
    else:
        with pytest.raises(RefusedError, match="only supports fp8 kv-cache, got auto"):
            spec("auto")
    with pytest.raises(RefusedError, match="only supports fp8 kv-cache, got bfloat16"):
        spec("bfloat16")
    with pytest.raises(InputError, match="fp8_e5m2 with DeepSeek V4 is not modelled"):
        spec("fp8_e5m2")
