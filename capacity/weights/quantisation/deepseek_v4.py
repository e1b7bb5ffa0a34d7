"""DeepSeek-V4 (`quant_method: fp8`, vLLM's deepseek_v4_fp8): block-wise fp8 layers, experts by `expert_dtype`.

Source (0.26.0): `DeepseekV4FP8Config`, models/deepseek_v4/quant_config.py: fp4 experts are MXFP4, or NVFP4 where the
block says `moe_quant_algo: NVFP4`; their linear scales are e8m0, those of fp8 checkpoints fp32.
"""

from __future__ import annotations

from vllm_capacity.errors import Reason, RefusedError
from vllm_capacity.weights.quantisation.base import LayerTensors, QuantContext
from vllm_capacity.weights.quantisation.fp8 import Fp8, check_block
from vllm_capacity.weights.quantisation.fp8_linear import block_linear
from vllm_capacity.weights.quantisation.mxfp4 import deepseek_v4_backend, padded_for, padded_mxfp4_experts
from vllm_capacity.weights.quantisation.nvfp4 import Origin, nvfp4_experts
from vllm_capacity.weights.sharding import LocalExperts, LocalLinear


class DeepseekV4Fp8(Fp8):
    """DeepseekV4FP8Config."""

    name = "deepseek_v4_fp8"

    def __init__(self, context: QuantContext) -> None:
        super().__init__(context)
        dtype = (context.text or {}).get("expert_dtype", "fp4")
        if dtype not in ("fp4", "fp8"):
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"Unsupported DeepSeek V4 expert_dtype={dtype!r}; expected one of ('fp4', 'fp8').",
            )
        self.fp4 = dtype == "fp4"
        self.nvfp4 = str((context.block or {}).get("moe_quant_algo") or "").upper() == "NVFP4"

    def linear(self, layer: LocalLinear) -> LayerTensors:
        if self.block_size is None:
            return super().linear(layer)
        check_block(layer, self.block_size)
        scale = "uint8" if self.fp4 else "float32"
        return block_linear(layer, self.context, self.block_size, scale_dtype=scale)

    def padded_experts(self, layer: LocalExperts) -> tuple[int, int]:
        if not self.fp4 or self.nvfp4:
            return layer.hidden_size, layer.intermediate_size
        return padded_for(deepseek_v4_backend(self.context), layer, self.context)

    def experts(self, layer: LocalExperts) -> LayerTensors:
        if not self.fp4:
            return super().experts(layer)
        if self.nvfp4:
            return nvfp4_experts(layer, self.context, Origin.MODELOPT, weight_only=False)
        return padded_mxfp4_experts(layer, self.context, deepseek_v4_backend(self.context))
