"""Which modules of a multimodal encoder a rank builds, and whether tensor parallelism divides them.

Source: `SupportsMultiModal._mark_tower_model`, model_executor/models/interfaces.py (0.26.0: 257-298; 0.33.0: 347-396):
a tower is left out where every modality it serves is limited to 0, and, since 0.33 under runner V2, on pipeline stages
after the first. `is_vit_use_data_parallel`, models/vision.py: with `--mm-encoder-tp-mode data` a class that supports it
builds its tower's linears whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from vllm_capacity.architecture.modules import Architecture, Linear, Placed, QkvLinear, Shard
from vllm_capacity.context import RankContext
from vllm_capacity.engine import EngineArgs

ALL = frozenset({"*"})
"""Stands for every modality."""

DIVIDED_ALWAYS = ("multi_modal_projector.",)
"""Llama4MultiModalProjector never looks at the mode (mllama4.py:160-185)."""


def outside_here(ctx: RankContext) -> tuple[Placed, ...]:
    """`ctx.architecture.outside` without the encoder's modules that this rank does not build, linears whole where
    they are not divided.
    """
    architecture, args = ctx.architecture, ctx.engine.args
    if not any(placed.modalities for placed in architecture.outside):
        return architecture.outside
    late = ctx.pp_rank > 0 and ctx.engine.model_runner == "V2" and ctx.release.has("encoder_on_first_stage")
    return _outside(architecture.outside, ALL if late else _absent(args), _whole_linears(architecture, args))


def whole_towers(architecture: Architecture, args: EngineArgs) -> tuple[Placed, ...]:
    """`architecture.outside`, linears whole where they are not divided."""
    return _outside(architecture.outside, frozenset(), _whole_linears(architecture, args))


def _whole_linears(architecture: Architecture, args: EngineArgs) -> bool:
    return architecture.encoder_tp_data and args.other("mm_encoder_tp_mode") == "data"


def _absent(args: EngineArgs) -> frozenset[str]:
    """Modalities that are not served; ALL for every one."""
    if args.other("language_model_only"):
        return ALL
    limits = args.other("limit_mm_per_prompt", {})
    if not isinstance(limits, Mapping):
        return frozenset()
    return frozenset(
        str(modality)
        for modality, limit in limits.items()
        if (limit.get("count") if isinstance(limit, Mapping) else limit) == 0
    )


@lru_cache(maxsize=128)
def _outside(outside: tuple[Placed, ...], absent: frozenset[str], whole: bool) -> tuple[Placed, ...]:
    kept = (
        placed
        for placed in outside
        if not placed.modalities or not (absent == ALL or absent.issuperset(placed.modalities))
    )
    return tuple(_whole(placed) if whole and placed.modalities else placed for placed in kept)


def _whole(placed: Placed) -> Placed:
    module = placed.module
    if not isinstance(module, Linear) or module.name.startswith(DIVIDED_ALWAYS):
        assert not isinstance(module, QkvLinear), module.name
        return placed
    return replace(placed, module=replace(module, shard=Shard.REPLICATED))
