"""Memory that libraries keep from model loading on, inside PyTorch's allocator."""

from __future__ import annotations

from vllm_capacity.context import RankContext
from vllm_capacity.units import MIB
from vllm_capacity.weights.quantisation.base import QuantisationMethod

DEEP_GEMM_WORKSPACE = 32 * MIB
"""cuBLASLt workspace of DeepGEMM's device runtime (csrc/jit/device_runtime.hpp, kCublasLtWorkspaceSize)."""

QUANTISED_QUERY_BACKENDS = frozenset({"FLASH_ATTN", "TRITON_ATTN"})
"""Backends that take an fp8 query on CUDA (`supports_quant_query_input`); FlashInfer does on SM10x only."""


def deep_gemm_workspace(ctx: RankContext, method: QuantisationMethod) -> int:
    """Bytes that DeepGEMM keeps from loading on: 32 MiB as soon as vLLM builds a QuantFP8, else 0.

    QuantFP8's constructor asks `is_deep_gemm_e8m0_used`, which imports DeepGEMM and calls its `set_pdl`: the
    runtime comes to life and allocates. MLA layers build one whatever the KV dtype; attention layers with an
    fp8 cache do so for the query. Sources (0.26.0): layers/quantization/input_quant_fp8.py:68,
    utils/deep_gemm.py:87-105 and 160-250, layers/attention/attention.py:469-490, mla_attention.py:568-577.
    Seen in a run: Llama-3.1-8B takes 33,554,432 B more with an fp8 cache than without (H200, 0.26.0). DeepGEMM 2.8.1
    (0.33.0) allocates nothing then: run v0.33-deepseek-v2-lite-eager.
    """
    release = ctx.release
    if release.has("deep_gemm_without_workspace") or not release.has("deep_gemm_workspace_at_load"):
        return 0
    if not _supported(ctx):
        return 0
    return DEEP_GEMM_WORKSPACE if method.uses_quant_fp8 or _mla(ctx) or _fp8_query(ctx) else 0


def deep_gemm_workspace_is_measured(ctx: RankContext) -> bool:
    """True for the DeepGEMMs that recorded runs saw (2.5.0 and 2.8.1); those between may allocate later."""
    return not ctx.release.has("deep_gemm_2_6") or ctx.release.has("deep_gemm_without_workspace")


def _supported(ctx: RankContext) -> bool:
    """`support_deep_gemm`, platforms/cuda.py:665-671, and the switches of the environment."""
    if ctx.engine.environment.get("VLLM_USE_DEEP_GEMM", "1") in ("0", "false", "False"):
        return False
    if ctx.engine.environment.get("DG_USE_TEMP_CUBLASLT_WORKSPACE", "0") not in ("", "0"):
        return False
    return ctx.device.vendor == "nvidia" and ctx.device.compute_capability[0] in (9, 10, 12)


def _mla(ctx: RankContext) -> bool:
    return ctx.architecture.use_mla and ctx.engine.environment.get("VLLM_MLA_DISABLE", "0") in ("", "0")


def _fp8_query(ctx: RankContext) -> bool:
    dtype = ctx.engine.kv_cache_dtype
    if not dtype.startswith("fp8") or dtype.endswith("per_token_head") or ctx.architecture.use_mla:
        return False
    return any(
        name in QUANTISED_QUERY_BACKENDS or (name == "FLASHINFER" and ctx.device.compute_capability[0] == 10)
        for name in ctx.engine.attention_backends
    )
