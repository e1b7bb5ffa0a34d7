"""vLLM's own sentences where the KV cache does not fit, word for word by release.

Source: `_check_enough_kv_cache_memory` and `_auto_fit_max_model_len` (v1/core/kv_cache_utils.py:751-788 and
1969-1973, 0.26.0), `resolve_cudagraph_mode_and_sizes` (config/compilation.py, 0.26.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_capacity.errors import Reason
from vllm_capacity.frozen import dataclass
from vllm_capacity.releases.release import Release
from vllm_capacity.units import GIB

_DOCS = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why vLLM does not start. `stage` is the pipeline stage that refuses; bytes and tokens where they
    play a role.
    """

    reason: Reason
    message: str
    stage: int = 0
    needed_bytes: int = 0
    available_bytes: int = 0
    estimated_max_model_len: int = 0


def format_gib(n_bytes: int) -> str:
    """utils/mem_utils.py:30-31: two digits, trailing zeros dropped."""
    return f"{round(n_bytes / GIB, 2)}"


def missing_memory_refusal(available: int, stage: int, release: Release) -> Refusal:
    aside = ""
    if release.has("refusals_name_cpu"):
        aside = " (this flag also controls CPU memory reservation on the CPU backend, despite its name)"
    return Refusal(
        reason=Reason.NO_KV_MEMORY,
        message=(
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            f"initializing the engine{aside}. {_DOCS}"
        ),
        stage=stage,
        available_bytes=available,
    )


def memory_refusal(
    max_model_len: int, needed: int, available: int, estimate: int, stage: int, release: Release
) -> Refusal:
    model = "model's" if release.has("refusals_name_cpu") else "models's"
    aside = " (which also controls CPU memory on the CPU backend)" if release.has("refusals_name_cpu") else ""
    hint = (
        f"Based on the available memory, the estimated maximum model length is {estimate}. "
        if estimate > 0
        else ""
    )
    return Refusal(
        reason=Reason.ONE_REQUEST_DOES_NOT_FIT,
        message=(
            f"To serve at least one request with the {model} max seq len ({max_model_len}), "
            f"({format_gib(needed)} GiB KV cache is needed, which is larger than the available KV cache "
            f"memory ({format_gib(available)} GiB). {hint}Try increasing `gpu_memory_utilization`{aside} or "
            f"decreasing `max_model_len` when initializing the engine. {_DOCS}"
        ),
        stage=stage,
        needed_bytes=needed,
        available_bytes=available,
        estimated_max_model_len=estimate,
    )


def auto_fit_refusal(available: Sequence[int]) -> Refusal:
    least = min(available)
    return Refusal(
        reason=Reason.NO_KV_MEMORY if least <= 0 else Reason.ONE_REQUEST_DOES_NOT_FIT,
        message=(
            "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. "
            "Try increasing `gpu_memory_utilization`."
        ),
        stage=list(available).index(least),
        available_bytes=least,
    )


def state_blocks_refusal(max_num_seqs: int, num_blocks: int) -> Refusal:
    return Refusal(
        reason=Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS,
        message=(
            f"max_num_seqs ({max_num_seqs}) exceeds available Mamba cache blocks ({num_blocks}). Each decode "
            "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower "
            f"max_num_seqs to at most {num_blocks} or increase gpu_memory_utilization."
        ),
    )
