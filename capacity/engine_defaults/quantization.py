"""Which quantisation method serves a checkpoint: its own, or `--quantization` where vLLM takes that beside it."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.facts import refuse
from vllm_capacity.inputs.model_config import ModelConfig

SAME: Mapping[str, frozenset[str]] = {
    "awq": frozenset({"awq", "awq_marlin", "auto_awq"}),
    "gptq": frozenset({"gptq", "gptq_marlin", "auto_gptq"}),
    "fp8": frozenset({"fp8", "deepseek_v4_fp8"}),
    "mxfp4": frozenset({"mxfp4", "gpt_oss_mxfp4"}),
    "bitsandbytes": frozenset({"bitsandbytes"}),
    "compressed-tensors": frozenset({"compressed-tensors"}),
    "quark": frozenset({"quark"}),
    "torchao": frozenset({"torchao"}),
    "fbgemm_fp8": frozenset({"fbgemm_fp8"}),
}
"""A checkpoint's method -> the names of `--quantization` that its classes take (`override_quantization_method`)."""

OWN = frozenset({"modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "auto-round", "inc"})
"""Checkpoints whose method overrides whatever is asked for (quantization/modelopt.py, inc.py; same in 0.20.0)."""

REPLACING = frozenset({"humming", "moe_wna16"})
"""Methods that take over other methods' checkpoints."""

ASKED = frozenset().union(*SAME.values()) | OWN | {
    "mxfp8", "experts_int8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only",
    "nvfp4_per_token",
}  # fmt: skip


def resolve_quantization(args: EngineArgs, config: ModelConfig) -> str | None:
    """The method asked for, else the checkpoint's own. Raises RefusedError where the two do not match.

    `ModelConfig._verify_quantization` (config/model.py:1034-1113, 0.26.0; with the classes' own functions, the same for
    every pair of 0.26.0 and 0.33.0).
    """
    method = (config.quantization or {}).get("quant_method")
    own = str(method).lower().replace("compressed_tensors", "compressed-tensors") if method else None
    asked = args.quantization.lower() if args.quantization is not None else None
    if asked is None or own is None:
        return asked or own
    if own in OWN and asked not in REPLACING:
        return own
    if own in SAME and asked in ASKED - SAME[own]:
        raise refuse(
            f"Quantization method specified in the model config ({own}) does not match the quantization method"
            f" specified in the `quantization` argument ({asked})."
        )
    return asked
