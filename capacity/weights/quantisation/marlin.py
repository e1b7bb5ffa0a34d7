"""What Marlin kernels make of a weight: tile padding, repacked words, permuted scales, the lock workspace.

Sources (0.26.0): `marlin_padded_nk`, `marlin_moe_padded_intermediate`, `marlin_make_workspace_new`,
quantization/utils/marlin_utils.py; `prepare_fp8_layer_for_marlin`, utils/marlin_utils_fp8.py;
`prepare_fp4_layer_for_marlin`, utils/marlin_utils_fp4.py.
"""

from __future__ import annotations

from math import lcm

from vllm_capacity.releases.release import Release
from vllm_capacity.units import round_up
from vllm_capacity.weights.quantisation.base import QuantContext, Stored

TILE = 16
LINEAR_BLOCKS_PER_SM = 1
MOE_BLOCKS_PER_SM = 4
GROUP_SIZES = (-1, 32, 64, 128)
"""MARLIN_SUPPORTED_GROUP_SIZES."""


def padded_nk(rows: int, inputs: int, group: int = -1) -> tuple[int, int]:
    """(outputs, inputs) zero-padded to the cheaper family of thread tiles: (64, 128) or (128, 64)."""
    unit = max(group, 1)
    candidates = (
        (round_up(rows, 64), round_up(inputs, lcm(128, unit))),
        (round_up(rows, 128), round_up(inputs, lcm(64, unit))),
    )
    return min(candidates, key=lambda nk: (nk[0] * nk[1], nk[0] + nk[1]))


def linear_nk(release: Release, rows: int, inputs: int, group: int = -1) -> tuple[int, int] | None:
    """`padded_nk` where the release pads; before, the size itself, or None if the tiles do not fit."""
    if release.has("marlin_tile_padding"):
        return padded_nk(rows, inputs, group)
    return (rows, inputs) if rows % 64 == 0 and inputs % 128 == 0 else None


def moe_width(width: int, group: int = -1) -> int:
    """A rank's expert width padded to the thread tile and to whole groups."""
    return round_up(width, lcm(64, max(group, 1)))


def workspace(context: QuantContext, blocks_per_sm: int = LINEAR_BLOCKS_PER_SM) -> tuple[Stored, ...]:
    """One int32 lock per thread block; a plain attribute, no parameter. Since 0.31.0 the first product makes one for all
    layers (`get_marlin_workspace`).
    """
    if context.release.has("marlin_shared_workspace"):
        return ()
    return (Stored("workspace", (context.device.num_sms * blocks_per_sm,), "int32", buffer=True),)


def packed(inputs: int, rows: int, bits: int) -> tuple[int, int]:
    """Shape of `gptq_marlin_repack`'s output in int32 words."""
    return inputs // TILE, rows * TILE * bits // 32


def marlin_bias(bias: int, rows: int, padded_rows: int, dtype: str) -> tuple[Stored, ...]:
    """The permuted bias, padded with the outputs."""
    return (Stored("bias", (bias + padded_rows - rows,), dtype, bias),) if bias else ()
