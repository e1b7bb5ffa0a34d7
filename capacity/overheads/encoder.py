"""The encoder cache at run time, where the profile run did not cover it."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.activations.encoder import encoder_batch, encoder_budget, profiles_encoder
from vllm_capacity.activations.vision import tower
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.terms import nothing
from vllm_capacity.units import DTYPE_BYTES

SOURCE = "v1/core/encoder_cache_manager.py: compute_mm_encoder_budget"


def encoder_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """Outputs that requests keep in the encoder cache; part of the profiled peak where the runner profiles
    the encoder.
    """
    if not ctx.architecture.is_multimodal:
        yield nothing(
            "encoder_cache",
            Component.ENCODER,
            "no multimodal encoder",
            source=SOURCE,
            lifetime=Lifetime.RUNTIME,
        )
        return
    batch, shape = encoder_batch(ctx), tower(ctx)
    if batch is None or shape is None:
        yield nothing(
            "encoder_cache",
            Component.ENCODER,
            "every modality is limited to 0",
            source=SOURCE,
            lifetime=Lifetime.RUNTIME,
        )
        return
    if profiles_encoder(ctx):
        yield nothing(
            "encoder_cache",
            Component.ENCODER,
            "inside the profiled activation peak",
            source=SOURCE,
            lifetime=Lifetime.RUNTIME,
        )
        return
    yield term(
        "encoder_cache",
        Component.ENCODER,
        "tokens * outputs * el",
        lifetime=Lifetime.RUNTIME,
        source=SOURCE,
        note="not profiled: runner V2 before 0.27.0, or --skip-mm-profiling",
        tokens=encoder_budget(ctx),
        outputs=shape.outputs,
        el=DTYPE_BYTES[ctx.engine.dtype],
    )
