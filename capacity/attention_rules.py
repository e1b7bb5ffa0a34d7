"""What each CUDA attention backend of vLLM accepts: the checks behind backend selection.

Source: `AttentionBackend.validate_configuration` (v1/attention/backend.py, 0.26.0), the `supports_*` methods
of v1/attention/backends/*.py, and v1/attention/backends/fa_utils.py. Assumed of the installation: FlashInfer
(a pinned dependency) with its downloadable kernels; no tokenspeed-mla package; no batch-invariant mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from vllm_capacity.device import Device
from vllm_capacity.kv_cache.specs import KVQuantMode, kv_quant_mode
from vllm_capacity.releases.release import Release

HALF = frozenset({"float16", "bfloat16"})
FLOATS = HALF | {"float32"}
PLAIN_KV = frozenset({"auto", "float16", "bfloat16"})
FP8_KV = frozenset({"fp8", "fp8_e4m3"})
DECODER, ENCODER_ONLY, CROSS = "decoder", "encoder_only", "encoder_decoder"
ALL_TYPES = frozenset({DECODER, "encoder", ENCODER_ONLY, CROSS})
FA4_HD256_PAGE = 128
"""Tokens per page of FlashAttention 4's kernel for heads of 256 (0.29.0 on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionQuery:
    """What one kind of layer asks of a backend. Heads are per rank; `block_size` is the user's or None."""

    head_size: int
    head_size_v: int
    num_heads: int
    num_kv_heads: int
    dtype: str
    kv_cache_dtype: str
    block_size: int | None = None
    use_mla: bool = False
    use_sparse: bool = False
    has_sink: bool = False
    mm_prefix: bool = False
    softcap: bool = False
    attn_type: str = DECODER
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    kv_lora_rank: int = 0
    top_k: int = 0
    dcp: int = 1
    pcp: int = 1
    float32_state: bool = False

    @property
    def quantised_kv(self) -> bool:
        return kv_quant_mode(self.kv_cache_dtype) is not KVQuantMode.NONE


@dataclass(frozen=True, slots=True)
class _Case:
    query: AttentionQuery
    device: Device
    release: Release

    @property
    def major(self) -> int:
        return self.device.compute_capability[0]

    def flash_version(self, **changes: bool) -> int | None:
        return flash_attention_version(self.query, self.device, self.release, **changes)


Check = Callable[[_Case], bool]
Reason = Callable[[_Case], "str | None"]


def _yes(case: _Case) -> bool:
    return True


def _no(case: _Case) -> bool:
    return False


def _nothing(case: _Case) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRule:
    """One backend. `block_sizes` gives the kernel block sizes and whether multiples of them are served
    whole.
    """

    kv_cache_dtypes: Callable[[_Case], Iterable[str]]
    block_sizes: Callable[[_Case], tuple[int, ...]]
    multiples: Check = _no
    dtypes: frozenset[str] = HALF
    head_size: Check = _yes
    capability: Check = _yes
    sink: Check = _no
    mm_prefix: Check = _no
    mla: bool = False
    sparse: bool = False
    attn_types: frozenset[str] = frozenset({DECODER})
    combination: Reason = _nothing
    layouts: Callable[[_Case], tuple[str, ...] | None] = field(default=lambda case: None)


def invalid_reasons(name: str, query: AttentionQuery, device: Device, release: Release) -> list[str]:
    """Why backend `name` does not serve the query; empty where it does. The words are vLLM's."""
    rule, case = BACKENDS[name], _Case(query, device, release)
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
    rule, case = BACKENDS[name], _Case(query, device, release)
    return rule.block_sizes(case), rule.multiples(case)


def supported_layouts(
    name: str, query: AttentionQuery, device: Device, release: Release
) -> tuple[str, ...] | None:
    """KV cache layouts that a backend's kernels read, most preferred first (0.29.0 on); None: any."""
    return BACKENDS[name].layouts(_Case(query, device, release))


