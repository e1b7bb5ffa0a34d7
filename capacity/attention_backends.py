"""Which attention backend vLLM selects for each kind of layer on CUDA, and the block sizes of its kernels.

Source: `_get_backend_priorities` and `get_attn_backend_cls` (platforms/cuda.py:83-520, 0.26.0),
`get_attn_backend` (v1/attention/selector.py). What each backend accepts is in `attention_rules.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    AttentionKind,
    Mixer,
    MultiHeadLatentAttention,
    StateSpace,
    StateSpaceKind,
)
from vllm_capacity.attention_query import (
    CROSS,
    DECODER,
    ENCODER_ONLY,
    AttentionQuery,
    flash_attention_version,
)
from vllm_capacity.attention_rules import BACKENDS, invalid_reasons, kernel_blocks, supported_layouts
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.releases.release import Release

STATE_BACKENDS = {
    StateSpaceKind.MAMBA1: "MAMBA1_ATTN",
    StateSpaceKind.MAMBA2: "MAMBA2_ATTN",
    StateSpaceKind.GATED_DELTA_NET: "GDN_ATTN",
    StateSpaceKind.KIMI_DELTA: "GDN_ATTN",
    StateSpaceKind.SHORT_CONV: "SHORT_CONV_ATTN",
    StateSpaceKind.LINEAR_ATTENTION: "LINEAR_ATTN",
}
MM_PREFIX_MODEL_TYPES = frozenset({"bagel", "gemma3", "molmo2", "paligemma"})
"""Models whose image tokens see each other (transformers_utils/model_arch_config_convertor.py:
is_mm_prefix_lm).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackend:
    """A selected backend. Block sizes are in tokens.

    `kernel_block_sizes` are what its kernels read; with `takes_multiples` any multiple counts as one kernel
    block. `fa_version` is FlashAttention's where it runs. `layouts` are the KV cache layouts it reads (None:
    any).
    """

    name: str
    kernel_block_sizes: tuple[int, ...] = ()
    takes_multiples: bool = True
    is_ssm: bool = False
    fa_version: int | None = None
    layouts: tuple[str, ...] | None = None

    def supports_block_size(self, block_size: int) -> bool:
        sizes = self.kernel_block_sizes
        return not sizes or any(block_size % size == 0 for size in sizes)

    def preferred_block_size(self, default: int) -> int:
        """`get_preferred_block_size` (v1/attention/backend.py:195-203): the default if it is a multiple of
        a kernel block.
        """
        if not self.kernel_block_sizes or self.supports_block_size(default):
            return default
        return min(self.kernel_block_sizes)

    @property
    def smallest_block(self) -> int:
        return min(self.kernel_block_sizes, default=1)


@lru_cache(maxsize=256)
def select_backends(
    architecture: Architecture,
    kv_cache_dtype: str,
    dtype: str,
    device: Device,
    release: Release,
    *,
    block_size: int | None = None,
    requested: str | None = None,
    parallel: ParallelConfig | None = None,
    config: ModelConfig | None = None,
    mm_prefix: bool | None = None,
) -> tuple[AttentionBackend, ...]:
    """The backends of all layers, in order of first use, each once; `mm_prefix` None is what the config says.

    `block_size` is the user's. Raises RefusedError with vLLM's sentence where the requested backend, or every
    one, is invalid; InputError for a backend that is not modelled.
    """
    parallel = parallel or ParallelConfig()
    mixers: dict[Mixer, int] = {}
    for group in architecture.layers:
        for mixer in group.mixers:
            mixers[mixer] = min(group.indices[0] if group.indices else 0, mixers.get(mixer, 1 << 62))
    selected: dict[str, AttentionBackend] = {}
    prefix = is_mm_prefix(config) if mm_prefix is None else mm_prefix
    for mixer in sorted(mixers, key=lambda m: mixers[m]):
        for backend in layer_backends(
            mixer, kv_cache_dtype, dtype, device, release, block_size=block_size, requested=requested,
            parallel=parallel, mm_prefix=prefix, softcap=architecture.logits_soft_cap,
            float32_state=_float32_state(architecture),
        ):  # fmt: skip
            selected.setdefault(backend.name, backend)
    return tuple(selected.values())


