"""`quant_method: fp8` and `--quantization fp8`: which of vLLM's fp8 schemes a checkpoint asks for.

Source: `Fp8Config.get_quant_method`, layers/quantization/fp8.py:175-225 (0.26.0).
"""

from __future__ import annotations

from vllm_capacity.errors import InputError
from vllm_capacity.weights.quantisation.base import QuantContext, QuantisationMethod
from vllm_capacity.weights.quantisation.block_fp8 import BlockFp8


def fp8(context: QuantContext) -> QuantisationMethod:
    """Block-wise where the checkpoint has `weight_block_size`; per-tensor and online schemes are not modelled
    here.
    """
    block = context.block or {}
    if block.get("weight_block_size") is not None:
        return BlockFp8(context)
    scheme = "quantises while loading" if not block else "has one scale per tensor"
    raise InputError(
        f"{context.model}: fp8 that {scheme} is not modelled; block-wise checkpoints (weight_block_size) are."
        " `vllm-capacity dry-run` asks an installed vLLM instead"
    )