# -- FlashAttention versions ------------------------------------------------------------------------------------------
def flash_attention_version(
    query: AttentionQuery, device: Device, release: Release, *, any_head: bool = False, hd256: bool = True
) -> int | None:
    """2, 3 or 4, or None where no FlashAttention runs (`get_flash_attn_version`, fa_utils.py).

    `any_head` asks without a head size, as some checks of vLLM do; `hd256` says if the caller supports
    FlashAttention 4's kernel for heads of 256 on Blackwell (0.29.0 on).
    """
    major = device.compute_capability[0]
    version = 3 if major == 9 else 4 if major == 10 else 2
    if major < 8:
        return None
    if any_head:
        return version
    size, differs = query.head_size, query.head_size != query.head_size_v
    if version == 3 and (
        (size > 256 and release.has("flash_attention_large_heads_sm90"))
        or (query.has_sink and differs and release.has("flash_attention_4_sinks"))
    ):
        return 4
    if version == 4 and size > 128 and not _fa4_head(query, release, hd256):
        return 2
    return version


def _fa4_head(query: AttentionQuery, release: Release, hd256: bool) -> bool:
    """Head sizes above 128 that FlashAttention 4 serves on Blackwell."""
    if release.has("fa4_head_192_by_value_size"):
        if query.head_size == 192:
            return query.head_size_v == 128
        if query.head_size != 256 or query.head_size_v != 256:
            return False
        if release.has("fa4_hd256_kernel"):
            block = query.block_size or FA4_HD256_PAGE
            blocked = query.has_sink or query.softcap or query.quantised_kv or query.mm_prefix
            return hd256 and not blocked and block % FA4_HD256_PAGE == 0
        return release.has("fa4_hd256_first")
    return query.head_size == 192


def _fa4_runs(case: _Case) -> bool:
    return case.major in (9, 10, 11)


# -- multi-head attention -----------------------------------------------------------------------------------------------
def _flash_head(case: _Case) -> bool:
    size = case.query.head_size
    if size % 8:
        return False
    large = case.release.has("flash_attention_large_heads") and _fa4_runs(case)
    return size <= (512 if large else 256)


def _flash_kv(case: _Case) -> Iterable[str]:
    release = case.release
    hopper = case.flash_version(any_head=True) == 3
    if release.has("fa4_fp8_kv"):
        good = hopper or (case.flash_version(any_head=True) == 4 and case.major == 10)
        return PLAIN_KV | FP8_KV if good else PLAIN_KV
    if release.has("flash_attention_fp8_listed"):
        return PLAIN_KV | FP8_KV if hopper else PLAIN_KV
    query = case.query
    return PLAIN_KV | {query.kv_cache_dtype} if hopper and query.quantised_kv else PLAIN_KV


def _flash_combination(case: _Case) -> str | None:
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


def _flash_blocks(case: _Case) -> tuple[int, ...]:
    if case.query.float32_state and not case.release.has("flash_attention_any_block"):
        return (16, 32, 64)
    return (_flash_kernel_page(case) or 16,)


def _flash_kernel_page(case: _Case) -> int | None:
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


def _flash_multiples(case: _Case) -> bool:
    return len(_flash_blocks(case)) == 1 and _flash_kernel_page(case) is None


def _flash_sink(case: _Case) -> bool:
    version = case.flash_version(any_head=True)
    return version == 3 or (version == 4 and case.release.has("flash_attention_4_sinks"))


def _flash_diffkv(case: _Case) -> bool:
    return case.query.head_size != case.query.head_size_v and case.flash_version() in (3, 4)


def _flashinfer_kv(case: _Case) -> Iterable[str]:
    kinds = PLAIN_KV | FP8_KV | {"fp8_e5m2"}
    release = case.release
    if not release.has("flashinfer_nvfp4"):
        return kinds
    blackwell = case.major == 10 or not release.has("flashinfer_nvfp4_sm100_only")
    if blackwell:
        return kinds | ({"nvfp4", "nvfp4_4over6"} if release.has("backend_packs_pages") else {"nvfp4"})
    return kinds | {"nvfp4"} if release.has("flashinfer_nvfp4_fa2") and case.major in (8, 9, 12) else kinds


