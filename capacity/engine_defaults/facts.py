"""Small questions about the model, the flags and the environment that several rules share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_capacity.architecture.modules import Architecture, Attention, AttentionKind
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.model_config import ModelConfig

_TRUE = ("1", "true")
_FALSE = ("0", "false", "")


def refuse(message: str, reason: Reason = Reason.UNSUPPORTED_BY_RELEASE) -> RefusedError:
    """vLLM's own refusal of a configuration, as an error to raise."""
    return RefusedError(reason, message)


def switch(args: EngineArgs, name: str, default: bool | None = None) -> bool | None:
    """A boolean VLLM_* variable; `default` when it is not set. InputError when it is neither 0/1 nor
    true/false.
    """
    value = args.environment.get(name)
    if value is None:
        return default
    text = value.strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise InputError(f"{name}={value} must be 0 or 1")


def runner_type(args: EngineArgs, architecture: Architecture) -> str:
    """'generate' or 'pooling': `--runner`, else what the model is (config/model.py: _get_runner_type,
    0.26.0).
    """
    asked = args.other("runner", "auto")
    if asked in ("generate", "pooling"):
        return str(asked)
    if asked not in ("auto", "draft"):
        raise InputError(f"--runner must be auto, generate, pooling or draft, not {asked!r}")
    return "pooling" if args.other("convert", "auto") in ("embed", "classify") else architecture.runner_type


def pooling_conversion(args: EngineArgs) -> str:
    """'embed' or 'classify' where the flags make a pooling model of a generator, else ''.

    `--convert`, and `embed` for a generator with `--runner pooling` (config/model.py: _get_convert_type, 0.26.0).
    """
    convert = str(args.other("convert", "auto"))
    if convert in ("embed", "classify"):
        return convert
    return "embed" if convert == "auto" and args.other("runner") == "pooling" else ""


def is_moe(config: ModelConfig, architecture: Architecture) -> bool:
    """`ModelConfig.is_moe`, config/model.py: the config names at least one expert (get_num_experts,
    0.26.0).
    """
    for key in ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"):
        value = config.get(key)
        if isinstance(value, (list, tuple)):
            value = value[0] if value else 0
        if isinstance(value, int) and not isinstance(value, bool):
            return value > 0
    return architecture.num_experts > 0


def is_encoder_only(architecture: Architecture) -> bool:
    """Every attention layer sees the whole prompt: no KV cache, no chunks, no prefix caching."""
    kinds = {m.kind for g in architecture.layers for m in g.mixers if isinstance(m, Attention)}
    return kinds == {AttentionKind.ENCODER_ONLY}


def pass_config(args: EngineArgs) -> Mapping[str, Any]:
    """`compilation_config.pass_config` as given."""
    value = args.compilation_config.get("pass_config")
    return value if isinstance(value, Mapping) else {}
