"""What each CUDA attention backend of vLLM accepts: the checks behind backend selection.

Source: the `supports_*` methods of vllm/v1/attention/backends/*.py (0.26.0; changes by release features).
Assumed of the installation: FlashInfer (a pinned dependency) with its downloadable kernels; no tokenspeed-mla
package; no batch-invariant mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vllm_capacity.attention_query import (
    ALL_TYPES,
    DECODER,
    ENCODER_ONLY,
    FA4_HD256_PAGE,
    FLOATS,
    FP8_KV,
    PLAIN_KV,
    AttentionQuery,
    BackendRule,
    Case,
    Reason,
    blackwell_layouts,
    block,
    fa4_runs,
    plain_kv,
    yes,
)
from vllm_capacity.device import Device
from vllm_capacity.latent_rules import LATENT_BACKENDS
from vllm_capacity.releases.release import Release


def _flash_head(case: Case) -> bool:
    size = case.query.head_size
    if size % 8:
        return False
    large = case.release.has("flash_attention_large_heads") and fa4_runs(case)
    return size <= (512 if large else 256)


def _flash_kv(case: Case) -> Iterable[str]:
    release = case.release
    hopper = case.flash_version(any_head=True) == 3
    if release.has("fa4_fp8_kv"):
        good = hopper or (case.flash_version(any_head=True) == 4 and case.major == 10)
        return PLAIN_KV | FP8_KV if good else PLAIN_KV
    if release.has("flash_attention_fp8_listed"):
        return PLAIN_KV | FP8_KV if hopper else PLAIN_KV
    query = case.query
    return PLAIN_KV | {query.kv_cache_dtype} if hopper and query.quantised_kv else PLAIN_KV


def _flash_combination(case: Case) -> str | None:
    query, release = case.query, case.release
    if query.has_sink and case.device.compute_capability < (9, 0):
        return "sink not supported on compute capability < 9.0"
    if query.quantised_kv and release.has("fa4_fp8_kv"):
        version = case.flash_version()
        hopper = version == 3 or (
            version == 4 and query.head_size == 512 and release.has("fa4_fp8_kv_hopper_512")
        )
        if query.mm_prefix and release.has("fa4_fp8_kv_hopper_512") and case.major == 9:
            return "SM90 FP8 KV with mm_prefix requires Triton"
        if not ((hopper and case.major == 9) or (version == 4 and case.major == 10)):
            if release.has("fa4_fp8_kv_hopper_512"):
                return "FP8 KV cache requires FA3 on SM90, FA4 with head_size=512 on SM90, or FA4 on SM100"
            return "FP8 KV cache requires FA3 on SM90 or FA4 on SM100"
    if query.mm_prefix and release.has("flash_attention_mm_prefix") and case.flash_version() != 4:
        return (
            "mm_prefix (PrefixLM bidirectional attention) requires FlashAttention v4, "
            "which does not resolve for this head_size"
        )
    return None


def _flash_blocks(case: Case) -> tuple[int, ...]:
    if case.query.float32_state and not case.release.has("flash_attention_any_block"):
        return (16, 32, 64)
    return (_flash_kernel_page(case) or 16,)


def _flash_kernel_page(case: Case) -> int | None:
    """A fixed kernel page: FlashAttention 4's with heads of 256 on Blackwell, or fp8 with heads of 512 on
    Hopper.
    """
    query = case.query
    if not case.release.has("fa4_hd256_kernel"):
        return None
    hopper_512 = case.major == 9 and query.kv_cache_dtype in FP8_KV and query.head_size == 512
    if hopper_512 and case.release.has("fa4_fp8_kv_hopper_512"):
        return 64
    hd256 = query.head_size == 256 == query.head_size_v and case.major in (10, 11)
    return FA4_HD256_PAGE if hd256 and case.flash_version() == 4 else None


def _flash_multiples(case: Case) -> bool:
    return len(_flash_blocks(case)) == 1 and _flash_kernel_page(case) is None


def _flash_sink(case: Case) -> bool:
    version = case.flash_version(any_head=True)
    return version == 3 or (version == 4 and case.release.has("flash_attention_4_sinks"))


def _flash_diffkv(case: Case) -> bool:
    return case.query.head_size != case.query.head_size_v and case.flash_version() in (3, 4)


def _flashinfer_kv(case: Case) -> Iterable[str]:
    kinds = PLAIN_KV | FP8_KV | {"fp8_e5m2"}
    release = case.release
    if not release.has("flashinfer_nvfp4"):
        return kinds
    blackwell = case.major == 10 or not release.has("flashinfer_nvfp4_sm100_only")
    if blackwell:
        return kinds | ({"nvfp4", "nvfp4_4over6"} if release.has("backend_packs_pages") else {"nvfp4"})
    return kinds | {"nvfp4"} if release.has("flashinfer_nvfp4_fa2") and case.major in (8, 9, 12) else kinds


def _flashinfer_combination(case: Case) -> str | None:
    query = case.query
    if not case.release.has("flashinfer_nvfp4_fa2"):
        return None
    if query.kv_cache_dtype.startswith("nvfp4") and case.major in (8, 9, 12):
        if query.head_size == 64:
            return "fa2 prefill misreads an NVFP4 KV cache at head_size 64"
        if query.has_sink:
            return "the sink prefill wrapper cannot read an NVFP4 KV cache"
    return None


def _flashinfer_blocks(case: Case) -> tuple[int, ...]:
    query = case.query
    grouped = query.num_kv_heads > 0 and query.num_heads // query.num_kv_heads > 1
    if grouped and case.major == 10 and case.release.has("flashinfer_large_pages"):
        return (16, 32, 64, 128, 256, 512, 1024)
    return (16, 32, 64)


def _flashinfer_sink(case: Case) -> bool:
    if case.major == 10:
        return True
    if case.major == 12:
        return case.release.has("flashinfer_sinks_sm120")
    return case.device.compute_capability == (9, 0) and case.release.has("flashinfer_sinks_sm90")


def _flashinfer_head(case: Case) -> bool:
    sizes = {64, 128, 256} | ({512} if case.release.has("flashinfer_head_512") else set())
    return case.query.head_size in sizes


def _flashinfer_capability(case: Case) -> bool:
    least = (8, 0) if case.release.has("flashinfer_from_sm80") else (7, 5)
    return least <= case.device.compute_capability <= (12, 1)


def _triton_kv(case: Case) -> Iterable[str]:
    kinds = PLAIN_KV | FP8_KV | {"fp8_e5m2"}
    if case.release.has("kv_dtypes_0_20"):
        kinds |= {"int8_per_token_head", "fp8_per_token_head"}
    return kinds | {"int4_per_token_head"} if case.release.has("kv_dtypes_0_25") else kinds


def _sixteen(case: Case) -> tuple[int, ...]:
    return (16,)


def _composite(other: str, major: int) -> Reason:
    """Triton for image tokens, another backend for the rest (0.30.0 on, mm_prefix only)."""

    def reason(case: Case) -> str | None:
        query = case.query
        plain = _without_mm_prefix(query)
        for name, asked in (("TRITON_ATTN", query), (other, plain)):
            if reasons := invalid_reasons(name, asked, case.device, case.release):
                return f"{name}: {reasons[0]}"
        if other == "FLASH_ATTN" and case.flash_version() not in (3, 4):
            return "causal route requires FlashAttention v3 or v4"
        return None if case.major == major else "compute capability not supported"

    return reason


def _without_mm_prefix(query: AttentionQuery) -> AttentionQuery:
    return replace(query, mm_prefix=False)


ATTENTION_BACKENDS: dict[str, BackendRule] = {
    "FLASH_ATTN": BackendRule(
        kv_cache_dtypes=_flash_kv,
        block_sizes=_flash_blocks,
        multiples=_flash_multiples,
        head_size=_flash_head,
        capability=lambda c: c.major >= 8,
        sink=_flash_sink,
        attn_types=ALL_TYPES,
        combination=_flash_combination,
        mm_prefix=lambda c: c.release.has("flash_attention_mm_prefix") and fa4_runs(c),
    ),
    "FLASH_ATTN_DIFFKV": BackendRule(
        kv_cache_dtypes=_flash_kv,
        block_sizes=_sixteen,
        multiples=yes,
        head_size=_flash_diffkv,
        sink=_flash_sink,
        capability=lambda c: c.major >= 8,
        attn_types=ALL_TYPES,
    ),
    "TRITON_ATTN_DIFFKV": BackendRule(
        kv_cache_dtypes=plain_kv,
        block_sizes=_sixteen,
        multiples=yes,
        sink=yes,
        dtypes=FLOATS,
    ),
    "FLASHINFER": BackendRule(
        kv_cache_dtypes=_flashinfer_kv,
        block_sizes=_flashinfer_blocks,
        head_size=_flashinfer_head,
        capability=_flashinfer_capability,
        sink=_flashinfer_sink,
        combination=_flashinfer_combination,
        layouts=blackwell_layouts,
    ),
    "TRITON_ATTN": BackendRule(
        kv_cache_dtypes=_triton_kv,
        block_sizes=_sixteen,
        multiples=yes,
        dtypes=FLOATS,
        sink=yes,
        mm_prefix=yes,
        head_size=lambda c: c.query.head_size >= 32,
        attn_types=ALL_TYPES,
    ),
    "FLEX_ATTENTION": BackendRule(
        kv_cache_dtypes=plain_kv,
        multiples=yes,
        dtypes=FLOATS,
        mm_prefix=yes,
        block_sizes=lambda c: (16,) if c.release.has("flex_attention_block_16") else (1,),
        attn_types=frozenset({DECODER, ENCODER_ONLY}),
        layouts=lambda c: ("LBNHC",),
    ),
    "TURBOQUANT": BackendRule(
        sliding_window=False,
        kv_cache_dtypes=lambda c: (
            "turboquant_k8v4",
            "turboquant_4bit_nc",
            "turboquant_k3v4_nc",
            "turboquant_3bit_nc",
        ),
        block_sizes=block(16, 32, 64, 128),
        layouts=lambda c: ("LBNHC",),
    ),
    "TRITON_FLASH_ATTN": BackendRule(
        kv_cache_dtypes=_triton_kv,
        block_sizes=_sixteen,
        multiples=yes,
        mm_prefix=yes,
        head_size=lambda c: c.query.head_size in (256, 512),
        combination=_composite("FLASH_ATTN", 9),
    ),
    "TRITON_FLASHINFER": BackendRule(
        kv_cache_dtypes=_triton_kv,
        block_sizes=block(64),
        mm_prefix=yes,
        head_size=lambda c: c.query.head_size in (256, 512),
        combination=_composite("FLASHINFER", 10),
        layouts=blackwell_layouts,
    ),
}
"""By vLLM's names. Kernel libraries that a plain installation lacks (tokenspeed, b12x, hpc) are left out."""
BACKENDS = ATTENTION_BACKENDS | LATENT_BACKENDS