def _flashinfer_combination(case: _Case) -> str | None:
    query = case.query
    if query.kv_cache_dtype.startswith("nvfp4") and case.major in (8, 9, 12):
        if query.head_size == 64:
            return "fa2 prefill misreads an NVFP4 KV cache at head_size 64"
        if query.has_sink:
            return "the sink prefill wrapper cannot read an NVFP4 KV cache"
    return None


def _flashinfer_blocks(case: _Case) -> tuple[int, ...]:
    query = case.query
    grouped = query.num_kv_heads > 0 and query.num_heads // query.num_kv_heads > 1
    if grouped and case.major == 10 and case.release.has("flashinfer_large_pages"):
        return (16, 32, 64, 128, 256, 512, 1024)
    return (16, 32, 64)


def _flashinfer_sink(case: _Case) -> bool:
    if case.major == 10:
        return True
    if case.major == 12:
        return case.release.has("flashinfer_sinks_sm120")
    return case.device.compute_capability == (9, 0) and case.release.has("flashinfer_sinks_sm90")


def _flashinfer_head(case: _Case) -> bool:
    sizes = {64, 128, 256} | ({512} if case.release.has("flashinfer_head_512") else set())
    return case.query.head_size in sizes


def _flashinfer_capability(case: _Case) -> bool:
    least = (8, 0) if case.release.has("flashinfer_from_sm80") else (7, 5)
    return least <= case.device.compute_capability <= (12, 1)


def _triton_kv(case: _Case) -> Iterable[str]:
    kinds = PLAIN_KV | FP8_KV | {"fp8_e5m2"}
    if case.release.has("kv_dtypes_0_20"):
        kinds |= {"int8_per_token_head", "fp8_per_token_head"}
    return kinds | {"int4_per_token_head"} if case.release.has("kv_dtypes_0_25") else kinds


def _sixteen(case: _Case) -> tuple[int, ...]:
    return (16,)


def _composite(other: str, major: int) -> Reason:
    """Triton for image tokens, another backend for the rest (0.30.0 on, mm_prefix only)."""

    def reason(case: _Case) -> str | None:
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
    from dataclasses import replace

    return replace(query, mm_prefix=False)


# -- latent attention -----------------------------------------------------------------------------------------------------
def _mla_head(case: _Case) -> bool:
    return case.query.head_size in ((320, 512, 576) if case.release.has("mla_head_512") else (320, 576))


def _mla_kv(case: _Case) -> Iterable[str]:
    return PLAIN_KV | FP8_KV


def _plain_kv(case: _Case) -> Iterable[str]:
    return PLAIN_KV


def _majors(*majors: int) -> Check:
    return lambda case: case.major in majors


def _flashinfer_mla_reason(case: _Case) -> str | None:
    size = case.query.qk_nope_head_dim
    if size not in (64, 128, 192):
        return f"FlashInfer MLA kernel requires qk_nope_head_dim in [64, 128, 192], but got {size}"
    return None


def _flashinfer_sparse_reason(case: _Case) -> str | None:
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


def _flash_sparse_reason(case: _Case) -> str | None:
    if case.query.kv_cache_dtype not in PLAIN_KV:
        return "FlashAttention MLA Sparse currently supports only FP16/BF16 KV cache"
    return "FlashAttention MLA Sparse does not support DCP for now" if case.query.dcp > 1 else None


def _fa4_sparse_reason(case: _Case) -> str | None:
    query = case.query
    if query.top_k % 128 or not query.top_k:
        return f"FA4 sparse MLA requires index_topk % 128 == 0, got {query.top_k}"
    if (query.kv_lora_rank, query.qk_rope_head_dim) != (512, 64):
        return "FA4 sparse MLA requires (kv_lora_rank, qk_rope_head_dim) == (512, 64)"
    counts = (8, 16, 32, 64) if query.dcp > 1 else (8, 16, 32, 64, 128)
    if query.num_heads * query.dcp not in counts:
        return f"FA4 sparse MLA requires {counts} gathered query heads"
    return _flashinfer_sparse_reason(case)