def is_mm_prefix(
    config: ModelConfig | None, args: EngineArgs | None = None, release: Release | None = None
) -> bool:
    """Whether image tokens attend to each other, which only some backends can do.

    `is_mm_prefix_lm` and Gemma4ModelArchConfigConvertor, transformers_utils/model_arch_config_convertor.py (0.26.0).
    """
    if config is None or config.vision is None:
        return False
    if (
        args is not None
        and release is not None
        and release.has("mm_prefix_follows_flags")
        and _text_only(config, args)
    ):
        return False
    if config.model_type.startswith("gemma4"):
        return bool(config.get("use_bidirectional_attention") == "vision")
    asked = config.root.get("is_mm_prefix_lm")
    return bool(asked) if asked is not None else config.model_type in MM_PREFIX_MODEL_TYPES


def _text_only(config: ModelConfig, args: EngineArgs) -> bool:
    """`_supports_multimodal_inputs`, config/model.py (0.27.0): every modality of the model is limited to 0."""
    if args.other("language_model_only"):
        return True
    limits = args.other("limit_mm_per_prompt", {})
    wanted = {"image"} | ({"video"} if config.model_type.startswith("gemma4") else set())
    wanted |= {"audio"} if config.audio else set()
    counts = [limits.get(name) if isinstance(limits, Mapping) else None for name in wanted]
    return all((count.get("count") if isinstance(count, Mapping) else count) == 0 for count in counts)


def _float32_state(architecture: Architecture) -> bool:
    mixers = (mixer for group in architecture.layers for mixer in group.mixers)
    return any(isinstance(mixer, StateSpace) and mixer.ssm_dtype == "float32" for mixer in mixers)


@lru_cache(maxsize=512)
def layer_backends(
    mixer: Mixer,
    kv_cache_dtype: str,
    dtype: str,
    device: Device,
    release: Release,
    *,
    block_size: int | None = None,
    requested: str | None = None,
    parallel: ParallelConfig | None = None,
    mm_prefix: bool = False,
    softcap: bool = False,
    float32_state: bool = False,
) -> tuple[AttentionBackend, ...]:
    """The backend of one layer, after that of its indexer where it has one (vLLM builds the indexer
    first).
    """
    parallel = parallel or ParallelConfig()
    if isinstance(mixer, StateSpace):
        return (AttentionBackend(name=STATE_BACKENDS[mixer.kind], is_ssm=True),)
    if isinstance(mixer, MultiHeadLatentAttention) and mixer.compression is not None:
        return _compressed_latent_backends(mixer, device, requested)
    if isinstance(mixer, Attention) and mixer.indexer is not None:
        return _block_sparse_backends(device, kv_cache_dtype, requested)
    query = attention_query(
        mixer, kv_cache_dtype, dtype, parallel, block_size=block_size, mm_prefix=mm_prefix, softcap=softcap,
        float32_state=float32_state,
    )  # fmt: skip
    backend = _selected(query, device, release, requested)
    if isinstance(mixer, MultiHeadLatentAttention) and mixer.indexer is not None:
        indexer = AttentionBackend(
            name="DEEPSEEK_V32_INDEXER", kernel_block_sizes=(64,), takes_multiples=False
        )
        return (indexer, backend)
    return (backend,)


def _selected(
    query: AttentionQuery, device: Device, release: Release, requested: str | None
) -> AttentionBackend:
    name = _select(query, device, release, requested)
    sizes, multiples = kernel_blocks(name, query, device, release)
    version = flash_attention_version(query, device, release) if name.startswith("FLASH_ATTN") else None
    layouts = supported_layouts(name, query, device, release)
    return AttentionBackend(
        name=name, kernel_block_sizes=sizes, takes_multiples=multiples, fa_version=version, layouts=layouts
    )


