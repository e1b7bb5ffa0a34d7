"""Tensors that a library makes when it is imported, on the device if that happens while the model is built there."""

from __future__ import annotations

from vllm_capacity.context import RankContext

FLASHINFER_TABLE = 512
"""One block for sixteen fp32 values: flashinfer/quantization/fp4_quantization.py: _E2M1_VALUES (0.6.11 to 0.7.2)."""


WITHOUT_TABLE = ("0.6.6", "0.6.7", "0.6.8")
"""FlashInfer releases that vLLM 0.19 and 0.20 pin."""


COMPRESSED_TENSORS_TABLE = 512
"""One block for eight fp32 values: compressed_tensors/compressors/nvfp4/helpers.py: kE2M1ToFloat (0.17.0)."""


def imported_tables(ctx: RankContext) -> tuple[int, ...]:
    """Bytes of each table that an import leaves on the device."""
    return tuple(size for size in (_flashinfer(ctx), _compressed_tensors(ctx)) if size)


def _compressed_tensors(ctx: RankContext) -> int:
    """From 0.30.0 on building a model ends with the question whether it is quantised online, whose import leads to
    compressed-tensors (model_loader/base_loader.py: log_online_quantization). Reading the config of a checkpoint that is
    quantised imports it before, on the host. Seen in every recorded start of 0.33.0, quantised or not.
    """
    quantised = ctx.engine.quantization or ctx.config.quantization
    return COMPRESSED_TENSORS_TABLE if ctx.release.has("online_quantisation_logged") and not quantised else 0


def _flashinfer(ctx: RankContext) -> int:
    """The first attention layer asks which backends are valid, which imports FlashInfer's, and vLLM builds the model under
    `torch.device("cuda")` (model_loader/base_loader.py: load_model). Runner V1's sampler and, with more than one GPU, the
    communicators import it before, on the host. Seen in every recorded start of one GPU with runner V2 (0.26.0, 0.33.0).
    """
    parallel = ctx.engine.parallel
    alone = parallel.world_size * parallel.dp == 1
    supported = ctx.device.vendor == "nvidia" and ctx.device.sm >= 80
    has_table = not (dict(ctx.release.pins).get("flashinfer") or "").startswith(WITHOUT_TABLE)
    return FLASHINFER_TABLE if alone and supported and has_table and ctx.engine.model_runner == "V2" else 0
