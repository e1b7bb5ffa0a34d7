"""The model's dtype, the KV cache's dtype string and the torch dtype that its pages are stored in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.facts import refuse, runner_type
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

DTYPES = {
    "half": "float16", "float16": "float16", "bfloat16": "bfloat16", "float": "float32", "float32": "float32",
}  # fmt: skip
"""`--dtype` values beside `auto` (config/model.py: _STR_DTYPE_TO_TORCH_DTYPE, 0.26.0)."""

_NO_FLOAT16 = "Numerical instability. Please use bfloat16 or float32 instead."
_NO_FLOAT16_TYPES = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
_SAFETENSORS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}

_CACHE_DTYPES: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    (None, ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla")),
    ("kv_dtypes_0_20", ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
                        "int8_per_token_head", "fp8_per_token_head", "nvfp4")),
    ("kv_dtypes_0_25", ("int4_per_token_head",)),
    ("kv_dtypes_0_28", ("nvfp4_4over6",)),
    ("kv_dtypes_0_30", ("nvfp4_ds_mla",)),
    ("kv_dtypes_0_32", ("ultraquant_4bit",)),
    ("kv_dtypes_0_33", ("octave_k3v4", "octave_k3v3", "octave_k3v3_compact")),
)  # fmt: skip


# -- model dtype ---------------------------------------------------------------------------------------------


def config_dtype(config: ModelConfig) -> str:
    """The dtype that the checkpoint says it has.

    `ModelArchConfigConvertorBase.get_torch_dtype`, transformers_utils/model_arch_config_convertor.py:167-207
    (0.26.0): `dtype` (`torch_dtype` in older files) at the top, in the text part, the vision part, the
    encoder part; else the common dtype of the safetensors headers; else float32.
    """
    parts: tuple[Any, ...] = (config.root, config.text, config.vision, config.root.get("encoder_config"))
    for part in parts:
        if isinstance(part, Mapping):
            value = part.get("dtype") or part.get("torch_dtype")
            if isinstance(value, str) and value != "auto":
                return DTYPES.get(name := value.removeprefix("torch."), name)
    tensors = config.facts.get("dtype_of_tensors")
    names = [tensors] if isinstance(tensors, str) else list(tensors or ())
    found = {_SAFETENSORS.get(str(n), str(n)) for n in names} & {"bfloat16", "float16", "float32"}
    if len(found) == 1:
        return found.pop()
    return "float32"


def supported_dtypes(device: Device) -> tuple[str, ...]:
    """Preferred first. `CudaPlatformBase.supported_dtypes`, platforms/cuda.py (0.19.0 to 0.33.0)."""
    if device.vendor != "nvidia" or device.sm >= 80:
        return ("bfloat16", "float16", "float32")
    return ("float16", "float32") if device.sm >= 60 else ("float32",)


def resolve_dtype(
    args: EngineArgs, config: ModelConfig, architecture: Architecture, device: Device, release: Release
) -> str:
    """`_get_and_verify_dtype` and `_resolve_auto_dtype`, config/model.py:2036-2125 (0.26.0), as torch names
    the dtype.

    float32 checkpoints become the device's preferred dtype, float16 for pooling models. Raises RefusedError
    where vLLM refuses the dtype for the model or the device.
    """
    refuses_float16 = _NO_FLOAT16_TYPES | ({"plamo2"} if release.has("plamo2_refuses_float16") else set())
    asked = args.dtype.lower()
    if asked == "auto":
        own = config_dtype(config)
        usable = [
            d
            for d in supported_dtypes(device)
            if not (d == "float16" and config.model_type in refuses_float16)
        ]
        pooling = runner_type(args, architecture) == "pooling"
        preferred = "float16" if pooling and "float16" in usable else usable[0]
        dtype = preferred if own == "float32" or own not in usable else own
    elif asked in DTYPES:
        dtype = DTYPES[asked]
    else:
        raise InputError(f"--dtype must be one of auto, {', '.join(sorted(DTYPES))}, not {args.dtype!r}")
    if dtype == "float16" and config.model_type in refuses_float16:
        raise refuse(f"The model type {config.model_type!r} does not support float16. Reason: {_NO_FLOAT16}")
    if dtype == "bfloat16" and device.vendor == "nvidia" and device.sm < 80:
        capability = f"{device.compute_capability[0]}.{device.compute_capability[1]}"
        raise refuse(  # platforms/cuda.py: check_if_supports_dtype
            f"Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your {device.name} "
            f"GPU has compute capability {capability}. You can use float16 instead by explicitly setting the "
            "`dtype` flag in CLI, for example: --dtype=half."
        )
    return dtype


# -- KV cache dtype ------------------------------------------------------------------------------------------


def cache_dtypes(release: Release) -> tuple[str, ...]:
    """`--kv-cache-dtype` values of a release (config/cache.py: CacheDType)."""
    return tuple(
        n for feature, names in _CACHE_DTYPES if feature is None or release.has(feature) for n in names
    )


def resolve_kv_cache_dtype(
    args: EngineArgs,
    config: ModelConfig,
    architecture: Architecture,
    dtype: str,
    device: Device,
    release: Release,
) -> str:
    """vLLM's cache dtype string; 'auto' stays where it means the model's dtype.

    Order: the flag; a ModelOpt checkpoint's KV algorithm (utils/torch_utils.py:
    resolve_kv_cache_dtype_string); the architecture's own default (models/config.py); a compressed-tensors
    `kv_cache_scheme` (Attention.__init__, layers/attention/attention.py: not read by MLA layers). Raises
    InputError for an unknown name, RefusedError for one that this release does not have.
    """
    asked = args.kv_cache_dtype
    if asked not in cache_dtypes(release):
        known = [n for _, names in _CACHE_DTYPES for n in names]
        if asked not in known:
            raise InputError(
                f"--kv-cache-dtype must be one of {', '.join(cache_dtypes(release))}, not {asked!r}"
            )
        raise refuse(
            f"argument --kv-cache-dtype: invalid choice: '{asked}' (choose from "
            f"{', '.join(cache_dtypes(release))})"
        )
    resolved = asked
    if asked == "auto":
        resolved = _modelopt_cache(config.quantization or {}, release) or "auto"
    resolved = _architecture_cache(resolved, config, device, release)
    scheme = _has_cache_scheme(config) and not architecture.use_mla
    if scheme and (resolved == "auto" or release.has("kv_scheme_overrides_dtype")):
        resolved = "fp8"
    if release.has("kv_dtype_mismatch_refused") and resolved in ("float16", "bfloat16") and resolved != dtype:
        allowed = f"`auto` or `{dtype}`" if dtype in ("float16", "bfloat16") else "`auto`"
        raise refuse(
            f'kv_cache_dtype="{resolved}" is incompatible with dtype="{dtype}". '
            f"Please set `--kv-cache-dtype` to {allowed}."
        )
    if (
        resolved.startswith("turboquant_")
        and architecture.is_hybrid
        and release.has("turboquant_refuses_hybrid")
    ):
        raise refuse(
            "TurboQuant KV cache is not supported for hybrid (attention + Mamba) models. Boundary layer "
            "protection requires uniform attention layers."
        )
    return resolved


def storage_dtype(kv_cache_dtype: str, dtype: str) -> str:
    """torch dtype of the pages. `STR_DTYPE_TO_TORCH_DTYPE`, utils/torch_utils.py:32-52 (0.26.0)."""
    if kv_cache_dtype == "auto":
        return dtype
    if kv_cache_dtype in ("float16", "bfloat16"):
        return kv_cache_dtype
    if kv_cache_dtype == "int8_per_token_head":
        return "int8"
    return "float8_e4m3fn" if kv_cache_dtype == "fp8_inc" else "uint8"


def _modelopt_cache(quantization: Mapping[str, Any], release: Release) -> str | None:
    """`get_kv_cache_quant_algo_string`, utils/torch_utils.py:310-371 (0.26.0); None where it does not say."""
    inner = quantization.get("quantization", quantization)
    inner = inner if isinstance(inner, Mapping) else quantization
    if not str(quantization.get("quant_method", "")).startswith("modelopt"):
        return None
    algorithm: Any = (
        inner.get("kv_cache_scheme") or quantization.get("kv_cache_scheme")
        or inner.get("kv_cache_quant_algo") or quantization.get("kv_cache_quant_algo")
    )  # fmt: skip
    if isinstance(algorithm, Mapping):
        bits, is_float = algorithm.get("num_bits"), algorithm.get("type") == "float"
        if algorithm.get("dynamic") is False and bits == 8 and is_float:
            algorithm = "fp8"
        elif bits == 4 and is_float:
            algorithm = "nvfp4"
        else:
            return "auto"
    if not isinstance(algorithm, str):
        return None
    names = {"fp8": "fp8_e4m3"} | ({"nvfp4": "nvfp4"} if release.has("modelopt_nvfp4_cache") else {})
    return names.get(algorithm.lower(), "auto")


def _architecture_cache(resolved: str, config: ModelConfig, device: Device, release: Release) -> str:
    """`verify_and_update_config` of the architectures that change the cache dtype (models/config.py,
    0.33.0).
    """
    names = set(config.architectures)
    if "DeepseekV32ForCausalLM" in names and resolved == "bfloat16":
        return "auto"
    sm10x = device.vendor == "nvidia" and device.compute_capability[0] == 10
    if resolved == "auto" and sm10x:
        if "GlmMoeDsaForCausalLM" in names and release.has("dsa_fp8_cache_on_sm10x"):
            return "fp8_e4m3"
        is_next = names & {"Glm5NextForCausalLM", "Glm5NextForConditionalGeneration"}
        if is_next and release.has("glm5_next_fp8_cache_on_sm10x") and config.get("index_topk") is not None:
            return "fp8"
    return resolved


def _has_cache_scheme(config: ModelConfig) -> bool:
    quantization = config.quantization or {}
    method = str(quantization.get("quant_method", "")).replace("_", "-")
    return method == "compressed-tensors" and isinstance(quantization.get("kv_cache_scheme"), Mapping)