def _block_sparse_backends(
    device: Device, kv_cache_dtype: str, requested: str | None
) -> tuple[AttentionBackend, ...]:
    """MiniMax-M3's own backends, blocks of 128 tokens (models/minimax_m3/common/sparse_attention.py, 0.33.0)."""
    if (
        device.compute_capability[0] != 9
        or kv_cache_dtype not in ("auto", "bfloat16")
        or requested is not None
    ):
        raise InputError(
            "MiniMax-M3's block-sparse attention is modelled on Hopper with --kv-cache-dtype auto and vLLM's own"
            " backend only"
        )
    return tuple(
        AttentionBackend(name=name, kernel_block_sizes=(128,), takes_multiples=False)
        for name in ("MINIMAX_M3_SPARSE_INDEXER", "MINIMAX_M3_SPARSE")
    )


def _compressed_latent_backends(
    mixer: MultiHeadLatentAttention, device: Device, requested: str | None
) -> tuple[AttentionBackend, ...]:
    """DeepSeek V4's own backends; blocks of 256 tokens (models/deepseek_v4/sparse_mla.py:60, nvidia/model.py:545-568,
    0.33.0). The main one comes last.
    """
    if requested not in (None, "FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4"):
        raise InputError(f"--attention-backend {requested} with compressed latent attention is not modelled")
    main = "FLASHINFER_MLA_SPARSE_DSV4" if device.compute_capability[0] == 12 else "FLASHMLA_SPARSE_DSV4"
    assert mixer.compression is not None
    names = ["DEEPSEEK_SPARSE_SWA"]
    if mixer.indexer is not None:
        names.append("DEEPSEEK_V4_INDEXER")
    if mixer.compression.ratio > 1:
        names += ["CompressorBackend", main]
    # indexer pages lie beside the latents' in each block (v1/attention/backends/mla/indexer.py:349-357)
    return tuple(
        AttentionBackend(
            name=name, kernel_block_sizes=(256,), takes_multiples=False,
            layouts=("BLHNC", "BLNHC") if name == "DEEPSEEK_V4_INDEXER" else None,
        )
        for name in names
    )  # fmt: skip