def invalid_reasons(name: str, query: AttentionQuery, device: Device, release: Release) -> list[str]:
    """Why backend `name` does not serve the query; empty where it does. The words are vLLM's."""
    rule, case = BACKENDS[name], Case(query, device, release)
    sizes = rule.block_sizes(case)
    checks = (
        (rule.head_size(case), "head_size not supported"),
        (query.dtype in rule.dtypes, "dtype not supported"),
        (query.kv_cache_dtype in rule.kv_cache_dtypes(case), "kv_cache_dtype not supported"),
        (_serves(query.block_size, sizes), "block_size not supported"),
        (
            not query.mm_prefix or rule.mm_prefix(case),
            "partial multimodal token full attention not supported",
        ),
        (query.use_mla == rule.mla, "MLA not supported" if query.use_mla else "non-MLA not supported"),
        (not query.has_sink or rule.sink(case), "attention sinks not supported"),
        (query.use_sparse == rule.sparse, f"{'' if query.use_sparse else 'non-'}sparse not supported"),
        (rule.capability(case), "compute capability not supported"),
        (query.attn_type in rule.attn_types, f"attention type {query.attn_type} not supported"),
        (
            not query.sliding_window or rule.sliding_window or not release.has("backends_declare_windows"),
            "sliding window not supported",
        ),
    )
    reasons = [reason for good, reason in checks if not good]
    if (reason := rule.combination(case)) is not None:
        reasons.append(reason)
    return reasons


def _serves(block_size: int | None, sizes: tuple[int, ...]) -> bool:
    return block_size is None or not sizes or any(block_size % size == 0 for size in sizes)


def kernel_blocks(
    name: str, query: AttentionQuery, device: Device, release: Release
) -> tuple[tuple[int, ...], bool]:
    """Kernel block sizes of a backend in tokens, and whether it takes any multiple of them as one kernel
    block.
    """
    rule, case = BACKENDS[name], Case(query, device, release)
    return rule.block_sizes(case), rule.multiples(case)


def supported_layouts(
    name: str, query: AttentionQuery, device: Device, release: Release
) -> tuple[str, ...] | None:
    """KV cache layouts that a backend's kernels read, most preferred first (0.29.0 on); None: any."""
    return BACKENDS[name].layouts(Case(query, device, release))
