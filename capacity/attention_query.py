"""What attention layers ask of a backend, and the shape of a backend's rules.

Source: `AttentionBackend.validate_configuration` (vllm/v1/attention/backend.py, 0.26.0) and
`get_flash_attn_version` (v1/attention/backends/fa_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field

from vllm_capacity.device import Device
from vllm_capacity.frozen import dataclass
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
    sliding_window: bool = False
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
class Case:
    query: AttentionQuery
    device: Device
    release: Release

    @property
    def major(self) -> int:
        return self.device.compute_capability[0]

    def flash_version(self, **changes: bool) -> int | None:
        return flash_attention_version(self.query, self.device, self.release, **changes)


Check = Callable[[Case], bool]
Reason = Callable[[Case], "str | None"]


def yes(case: Case) -> bool:
    return True


def no(case: Case) -> bool:
    return False


def nothing(case: Case) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRule:
    """One backend. `block_sizes` gives the kernel block sizes and whether multiples of them are served
    whole.
    """

    kv_cache_dtypes: Callable[[Case], Iterable[str]]
    block_sizes: Callable[[Case], tuple[int, ...]]
    multiples: Check = no
    dtypes: frozenset[str] = HALF
    head_size: Check = yes
    capability: Check = yes
    sink: Check = no
    mm_prefix: Check = no
    sliding_window: bool = True
    mla: bool = False
    sparse: bool = False
    attn_types: frozenset[str] = frozenset({DECODER})
    combination: Reason = nothing
    layouts: Callable[[Case], tuple[str, ...] | None] = field(default=lambda case: None)


def plain_kv(case: Case) -> Iterable[str]:
    return PLAIN_KV


def majors(*majors: int) -> Check:
    return lambda case: case.major in majors


def block(*sizes: int) -> Callable[[Case], tuple[int, ...]]:
    return lambda case: sizes


def blackwell_layouts(case: Case) -> tuple[str, ...] | None:
    return ("LBHNC", "BLHNC") if case.major == 10 else None


def fa4_runs(case: Case) -> bool:
    return case.major in (9, 10, 11)


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
