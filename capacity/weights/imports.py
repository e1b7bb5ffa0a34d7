"""Tensors that a library makes when it is imported, on the device if that happens while the model is built there."""

from __future__ import annotations

from vllm_capacity.context import RankContext

FLASHINFER_TABLE = 512
"""One block for sixteen fp32 values: flashinfer/quantization/fp4_quantization.py: _E2M1_VALUES (0.6.11 to 0.7.2)."""


WITHOUT_TABLE = ("0.6.6", "0.6.7", "0.6.8")
"""FlashInfer releases that vLLM 0.19 and 0.20 pin."""


def imported_tables(ctx: RankContext) -> int:
    """Bytes that the first import of FlashInfer leaves on the device.

    The first attention layer asks which backends are valid, which imports FlashInfer's, and vLLM builds the model under
    `torch.device("cuda")` (model_loader/base_loader.py: load_model). Runner V1's sampler and, with more than one GPU, the
    communicators import it before, on the host. Seen in every recorded start of one GPU with runner V2 (0.26.0, 0.33.0).
    """
    parallel = ctx.engine.parallel
    alone = parallel.world_size * parallel.dp == 1
    supported = ctx.device.vendor == "nvidia" and ctx.device.sm >= 80
    has_table = not (dict(ctx.release.pins).get("flashinfer") or "").startswith(WITHOUT_TABLE)
    return FLASHINFER_TABLE if alone and supported and has_table and ctx.engine.model_runner == "V2" else 0