def attention_query(
    mixer: Attention | MultiHeadLatentAttention,
    kv_cache_dtype: str,
    dtype: str,
    parallel: ParallelConfig,
    *,
    block_size: int | None = None,
    mm_prefix: bool = False,
    softcap: bool = False,
    float32_state: bool = False,
) -> AttentionQuery:
    """What a layer asks of a backend, with heads per rank."""
    if isinstance(mixer, MultiHeadLatentAttention):
        indexer = mixer.indexer
        size = mixer.kv_lora_rank + mixer.qk_rope_head_dim
        return AttentionQuery(
            head_size=size,
            head_size_v=size,
            num_heads=max(1, mixer.num_heads // parallel.tp),
            num_kv_heads=1,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            block_size=block_size,
            use_mla=True,
            use_sparse=indexer is not None or mixer.shared_top_k > 0,
            top_k=indexer.top_k if indexer else mixer.shared_top_k,
            qk_nope_head_dim=mixer.qk_nope_head_dim,
            qk_rope_head_dim=mixer.qk_rope_head_dim,
            kv_lora_rank=mixer.kv_lora_rank,
            dcp=parallel.dcp,
            pcp=parallel.pcp,
            float32_state=float32_state,
        )
    kinds = {
        AttentionKind.DECODER: DECODER,
        AttentionKind.ENCODER_ONLY: ENCODER_ONLY,
        AttentionKind.CROSS: CROSS,
    }
    return AttentionQuery(
        head_size=mixer.head_size,
        head_size_v=mixer.head_size_v,
        num_heads=max(1, mixer.num_heads // parallel.tp),
        num_kv_heads=kv_heads_per_rank(mixer.num_kv_heads, parallel.tp),
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        has_sink=mixer.has_sinks,
        sliding_window=mixer.sliding_window is not None,
        mm_prefix=mm_prefix,
        softcap=softcap,
        attn_type=kinds[mixer.kind],
        dcp=parallel.dcp,
        pcp=parallel.pcp,
        float32_state=float32_state,
    )


def kv_heads_per_rank(total: int, tp: int) -> int:
    """Heads are divided, or replicated where there are fewer than ranks (config/model.py:1328-1339)."""
    return max(1, total // tp)


def _select(query: AttentionQuery, device: Device, release: Release, requested: str | None) -> str:
    if not query.use_mla and query.head_size != query.head_size_v:
        return _select_diffkv(query, device, release, requested)
    if requested is not None:
        if requested not in BACKENDS:
            known = ", ".join(sorted(BACKENDS))
            raise InputError(f"--attention-backend {requested} is not modelled; choose one of {known}")
        if reasons := invalid_reasons(requested, query, device, release):
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Selected backend AttentionBackendEnum.{requested} is not valid for this configuration. "
                f"Reason: {reasons}",
            )
        return requested
    rejected = {}
    for name in backend_priorities(query, device, release):
        reasons = invalid_reasons(name, query, device, release)
        if not reasons:
            return name
        rejected[name] = reasons
    listed = ", ".join(f"{name}: [{', '.join(reasons)}]" for name, reasons in rejected.items())
    raise RefusedError(
        Reason.UNSUPPORTED_BY_RELEASE,
        f"No valid attention backend found for cuda with head_size={query.head_size}, dtype={query.dtype}, "
        f"kv_cache_dtype={query.kv_cache_dtype}, block_size={query.block_size}, use_mla={query.use_mla}, "
        f"has_sink={query.has_sink}, use_sparse={query.use_sparse}. Reasons: {{{listed}}}.",
    )


def _select_diffkv(query: AttentionQuery, device: Device, release: Release, requested: str | None) -> str:
    """Models with value heads of another size choose for themselves
    (model_executor/models/mimo_v2.py:295-320).
    """
    if requested is not None and requested.endswith("_DIFFKV"):
        return requested
    flash = flash_attention_version(query, device, release) in (3, 4)
    return "FLASH_ATTN_DIFFKV" if flash or not release.has("triton_diffkv") else "TRITON_ATTN_DIFFKV"


def backend_priorities(query: AttentionQuery, device: Device, release: Release) -> tuple[str, ...]:
    """vLLM's order of preference (platforms/cuda.py:83-163), without what a plain installation lacks."""
    major = device.compute_capability[0]
    if query.use_mla:
        return _mla_priorities(query, major, release)
    rest = ["TRITON_ATTN", "FLEX_ATTENTION"]
    if release.has("kv_dtypes_0_20"):
        rest.append("TURBOQUANT")
    composite: list[str] = []
    if query.mm_prefix and release.has("mm_prefix_composites"):
        composite = ["TRITON_FLASHINFER"] if major == 10 else ["TRITON_FLASH_ATTN"] if major == 9 else []
    first = ["FLASHINFER", "FLASH_ATTN"] if major == 10 else ["FLASH_ATTN", "FLASHINFER"]
    return (*composite, *first, *rest)


def _mla_priorities(query: AttentionQuery, major: int, release: Release) -> tuple[str, ...]:
    if major == 10:
        few = query.num_heads <= 16
        sparse = ["FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE"]
        if query.quantised_kv or few:
            sparse.reverse()
        if few and not query.quantised_kv and release.has("fa4_sparse_mla"):
            sparse.insert(0, "FLASH_ATTN_MLA_SPARSE_FA4")
        return ("FLASHINFER_MLA", "CUTLASS_MLA", "FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA", *sparse)
    if major == 12 and release.has("sm120_mla_order"):
        return ("TRITON_MLA", "FLASHINFER_MLA_SPARSE_SM120")
    sparse = ["FLASHMLA_SPARSE"]
    if release.has("flash_attn_mla_sparse"):
        sparse.insert(0, "FLASH_ATTN_MLA_SPARSE")
    if release.has("flashinfer_mla_sparse_sm90"):
        sparse.insert(0 if query.head_size == 512 else len(sparse), "FLASHINFER_MLA_SPARSE_SM90")
    return ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA", *sparse)