def _flashmla_sparse_kv(case: _Case) -> Iterable[str]:
    kinds = {"auto", "bfloat16", "fp8_ds_mla", "fp8"}
    return kinds | {"nvfp4_ds_mla"} if case.release.has("kv_dtypes_0_30") and case.major == 10 else kinds


def _flashmla_sparse_head(case: _Case) -> bool:
    if case.query.head_size == 512:
        nope = case.query.qk_rope_head_dim == 0 and case.major == 9
        return nope and case.release.has("flashmla_sparse_nope")
    return case.query.head_size == 576


def _sm90_sparse_reason(case: _Case) -> str | None:
    if case.query.kv_lora_rank != 512:
        return "FLASHINFER_MLA_SPARSE_SM90 requires kv_lora_rank=512"
    return None


def _block(*sizes: int) -> Callable[[_Case], tuple[int, ...]]:
    return lambda case: sizes


def _sparse_blocks(old: tuple[int, ...], new: int) -> Callable[[_Case], tuple[int, ...]]:
    return lambda case: (new,) if case.release.has("sparse_mla_any_block") else old


def _sparse_any(case: _Case) -> bool:
    return case.release.has("sparse_mla_any_block")


def _blackwell_layouts(case: _Case) -> tuple[str, ...] | None:
    return ("LBHNC", "BLHNC") if case.major == 10 else None


