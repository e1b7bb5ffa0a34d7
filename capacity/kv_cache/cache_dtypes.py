"""How a cache dtype is stored: torch dtype, and the bytes that backends pack into a page."""

from __future__ import annotations

from typing import TypedDict

from vllm_capacity.errors import InputError
from vllm_capacity.kv_cache.specs import KVQuantMode, kv_quant_mode, nvfp4_dim
from vllm_capacity.releases.release import Release
from vllm_capacity.units import DTYPE_BYTES, cdiv

STORAGE = {
    "float16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "float": "float32",
    "fp8": "uint8",
    "fp8_e4m3": "uint8",
    "fp8_e5m2": "uint8",
    "fp8_inc": "float8_e4m3fn",
    "fp8_ds_mla": "uint8",
    "int8_per_token_head": "int8",
    "fp8_per_token_head": "uint8",
    "int4_per_token_head": "uint8",
    "nvfp4": "uint8",
    "nvfp4_4over6": "uint8",
    "nvfp4_ds_mla": "uint8",
    "turboquant_k8v4": "uint8",
    "turboquant_4bit_nc": "uint8",
    "turboquant_k3v4_nc": "uint8",
    "turboquant_3bit_nc": "uint8",
}
"""torch dtype of each cache dtype (utils/torch_utils.py:32-52, 0.26.0)."""

_TURBOQUANT = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
"""Bits of a key and a value element (layers/quantization/turboquant/config.py)."""


class Packing(TypedDict, total=False):
    """What a backend sets on a spec; empty where pages are dense."""

    state_content_bytes: int
    num_head_slots: int


def storage_dtype(cache_dtype: str, model_dtype: str) -> str:
    """torch dtype of the pages; 'auto' is the model's. Raises InputError for a dtype that is not modelled."""
    if cache_dtype == "auto":
        return model_dtype
    if cache_dtype not in STORAGE:
        raise InputError(
            f"--kv-cache-dtype {cache_dtype} is not modelled; choose one of {', '.join(STORAGE)}"
        )
    return STORAGE[cache_dtype]


def turboquant_slot(cache_dtype: str, head_size: int) -> int:
    """Bytes of K and V of one head and token (turboquant/config.py:127-174): a norm per key, scale and
    zero per value.
    """
    key_bits, value_bits = _TURBOQUANT[cache_dtype]
    key = head_size if key_bits == 8 else cdiv(head_size * key_bits, 8) + 2
    value = cdiv(head_size * value_bits, 8) + 4
    return (key + value + 1) // 2 * 2


def packing(
    backend: str, cache_dtype: str, head_size: int, head_size_v: int, num_kv_heads: int, release: Release
) -> Packing:
    """`customize_spec` of the backend (0.28.0 on)."""
    if not release.has("backend_packs_pages"):
        return {}
    if cache_dtype.startswith("turboquant_"):
        return {"state_content_bytes": turboquant_slot(cache_dtype, head_size)}
    mode = kv_quant_mode(cache_dtype)
    if mode is KVQuantMode.NVFP4 or cache_dtype == "nvfp4_4over6":
        if backend not in ("FLASHINFER", "TRITON_FLASHINFER"):
            return {}
        return {"num_head_slots": 2 * num_kv_heads, "state_content_bytes": nvfp4_dim(head_size)}
    if mode.is_per_token_head:
        half = 2 if mode is KVQuantMode.INT4_PER_TOKEN_HEAD else 1
        size = head_size // half + head_size_v // half
        return {"state_content_bytes": size * DTYPE_BYTES[STORAGE[cache_dtype]] + 8}
    return {}
