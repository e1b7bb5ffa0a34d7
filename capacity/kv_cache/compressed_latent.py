"""The caches of DeepSeek V4's latent attention: a window of latents, compressed latents, an indexer's keys, and the
compressors' states.

Source: vllm/models/deepseek_v4/attention.py (get_kv_cache_spec of DeepseekV4Attention and DeepseekV4IndexerCache),
compressor.py (CompressorStateCache), v1/attention/backends/mla/sparse_swa.py (DeepseekV4SWACache); 0.26.0 and 0.33.0.
"""

from __future__ import annotations

from vllm_capacity.architecture.modules import MultiHeadLatentAttention
from vllm_capacity.engine import EngineConfig
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.kv_cache.specs import KVCacheSpec, MLAAttentionSpec, SlidingWindowMLASpec, kv_quant_mode
from vllm_capacity.releases.release import Release

WINDOW, INDEXER, INDEXER_STATE, COMPRESSED, STATE = (
    "window", "indexer", "indexer_state", "compressed", "compressor_state"
)  # fmt: skip

WINDOW_BLOCK = 64
ALIGNMENT = 576
STATE_BLOCKS = {4: 4, 128: 8}
"""Tokens in a block of compressor states, by ratio."""


def cache_parts(mixer: MultiHeadLatentAttention) -> tuple[str, ...]:
    """The caches of one layer, in the order in which its class registers them."""
    assert mixer.compression is not None
    indexer = (INDEXER, INDEXER_STATE) if mixer.indexer is not None else ()
    compressed = (COMPRESSED, STATE) if mixer.compression.ratio > 1 else ()
    return (*indexer, WINDOW, *compressed)


def uses_fp4_indexer(engine: EngineConfig) -> bool:
    """`--attention-config '{"use_fp4_indexer_cache": true}'`."""
    given = engine.args.other("attention_config", {})
    return bool(isinstance(given, dict) and given.get("use_fp4_indexer_cache"))


def compressed_latent_spec(
    mixer: MultiHeadLatentAttention,
    part: str,
    dtype: str,
    block_size: int,
    release: Release,
    *,
    fp4_indexer: bool = False,
) -> KVCacheSpec:
    """The spec of one cache. Raises RefusedError where the cache dtype is none of fp8."""
    assert mixer.compression is not None
    ratio, head = mixer.compression.ratio, mixer.kv_lora_rank + mixer.qk_rope_head_dim
    cache_dtype = _fp8_layout(dtype, release)
    if part == WINDOW:
        return SlidingWindowMLASpec(
            block_size=WINDOW_BLOCK, num_kv_heads=1, head_size=head, dtype="uint8",
            sliding_window=mixer.compression.sliding_window, cache_dtype_str=cache_dtype, alignment=ALIGNMENT,
            model_version="deepseek_v4", kv_quant_mode=kv_quant_mode(cache_dtype),
        )  # fmt: skip
    if part == COMPRESSED:
        return MLAAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=head, dtype="uint8", tokens_per_state=ratio,
            cache_dtype_str=cache_dtype, alignment=ALIGNMENT, model_version="deepseek_v4",
            kv_quant_mode=kv_quant_mode(cache_dtype), state_content_bytes=584,
        )  # fmt: skip
    if part == STATE:
        return _state(2 * head * (2 if ratio == 4 else 1), ratio)
    assert mixer.indexer is not None
    keys = mixer.indexer.head_size
    if part == INDEXER_STATE:
        return _state(2 * keys * (2 if ratio == 4 else 1), ratio)
    # fp8 keys and one fp32 scale per 128, or packed fp4 and one byte per 32
    stored = keys // 2 + keys // 32 if fp4_indexer else keys + keys // 128 * 4
    return MLAAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=stored, dtype="uint8", tokens_per_state=ratio,
        alignment=ALIGNMENT,
    )  # fmt: skip


def _state(size: int, ratio: int) -> SlidingWindowMLASpec:
    """Key and score sums in fp32, twice as many for overlapping windows (ratio 4)."""
    if ratio not in STATE_BLOCKS:
        raise RefusedError(Reason.UNSUPPORTED_BY_RELEASE, f"Invalid compress ratio: {ratio}")
    return SlidingWindowMLASpec(
        block_size=STATE_BLOCKS[ratio], num_kv_heads=1, head_size=size, dtype="float32",
        sliding_window=(2 if ratio == 4 else 1) * ratio, alignment=ALIGNMENT,
    )  # fmt: skip


def _fp8_layout(dtype: str, release: Release) -> str:
    """`_resolve_dsv4_kv_cache_dtype` (attention.py:68-98 in 0.26.0, :94-129 in 0.33.0)."""
    if dtype == "auto" and release.has("deepseek_v4_auto_kv_is_fp8"):
        dtype = "fp8"
    if not dtype.startswith("fp8"):
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got {dtype}; pass --kv-cache-dtype fp8",
        )
    if dtype not in ("fp8", "fp8_e4m3", "fp8_ds_mla"):
        raise InputError(f"--kv-cache-dtype {dtype} with DeepSeek V4 is not modelled; use fp8")
    return "fp8_ds_mla"
