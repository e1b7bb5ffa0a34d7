"""Which attention backends vLLM selects: the engine's side of `attention_backends.select_backends`."""

from __future__ import annotations

from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.attention_backends import AttentionBackend, is_mm_prefix, select_backends
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.facts import refuse
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.releases.release import Release


def requested_backend(args: EngineArgs, config: ModelConfig, device: Device, release: Release) -> str | None:
    """The backend asked for, or the one that the architecture asks for instead of the platform's order.

    `--attention-backend`, `--attention-config`; Gemma 4 with two head sizes: TRITON_ATTN where FlashAttention
    4 cannot run (models/config.py: Gemma4Config).
    """
    asked = args.attention_backend
    if asked is None:
        inside = args.other("attention_config", {})
        asked = inside.get("backend") if hasattr(inside, "get") else None
    if asked is not None:
        return None if str(asked).lower() == "auto" else str(asked).upper()
    if any(name.startswith("Gemma4") for name in config.architectures):
        sizes = {config.get("head_dim"), config.get("global_head_dim")} - {None}
        if len(sizes) > 1:
            largest = max(sizes)
            if release.has("gemma4_flash_attention_4"):
                fa4 = device.compute_capability[0] in (9, 10, 11)
                return None if fa4 and largest <= 512 else "TRITON_ATTN"
            return "TRITON_ATTN" if largest > 256 else None
    return None


def resolve_backends(
    args: EngineArgs,
    config: ModelConfig,
    architecture: Architecture,
    parallel: ParallelConfig,
    device: Device,
    release: Release,
    *,
    kv_cache_dtype: str,
    dtype: str,
) -> tuple[AttentionBackend, ...]:
    """In order of first use; () for a model without attention or state-space layers."""
    found = select_backends(
        architecture, kv_cache_dtype, dtype, device, release, block_size=args.block_size,
        requested=requested_backend(args, config, device, release), parallel=parallel, config=config,
        mm_prefix=is_mm_prefix(config, args, release),
    )  # fmt: skip
    for backend in found:
        _check_triton_cache(backend.name, kv_cache_dtype, device, release)
    sparse = any(backend.name == "FLASHMLA_SPARSE" for backend in found)
    if (
        sparse
        and parallel.dcp > 1
        and release.has("dcp_sparse_flashmla")
        and not kv_cache_dtype.startswith("fp8")
    ):
        raise refuse(
            "DCP for FlashMLA sparse requires an fp8_ds_mla kv-cache; the bf16 sparse path is not supported under DCP."
        )
    return found


def _check_triton_cache(name: str, kv_cache_dtype: str, device: Device, release: Release) -> None:
    """Raises RefusedError where the Triton backend that was selected has no such cache on the GPU.

    TritonAttentionImpl.__init__ (v1/attention/backends/triton_attn.py:517-539, 0.26.0), TritonMLAImpl.__init__
    (mla/triton_mla.py:183-207). Selection does not look at this, so vLLM refuses rather than take another backend.
    """
    latent = name == "TRITON_MLA"
    if device.vendor != "nvidia" or not (latent or name.startswith("TRITON_ATTN")):
        return
    if not release.has("triton_mla_kv_by_gpu" if latent else "triton_kv_by_gpu"):
        return
    capability = ".".join(str(part) for part in device.compute_capability)
    where = f"on {device.name} (compute capability {capability})"
    if kv_cache_dtype.startswith("fp8") and device.sm < 89:
        backend = "Triton MLA" if latent else "Triton attention"
        raise refuse(
            f"FP8 KV cache is not supported by the {backend} backend {where}; native FP8 (fp8e4nv) requires SM89+. "
            f"Re-run with --kv-cache-dtype {'float16' if device.sm < 80 else 'bfloat16'}.",
        )
    if kv_cache_dtype == "bfloat16" and device.sm < 80:
        by = " by the Triton MLA backend" if latent else ""
        raise refuse(
            f"bfloat16 KV cache is not supported{by} {where}; bfloat16 requires SM80+. "
            "Re-run with --kv-cache-dtype float16.",
        )
