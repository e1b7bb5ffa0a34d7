"""What vLLM's CUDA backends for latent attention (MLA) accept.

Source: the `supports_*` methods of vllm/v1/attention/backends/mla/*.py (0.26.0; changes by release features).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vllm_capacity.attention_query import FP8_KV, PLAIN_KV, BackendRule, Case, block, majors, plain_kv, yes


def _mla_head(case: Case) -> bool:
    return case.query.head_size in ((320, 512, 576) if case.release.has("mla_head_512") else (320, 576))


def _mla_kv(case: Case) -> Iterable[str]:
    return PLAIN_KV | FP8_KV


def _flashinfer_mla_reason(case: Case) -> str | None:
    size = case.query.qk_nope_head_dim
    if size not in (64, 128, 192):
        return f"FlashInfer MLA kernel requires qk_nope_head_dim in [64, 128, 192], but got {size}"
    return None


def _flashinfer_sparse_reason(case: Case) -> str | None:
    query = case.query
    if query.kv_cache_dtype == "fp8_ds_mla":
        return "FLASHINFER_MLA_SPARSE SM10 does not support fp8_ds_mla kv-cache dtype"
    if query.qk_rope_head_dim == 0 and case.release.has("mla_head_512"):
        fits = query.qk_nope_head_dim == 256 and query.kv_lora_rank == 512
        return (
            None
            if fits
            else "FlashInfer native no-rope MLA requires qk_nope_head_dim=256 and kv_lora_rank=512"
        )
    if query.qk_nope_head_dim not in (128, 192):
        return (
            "FlashInfer MLA Sparse kernel requires qk_nope_head_dim in [128, 192], "
            f"but got {query.qk_nope_head_dim}"
        )
    return None


def _flashinfer_sparse_head(case: Case) -> bool:
    return case.query.head_size in ((512, 576) if case.release.has("mla_head_512") else (576,))


def _flash_sparse_reason(case: Case) -> str | None:
    if case.query.kv_cache_dtype not in PLAIN_KV:
        return "FlashAttention MLA Sparse currently supports only FP16/BF16 KV cache"
    return "FlashAttention MLA Sparse does not support DCP for now" if case.query.dcp > 1 else None


def _fa4_sparse_reason(case: Case) -> str | None:
    query = case.query
    if query.top_k % 128 or not query.top_k:
        return f"FA4 sparse MLA requires index_topk % 128 == 0, got {query.top_k}"
    if (query.kv_lora_rank, query.qk_rope_head_dim) != (512, 64):
        return "FA4 sparse MLA requires (kv_lora_rank, qk_rope_head_dim) == (512, 64)"
    counts = (8, 16, 32, 64) if query.dcp > 1 else (8, 16, 32, 64, 128)
    if query.num_heads * query.dcp not in counts:
        return f"FA4 sparse MLA requires {counts} gathered query heads"
    return _flashinfer_sparse_reason(case)


def _flashmla_sparse_kv(case: Case) -> Iterable[str]:
    kinds = {"auto", "bfloat16", "fp8_ds_mla", "fp8"}
    return kinds | {"nvfp4_ds_mla"} if case.release.has("kv_dtypes_0_30") and case.major == 10 else kinds


def _flashmla_sparse_head(case: Case) -> bool:
    if case.query.head_size == 512:
        return case.release.has("flashmla_sparse_head_512") or case.release.has("flashmla_sparse_nope")
    return case.query.head_size == 576


def _flashmla_sparse_reason(case: Case) -> str | None:
    query = case.query
    if query.head_size != 512 or not case.release.has("flashmla_sparse_nope"):
        return None
    kinds = PLAIN_KV | {"fp8_ds_mla"} if case.release.has("sparse_mla_any_block") else PLAIN_KV
    if query.kv_cache_dtype not in kinds or case.major != 9:
        return (
            "FLASHMLA_SPARSE supports head_size 512 only with bf16 kv-cache on SM90 (NoPE), got "
            f"kv_cache_dtype={query.kv_cache_dtype}"
        )
    if query.qk_rope_head_dim:
        return "FLASHMLA_SPARSE supports head_size 512 only for rope-free (NoPE) models"
    return None


def _sm90_sparse_reason(case: Case) -> str | None:
    if case.query.kv_lora_rank != 512:
        return "FLASHINFER_MLA_SPARSE_SM90 requires kv_lora_rank=512"
    return None


def _sparse_blocks(old: tuple[int, ...], new: int) -> Callable[[Case], tuple[int, ...]]:
    return lambda case: (new,) if case.release.has("sparse_mla_any_block") else old


def _sparse_any(case: Case) -> bool:
    return case.release.has("sparse_mla_any_block")


def _sixteen(case: Case) -> tuple[int, ...]:
    return (16,)


LATENT_BACKENDS: dict[str, BackendRule] = {
    "FLASH_ATTN_MLA": BackendRule(
        kv_cache_dtypes=plain_kv,
        block_sizes=_sixteen,
        multiples=yes,
        head_size=_mla_head,
        mla=True,
        capability=majors(9),
    ),
    "FLASHMLA": BackendRule(
        kv_cache_dtypes=_mla_kv,
        block_sizes=block(64),
        head_size=_mla_head,
        mla=True,
        capability=majors(9, 10),
        combination=lambda c: None if c.major == 9 else "FlashMLA Dense is only supported on Hopper devices.",
    ),
    "FLASHINFER_MLA": BackendRule(
        kv_cache_dtypes=_mla_kv,
        block_sizes=block(32, 64),
        head_size=_mla_head,
        mla=True,
        capability=majors(10),
        combination=_flashinfer_mla_reason,
    ),
    "TRITON_MLA": BackendRule(
        kv_cache_dtypes=_mla_kv,
        block_sizes=_sixteen,
        multiples=yes,
        mla=True,
    ),
    "CUTLASS_MLA": BackendRule(
        kv_cache_dtypes=_mla_kv,
        block_sizes=block(128),
        head_size=_mla_head,
        mla=True,
        capability=majors(10),
    ),
    "FLASH_ATTN_MLA_SPARSE": BackendRule(
        kv_cache_dtypes=plain_kv,
        block_sizes=_sparse_blocks((64,), 64),
        multiples=_sparse_any,
        mla=True,
        sparse=True,
        capability=majors(9),
        combination=_flash_sparse_reason,
    ),
    "FLASH_ATTN_MLA_SPARSE_FA4": BackendRule(
        kv_cache_dtypes=lambda c: ("auto", "bfloat16"),
        block_sizes=block(64),
        multiples=yes,
        mla=True,
        sparse=True,
        dtypes=frozenset({"bfloat16"}),
        head_size=lambda c: c.query.head_size == 576,
        capability=majors(10),
        combination=_fa4_sparse_reason,
    ),
    "FLASHMLA_SPARSE": BackendRule(
        kv_cache_dtypes=_flashmla_sparse_kv,
        block_sizes=_sparse_blocks((64,), 64),
        mla=True,
        sparse=True,
        multiples=lambda c: _sparse_any(c) and not (c.query.quantised_kv and c.major == 10),
        dtypes=frozenset({"bfloat16"}),
        head_size=_flashmla_sparse_head,
        combination=_flashmla_sparse_reason,
        capability=majors(9, 10),
    ),
    "FLASHINFER_MLA_SPARSE": BackendRule(
        kv_cache_dtypes=_mla_kv,
        block_sizes=_sparse_blocks((32, 64), 32),
        multiples=_sparse_any,
        mla=True,
        sparse=True,
        head_size=_flashinfer_sparse_head,
        capability=majors(10),
        combination=_flashinfer_sparse_reason,
    ),
    "FLASHINFER_MLA_SPARSE_SM90": BackendRule(
        kv_cache_dtypes=lambda c: ("auto", "bfloat16", "fp8", "fp8_e4m3"),
        block_sizes=block(64),
        multiples=yes,
        mla=True,
        sparse=True,
        dtypes=frozenset({"bfloat16"}),
        capability=majors(9),
        head_size=lambda c: c.query.head_size in (512, 576),
        combination=_sm90_sparse_reason,
        layouts=lambda c: ("LBHNC",),
    ),
    "FLASHINFER_MLA_SPARSE_SM120": BackendRule(
        kv_cache_dtypes=lambda c: ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"),
        block_sizes=_sparse_blocks((64, 256), 64),
        multiples=_sparse_any,
        mla=True,
        sparse=True,
        dtypes=frozenset({"bfloat16"}),
        head_size=_flashinfer_sparse_head,
        capability=majors(12),
    ),
}
