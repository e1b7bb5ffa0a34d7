"""Quantisation methods: one module each, one row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.weights.quantisation.base import QuantContext, QuantisationMethod

Factory = Callable[[QuantContext], QuantisationMethod]

METHODS: Mapping[str, str] = {
    "fp8": "fp8:Fp8",
    "deepseek_v4_fp8": "deepseek_v4:DeepseekV4Fp8",
    "fbgemm_fp8": "other:FbgemmFp8",
    "compressed-tensors": "compressed_tensors:CompressedTensors",
    "awq": "awq:Awq",
    "awq_marlin": "awq:Awq",
    "auto_awq": "awq:Awq",
    "gptq": "gptq:Gptq",
    "gptq_marlin": "gptq:Gptq",
    "auto_gptq": "gptq:Gptq",
    "modelopt": "modelopt:modelopt",
    "modelopt_fp4": "modelopt:modelopt",
    "modelopt_mxfp8": "modelopt:modelopt",
    "modelopt_mixed": "modelopt:modelopt",
    "mxfp4": "mxfp4:Mxfp4",
    "gpt_oss_mxfp4": "mxfp4:Mxfp4",
    "mxfp8": "online:mxfp8",
    "quark": "quark:Quark",
    "inc": "inc:Inc",
    "auto-round": "inc:Inc",
    "torchao": "other:TorchAo",
    "bitsandbytes": "other:BitsAndBytes",
    "moe_wna16": "other:moe_wna16",
    "humming": "humming:humming",
    "experts_int8": "online:experts_int8",
    "fp8_per_tensor": "online:per_tensor",
    "fp8_per_block": "online:per_block",
    "fp8_per_channel": "online:per_channel",
    "int8_per_channel_weight_only": "online:int8_weight_only",
    "nvfp4_per_token": "online:nvfp4_per_token",
}
"""vLLM's method names -> 'module:factory' below this package, imported when asked for."""

NEEDS_FEATURE: Mapping[str, tuple[str, str]] = {
    "bitsandbytes": ("bitsandbytes", "the last release that had it was 0.27.1"),
    "gguf": ("gguf", "the last release that had it was 0.23.0"),
    "petit_nvfp4": ("petit_nvfp4", "the last release that had it was 0.19.1"),
    "fp8_per_tensor": ("online_shorthands", "the first release that has it is 0.20.0"),
    "fp8_per_block": ("online_shorthands", "the first release that has it is 0.20.0"),
    "int8_per_channel_weight_only": ("online_shorthands", "the first release that has it is 0.20.0"),
    "humming": ("online_shorthands", "the first release that has it is 0.20.0"),
    "deepseek_v4_fp8": ("online_shorthands", "the first release that has it is 0.20.0"),
    "fp8_per_channel": ("online_fp8_per_channel", "the first release that has it is 0.24.0"),
    "nvfp4_per_token": ("online_nvfp4_per_token", "the first release that has it is 0.26.0"),
}
"""Methods that some releases do not have: name -> (the feature that says so, what to say)."""

DROPPED = frozenset({
    "aqlm", "deepspeedfp", "gptq_marlin_24", "hqq", "ipex", "marlin", "neuron_quant", "ptpc_fp8", "qqq", "rtn", "squeezellm",
    "tpu_int8", "auto_round",
})  # fmt: skip
"""Methods of vLLM before 0.19.0, which no supported release has."""

DEPRECATED: Mapping[str, str | None] = {
    "fbgemm_fp8": None,
    "fp_quant": None,
    "experts_int8": "experts_int8_deprecated",
    "petit_nvfp4": None,
}
"""DEPRECATED_QUANTIZATION_METHODS -> the feature that limits it (None: in every release that has the method)."""


