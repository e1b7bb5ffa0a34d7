"""Shapes and dtypes of one layer's recurrent state on one rank.

Source: `MambaStateShapeCalculator`, `MambaStateDtypeCalculator`
(vllm/model_executor/layers/mamba/mamba_utils.py, 0.26.0). Convolution states are [length, channels], as vLLM
stores them by default.
"""

from __future__ import annotations

from vllm_capacity.architecture.modules import StateSpace, StateSpaceKind
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.releases.release import Release

Shapes = tuple[tuple[int, ...], ...]

_NAMES = {"half": "float16", "float": "float32"}


def _divide(value: int, tp: int, what: str) -> int:
    if value % tp:
        raise RefusedError(
            Reason.INVALID_LAYOUT, f"{value} is not divisible by {tp} ({what} over tensor-parallel ranks)"
        )
    return value // tp


def state_shapes(mixer: StateSpace, tp: int, release: Release, *, speculative_tokens: int = 0) -> Shapes:
    """One shape per state tensor, convolution first. Raises RefusedError where tp does not divide a
    dimension.
    """
    length = mixer.conv_kernel - 1
    if mixer.kind is StateSpaceKind.MAMBA1:
        channels = _divide(mixer.inner_size, tp, "inner size")
        return (length, channels), (channels, mixer.state_size)
    if mixer.kind is StateSpaceKind.MAMBA2:
        # Groups are replicated where a rank's heads would otherwise miss theirs.
        groups = mixer.n_groups if mixer.n_groups % tp == 0 else tp
        channels = _divide(mixer.inner_size + 2 * groups * mixer.state_size, tp, "convolution channels")
        heads = _divide(mixer.num_heads, tp, "heads")
        return (length + speculative_tokens, channels), (heads, mixer.head_dim, mixer.state_size)
    if mixer.kind is StateSpaceKind.GATED_DELTA_NET:
        channels = 2 * mixer.key_head_dim * mixer.num_key_heads + mixer.value_head_dim * mixer.num_value_heads
        heads = _divide(mixer.num_value_heads, tp, "value heads")
        conv = (length + speculative_tokens, _divide(channels, tp, "convolution channels"))
        return conv, (heads, mixer.value_head_dim, mixer.key_head_dim)
    if mixer.kind is StateSpaceKind.KIMI_DELTA:
        return _kimi_delta(mixer, tp, release, speculative_tokens)
    if mixer.kind is StateSpaceKind.SHORT_CONV:
        extra = speculative_tokens if release.has("short_conv_speculative_states") else 0
        return ((length + extra, _divide(mixer.inner_size, tp, "convolution channels")),)
    if mixer.kind is StateSpaceKind.LINEAR_ATTENTION:
        return ((mixer.num_heads // tp, mixer.head_dim, mixer.head_dim),)
    raise InputError(f"state-space layers of kind {mixer.kind} are not modelled")


def _kimi_delta(mixer: StateSpace, tp: int, release: Release, speculative_tokens: int) -> Shapes:
    values = mixer.num_heads * mixer.head_dim
    keys = (mixer.num_key_heads or mixer.num_heads) * (mixer.key_head_dim or mixer.head_dim)
    recurrent = (_divide(mixer.num_heads, tp, "heads"), mixer.head_dim, mixer.head_dim)
    extra = speculative_tokens if release.has("kda_speculative_states") else 0
    length = mixer.conv_kernel - 1 + extra
    if release.has("kda_one_convolution"):
        return (length, _divide(values + 2 * keys, tp, "convolution channels")), recurrent
    key = (length, _divide(keys, tp, "convolution channels"))
    return (length, _divide(values, tp, "convolution channels")), key, key, recurrent


def state_dtypes(
    mixer: StateSpace,
    dtype: str,
    release: Release,
    *,
    cache_dtype: str = "auto",
    ssm_cache_dtype: str = "auto",
) -> tuple[str, ...]:
    """torch dtypes of the state tensors; `cache_dtype` and `ssm_cache_dtype` are --mamba-cache-dtype and
    --mamba-ssm-cache-dtype.
    """
    conv = dtype if cache_dtype == "auto" else _NAMES.get(cache_dtype, cache_dtype)
    if mixer.kind in (StateSpaceKind.SHORT_CONV, StateSpaceKind.LINEAR_ATTENTION):
        return (conv,)
    if mixer.kind is StateSpaceKind.KIMI_DELTA:
        asked = ssm_cache_dtype != "auto" and release.has("kda_state_dtype_flag")
        recurrent = _NAMES.get(ssm_cache_dtype, ssm_cache_dtype) if asked else "float32"
        return (conv, recurrent) if release.has("kda_one_convolution") else (conv, conv, conv, recurrent)
    if ssm_cache_dtype != "auto":
        return conv, _NAMES.get(ssm_cache_dtype, ssm_cache_dtype)
    return conv, mixer.ssm_dtype or conv


def state_bytes(shapes: Shapes, dtypes: tuple[str, ...]) -> int:
    """Bytes of one sequence's state in one layer."""
    from math import prod

    from vllm_capacity.units import DTYPE_BYTES

    unknown = [dtype for dtype in dtypes if dtype not in DTYPE_BYTES]
    if unknown:
        raise InputError(f"{unknown[0]!r:.60} is no dtype of a state-space layer's state (mamba_ssm_dtype)")
    return sum(prod(shape) * DTYPE_BYTES[dtype] for shape, dtype in zip(shapes, dtypes, strict=True))
