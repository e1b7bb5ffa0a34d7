"""The KV cache block size in use: default, the user's, or aligned so that attention pages hold states.

Source: `Platform.update_block_size_for_backend`, `_align_hybrid_block_size`,
`_align_heterogeneous_kv_block_size` (vllm/platforms/interface.py:609-934, 0.26.0);
`HybridAttentionMambaModelConfig` (model_executor/models/config.py, 0.19.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from vllm_capacity.attention_backends import AttentionBackend
from vllm_capacity.errors import Reason, RefusedError
from vllm_capacity.frozen import dataclass
from vllm_capacity.releases.release import Release
from vllm_capacity.units import cdiv

DEFAULT_BLOCK_SIZE = 16
DEFAULT_STATE_CHUNK = 2048
"""Chunk of a state-space model that names none (config/model.py: get_mamba_chunk_size)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Block sizes in tokens, padded pages in bytes (None: not padded)."""

    block_size: int
    mamba_block_size: int | None = None
    mamba_page_padded: int | None = None
    skip_page_padded: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridState:
    """What alignment of a hybrid model needs. Bytes are per layer and rank.

    `token_bytes` is the attention page of one token, `state_bytes` the state of one sequence, `chunk_size`
    the state-space kernel's chunk, `checkpoint_alignment` the grid on which prefill checkpoints fall
    (0.33.0).
    """

    token_bytes: int
    state_bytes: int
    chunk_size: int
    use_mla: bool
    checkpoint_alignment: int


def default_block_size(backends: Sequence[AttentionBackend], user: int | None, release: Release) -> int:
    """The block size before any alignment: the user's, or one that the attention backends prefer.

    `backends` are those of attention layers in order; the first decides up to 0.30.0, all of them from 0.31.0
    on. Raises RefusedError where they share none.
    """
    if user is not None:
        return user
    backends = [backend for backend in backends if not backend.is_ssm]
    if not backends:
        return DEFAULT_BLOCK_SIZE
    if not release.has("block_size_of_all_backends") or len(backends) == 1:
        return backends[0].preferred_block_size(DEFAULT_BLOCK_SIZE)
    if all(backend.supports_block_size(DEFAULT_BLOCK_SIZE) for backend in backends):
        return DEFAULT_BLOCK_SIZE
    candidates = {1}
    for backend in backends:
        candidates = {lcm(size, own) for size in candidates for own in backend.kernel_block_sizes or (1,)}
    for size in sorted(candidates):
        if all(backend.supports_block_size(size) for backend in backends):
            return size
    listed = "; ".join(f"{backend.name}: {list(backend.kernel_block_sizes)}" for backend in backends)
    raise RefusedError(
        Reason.UNSUPPORTED_BY_RELEASE,
        f"The attention backends share no supported KV cache block size ({listed}).",
    )


def align_hybrid(
    block_size: int,
    hybrid: HybridState,
    backends: Sequence[AttentionBackend],
    release: Release,
    *,
    mamba_mode: str,
    max_model_len: int,
    user_mamba_block_size: int | None = None,
) -> BlockSizes:
    """Grow attention blocks until a page holds a state, then pad states to the page.

    Without prefix caching (mode 'none') a state's block spans `max_model_len`; 'align' and 'all' tie it to
    the blocks.
    """
    attention = [backend for backend in backends if not backend.is_ssm]
    mamba_block = user_mamba_block_size
    if mamba_block is None:
        mamba_block = block_size if mamba_mode != "none" else max_model_len
    if not hybrid.state_bytes or not attention:
        return BlockSizes(block_size=block_size, mamba_block_size=mamba_block)
    kernel = _kernel_alignment(block_size, hybrid, attention[0], release, mamba_mode)
    if mamba_mode == "all":
        chunk = lcm(user_mamba_block_size or hybrid.chunk_size or DEFAULT_STATE_CHUNK, kernel)
        aligned = chunk * cdiv(cdiv(hybrid.state_bytes, hybrid.token_bytes), chunk)
        mamba_block = aligned
    else:
        aligned = kernel * cdiv(hybrid.state_bytes, kernel * hybrid.token_bytes)
    if release.has("hybrid_block_lcm_of_backends"):
        shared = lcm(*(backend.smallest_block for backend in attention))
        aligned = shared * cdiv(aligned, shared)
    block_size = max(block_size, aligned)
    if mamba_mode == "align":
        mamba_block = block_size
    page = block_size * hybrid.token_bytes
    padded = page if page != hybrid.state_bytes else None
    return BlockSizes(block_size=block_size, mamba_block_size=mamba_block, mamba_page_padded=padded)


def _kernel_alignment(
    block_size: int, hybrid: HybridState, backend: AttentionBackend, release: Release, mamba_mode: str
) -> int:
    if not release.has("hybrid_block_by_backend"):
        if hybrid.use_mla:
            return 128 if backend.name == "CUTLASS_MLA" else 64
        return DEFAULT_BLOCK_SIZE
    kernel = max(backend.smallest_block, block_size)
    if hybrid.use_mla and release.has("hybrid_mla_block_128"):
        kernel = max(kernel, 128)
    if mamba_mode == "align":
        kernel = lcm(kernel, hybrid.checkpoint_alignment)
    return kernel


def align_skipped_layers(
    sizes: BlockSizes, token_bytes: int, skipped_token_bytes: int, backend: AttentionBackend
) -> BlockSizes:
    """Blocks whose quantised page covers a page of the layers that stay unquantised (0.25.0 on).

    `token_bytes` and `skipped_token_bytes` are the pages of one token with and without quantisation.
    """
    if skipped_token_bytes <= token_bytes:
        return sizes
    smallest = backend.smallest_block
    alignment = max(smallest, sizes.block_size)
    required = max(skipped_token_bytes * smallest, sizes.mamba_page_padded or 0)
    block_size = max(sizes.block_size, alignment * cdiv(required, alignment * token_bytes))
    shared = block_size * token_bytes
    return BlockSizes(
        block_size=block_size,
        mamba_block_size=sizes.mamba_block_size,
        mamba_page_padded=shared if sizes.mamba_page_padded is not None else None,
        skip_page_padded=shared,
    )


def window_block_size(
    backend: AttentionBackend, token_bytes: int, sizes: BlockSizes, release: Release
) -> int:
    """A sliding-window layer's own block (`_largest_kernel_block_within`, attention.py:95-121; 0.25.0 on).

    The smallest kernel block, or the largest that fits a given page: the padded one of unquantised layers,
    from 0.30.0 on else that of the main block size, to which multiples grow, too.
    """
    candidates = backend.kernel_block_sizes
    if not release.has("swa_own_block_size") or not candidates:
        return sizes.block_size
    budget = sizes.skip_page_padded
    if release.has("swa_takes_main_block"):
        budget = budget or token_bytes * sizes.block_size
        if backend.takes_multiples:
            most = budget // token_bytes
            candidates = tuple(max(size, most // size * size) for size in candidates)
    fitting = [size for size in candidates if budget and size * token_bytes <= budget]
    return max(fitting) if fitting else min(candidates)