def quantisation_method(name: str | None, context: QuantContext) -> QuantisationMethod:
    """The method that vLLM would use for `name` (None: unquantised).

    Raises InputError for methods that are not modelled, RefusedError for those the release does not have.
    """
    if not name or name == "none":
        from vllm_capacity.weights.quantisation.unquantised import Unquantised

        return Unquantised(context)
    name = canonical_name(name, context)
    release = context.release
    feature, when = NEEDS_FEATURE.get(name, (None, ""))
    if name in DROPPED or (feature is not None and not release.has(feature)):
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"Unknown quantization method: {name}. (not in vLLM {release.version}; "
            f"{when or 'no release since 0.19.0 has it'})",
        )
    limit = DEPRECATED.get(name)
    if name in DEPRECATED and (limit is None or release.has(limit)) and not context.allow_deprecated:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"The quantization method {name} is deprecated and will be removed in future versions of vLLM. To bypass,"
            " set `--allow-deprecated-quantization`.",
        )
    path = METHODS.get(name)
    if path is None:
        import difflib  # only on the way to an error

        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(
            f"{context.model}: quantisation method (quant_method, --quantization) {name!r} is not modelled{hint};"
            " known:"
            f" {', '.join(sorted(METHODS))}."
            " `vllm-capacity dry-run` asks an installed vLLM instead"
        )
    _check_requirements(name, context)
    module, factory = path.split(":")
    found: Any = getattr(import_module(f"{__name__}.{module}"), factory)
    return cast(Factory, found)(context)


_REQUIREMENTS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "fp8": (75, ("bfloat16", "float16")),
    "deepseek_v4_fp8": (75, ("bfloat16", "float16")),
    "fbgemm_fp8": (80, ("bfloat16", "float16")),
    "compressed-tensors": (70, ("float32", "float16", "bfloat16")),
    "auto_awq": (75, ("float16", "bfloat16")),
    "auto_gptq": (60, ("float16", "bfloat16")),
    "modelopt": (75, ("bfloat16", "float16")),
    "modelopt_fp4": (75, ("bfloat16", "float16")),
    "modelopt_mixed": (75, ("bfloat16", "float16")),
    "modelopt_mxfp8": (80, ("bfloat16",)),
    "mxfp4": (80, ("bfloat16",)),
    "quark": (70, ("float16", "bfloat16")),
    "inc": (60, ("float16", "bfloat16")),
    "experts_int8": (80, ("bfloat16", "float16")),
}
"""`get_min_capability` and `get_supported_act_dtypes` of the config classes (0.26.0)."""


def _check_requirements(name: str, context: QuantContext) -> None:
    """`VllmConfig._get_quantization_config`, config/vllm.py: the GPU's capability, then the model's dtype."""
    minimum, dtypes = _REQUIREMENTS.get(name, (0, ()))
    if context.device.sm < minimum:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"The quantization method {name} is not supported for the current GPU. Minimum capability: {minimum}."
            f" Current capability: {context.device.sm}.",
        )
    if dtypes and context.dtype not in dtypes:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"torch.{context.dtype} is not supported for quantization method {name}. Supported dtypes:"
            f" [{', '.join(f'torch.{dtype}' for dtype in dtypes)}]",
        )


def canonical_name(name: str, context: QuantContext) -> str:
    """The name after `override_quantization_method`: checkpoints say gptq, awq, fp8 and mean a class of vLLM's."""
    name = name.lower()
    block = context.block
    if name in ("awq", "awq_marlin", "auto_awq"):
        return "auto_awq"
    if name in ("gptq", "gptq_marlin", "auto_gptq"):
        return "auto_gptq"
    if name == "auto-round":
        return "inc"
    if name == "gpt_oss_mxfp4":
        return "mxfp4"
    if name == "fp8" and block is not None and context.model_type == "deepseek_v4":
        return "deepseek_v4_fp8"
    if name.startswith("modelopt") and block is not None:
        inner = block.get("quantization")
        settings = inner if isinstance(inner, Mapping) else block
        algorithm = str(settings.get("quant_algo", "")).upper()
        if algorithm == "MIXED_PRECISION":
            return "modelopt_mixed"
        if "FP4" in algorithm:
            return "modelopt_fp4"
        return "modelopt_mxfp8" if "MXFP8" in algorithm else "modelopt"
    return name


def checkpoint_method(block: Mapping[str, Any] | None) -> str | None:
    """The method's name in a checkpoint's quantisation block; some ModelOpt files say only `quant_algo`."""
    if not block:
        return None
    method = block.get("quant_method")
    if method is None and (block.get("quant_algo") or isinstance(block.get("quantization"), Mapping)):
        method = "modelopt"
    return None if method is None else str(method).lower()