BACKENDS: dict[str, BackendRule] = {
    "FLASH_ATTN": BackendRule(
        kv_cache_dtypes=_flash_kv, block_sizes=_flash_blocks, multiples=_flash_multiples, head_size=_flash_head,
        capability=lambda c: c.major >= 8, sink=_flash_sink, attn_types=ALL_TYPES, combination=_flash_combination,
        mm_prefix=lambda c: c.release.has("flash_attention_mm_prefix") and _fa4_runs(c),
    ),
    "FLASH_ATTN_DIFFKV": BackendRule(
        kv_cache_dtypes=_flash_kv, block_sizes=_sixteen, multiples=_yes, head_size=_flash_diffkv, sink=_flash_sink,
        capability=lambda c: c.major >= 8, attn_types=ALL_TYPES,
    ),
    "TRITON_ATTN_DIFFKV": BackendRule(
        kv_cache_dtypes=_plain_kv, block_sizes=_sixteen, multiples=_yes, sink=_yes, dtypes=FLOATS,
    ),
    "FLASHINFER": BackendRule(
        kv_cache_dtypes=_flashinfer_kv, block_sizes=_flashinfer_blocks, head_size=_flashinfer_head,
        capability=_flashinfer_capability, sink=_flashinfer_sink, combination=_flashinfer_combination,
        layouts=_blackwell_layouts,
    ),
    "TRITON_ATTN": BackendRule(
        kv_cache_dtypes=_triton_kv, block_sizes=_sixteen, multiples=_yes, dtypes=FLOATS, sink=_yes, mm_prefix=_yes,
        head_size=lambda c: c.query.head_size >= 32, attn_types=ALL_TYPES,
    ),
    "FLEX_ATTENTION": BackendRule(
        kv_cache_dtypes=_plain_kv, multiples=_yes, dtypes=FLOATS, mm_prefix=_yes,
        block_sizes=lambda c: (16,) if c.release.has("flex_attention_block_16") else (1,),
        attn_types=frozenset({DECODER, ENCODER_ONLY}), layouts=lambda c: ("LBNHC",),
    ),
    "TURBOQUANT": BackendRule(
        kv_cache_dtypes=lambda c: (
            "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
        ),
        block_sizes=_block(16, 32, 64, 128), layouts=lambda c: ("LBNHC",),
    ),
    "TRITON_FLASH_ATTN": BackendRule(
        kv_cache_dtypes=_triton_kv, block_sizes=_sixteen, multiples=_yes, mm_prefix=_yes,
        head_size=lambda c: c.query.head_size in (256, 512), combination=_composite("FLASH_ATTN", 9),
    ),
    "TRITON_FLASHINFER": BackendRule(
        kv_cache_dtypes=_triton_kv, block_sizes=_block(64), mm_prefix=_yes,
        head_size=lambda c: c.query.head_size in (256, 512), combination=_composite("FLASHINFER", 10),
        layouts=_blackwell_layouts,
    ),
    "FLASH_ATTN_MLA": BackendRule(
        kv_cache_dtypes=_plain_kv, block_sizes=_sixteen, multiples=_yes, head_size=_mla_head, mla=True,
        capability=_majors(9),
    ),
    "FLASHMLA": BackendRule(
        kv_cache_dtypes=_mla_kv, block_sizes=_block(64), head_size=_mla_head, mla=True, capability=_majors(9, 10),
        combination=lambda c: None if c.major == 9 else "FlashMLA Dense is only supported on Hopper devices.",
    ),
    "FLASHINFER_MLA": BackendRule(
        kv_cache_dtypes=_mla_kv, block_sizes=_block(32, 64), head_size=_mla_head, mla=True, capability=_majors(10),
        combination=_flashinfer_mla_reason,
    ),
    "TRITON_MLA": BackendRule(
        kv_cache_dtypes=_mla_kv, block_sizes=_sixteen, multiples=_yes, mla=True,
    ),
    "CUTLASS_MLA": BackendRule(
        kv_cache_dtypes=_mla_kv, block_sizes=_block(128), head_size=_mla_head, mla=True, capability=_majors(10),
    ),
    "FLASH_ATTN_MLA_SPARSE": BackendRule(
        kv_cache_dtypes=_plain_kv, block_sizes=_sparse_blocks((64,), 64), multiples=_sparse_any, mla=True, sparse=True,
        capability=_majors(9), combination=_flash_sparse_reason,
    ),
    "FLASH_ATTN_MLA_SPARSE_FA4": BackendRule(
        kv_cache_dtypes=lambda c: ("auto", "bfloat16"), block_sizes=_block(64), multiples=_yes, mla=True, sparse=True,
        dtypes=frozenset({"bfloat16"}), head_size=lambda c: c.query.head_size == 576, capability=_majors(10),
        combination=_fa4_sparse_reason,
    ),
    "FLASHMLA_SPARSE": BackendRule(
        kv_cache_dtypes=_flashmla_sparse_kv, block_sizes=_sparse_blocks((64,), 64), mla=True, sparse=True,
        multiples=lambda c: _sparse_any(c) and not (c.query.quantised_kv and c.major == 10),
        dtypes=frozenset({"bfloat16"}), head_size=_flashmla_sparse_head, capability=_majors(9, 10),
    ),
    "FLASHINFER_MLA_SPARSE": BackendRule(
        kv_cache_dtypes=_mla_kv, block_sizes=_sparse_blocks((32, 64), 32), multiples=_sparse_any, mla=True, sparse=True,
        head_size=lambda c: c.query.head_size in ((512, 576) if c.release.has("mla_head_512") else (576,)),
        capability=_majors(10), combination=_flashinfer_sparse_reason,
    ),
    "FLASHINFER_MLA_SPARSE_SM90": BackendRule(
        kv_cache_dtypes=lambda c: ("auto", "bfloat16", "fp8", "fp8_e4m3"), block_sizes=_block(64), multiples=_yes,
        mla=True, sparse=True, dtypes=frozenset({"bfloat16"}), capability=_majors(9),
        head_size=lambda c: c.query.head_size in (512, 576), combination=_sm90_sparse_reason,
        layouts=lambda c: ("LBHNC",),
    ),
    "FLASHINFER_MLA_SPARSE_SM120": BackendRule(
        kv_cache_dtypes=lambda c: ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"),
        block_sizes=_sparse_blocks((64, 256), 64), multiples=_sparse_any, mla=True, sparse=True,
        dtypes=frozenset({"bfloat16"}), head_size=lambda c: c.query.head_size == 576, capability=_majors(12),
    ),
}  # fmt: skip
"""By vLLM's names. Kernel libraries that a plain installation lacks (tokenspeed, b12x, hpc) are left out."""
