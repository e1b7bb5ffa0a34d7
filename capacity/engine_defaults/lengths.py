"""`max_model_len`: what the config allows, what the user asked for, and what vLLM makes of both."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.facts import refuse, switch
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import MAX_DIMENSION, ModelConfig
from vllm_capacity.releases.release import Release

_LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)

_DEFAULT_LENGTH = 2048
"""For a config without any of the keys, for example Mamba's."""

_LAYER_TYPES = frozenset(
    {
        "full_attention",
        "sliding_attention",
        "chunked_attention",
        "linear_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "sliding_window_attention",
        "attention",
        "mamba",
        "conv",
        "main",
        "compress",
    }
)
"""Keys by which rope parameters are given per layer type (transformers: ALLOWED_LAYER_TYPES; vLLM adds the
last two).
"""

_UNSCALED = frozenset({"su", "longrope", "llama3"})
_UNSCALED_SINCE_0_30 = _UNSCALED | {"yarn", "deepseek_yarn", "deepseek_llama_scaling"}

_CAUTION = (
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with extreme caution. If the model uses relative position "
    "encoding (RoPE), positions exceeding derived_max_model_len lead to nan. If the model uses absolute "
    "position encoding, positions exceeding derived_max_model_len will cause a CUDA array out-of-bounds "
    "error."
)


def resolve_max_model_len(args: EngineArgs, config: ModelConfig, release: Release, *, pooling: bool) -> int:
    """`_get_and_verify_max_len`, config/model.py:2152-2289 (0.26.0).

    The user's length stands if the config allows it, or VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set; `auto` (-1)
    and none give the derived length (the pretraining length for LongRoPE). Raises RefusedError with vLLM's
    sentence.
    """
    return _length(args.max_model_len, args, config, release, pooling)


def derived_max_model_len(args: EngineArgs, config: ModelConfig, release: Release, *, pooling: bool) -> int:
    """What `resolve_max_model_len` gives where the user names no length."""
    return _length(None, args, config, release, pooling)


def _length(asked: int | None, args: EngineArgs, config: ModelConfig, release: Release, pooling: bool) -> int:
    derived, key = _derive(config)
    window = config.get("sliding_window")
    if args.other("disable_sliding_window") and isinstance(window, int) and window < derived:
        derived, key = window, "sliding_window"
    tokenizer_length = config.facts.get("tokenizer_model_max_length")
    if pooling and config.root.get("position_embedding_type") == "absolute" and tokenizer_length is not None:
        derived = min(derived, tokenizer_length)
    if derived == float("inf"):
        if asked == -1:  # vLLM goes on with a length of -1 and dies of it
            raise InputError(
                f"{config.name}: the config names no length, so --max-model-len auto cannot start from one"
            )
        if asked is not None:
            return asked
        derived = _DEFAULT_LENGTH
    parameters = _rope(config)
    if parameters and "gemma3" not in config.text_model_type:
        derived *= _scaling(parameters, release)
        if release.has("yarn_scales_max_len") and any(p["rope_type"] == "yarn" for p in parameters):
            derived = _scaling(parameters, release) * _pretraining_length(config, parameters)
    if asked is None or asked == -1:
        if any(p["rope_type"] == "longrope" for p in parameters):
            return config.size("original_max_position_embeddings", int(derived))
        return int(derived)
    limit = config.get("model_max_length")
    too_long = asked > derived and (limit is None or asked > limit)
    if too_long and not switch(args, "VLLM_ALLOW_LONG_MAX_MODEL_LEN", False):
        raise refuse(
            f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
            f"({key}={derived} or model_max_length={limit} in model's config.json). To allow overriding this "
            f"maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. {_CAUTION}"
        )
    return asked


def rope_parameters(text: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """One mapping per kind of layer, each with a `rope_type`; empty where the config has none.

    `patch_rope_parameters`, transformers_utils/config.py (0.26.0), and transformers' own standardising of
    `rope_scaling` and `rope_theta`: an old `type` becomes `rope_type`, 'su' is 'longrope', 'mrope' is
    'default'.
    """
    given = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(given, Mapping):
        return ({"rope_type": "default"},) if text.get("rope_theta") is not None else ()
    nested = given and set(given) <= _LAYER_TYPES
    parts = [v for v in given.values() if isinstance(v, Mapping)] if nested else [given]
    return tuple(_standard(part) for part in parts)


def _standard(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part.get("rope_type") or part.get("type") or "default"
    kind = {"su": "longrope", "mrope": "default", "telechat3-yarn": "yarn"}.get(str(kind), str(kind))
    return {**part, "rope_type": kind}


@lru_cache(maxsize=64)
def _rope(config: ModelConfig) -> tuple[dict[str, Any], ...]:
    return rope_parameters(config.text)


@lru_cache(maxsize=64)
def _derive(config: ModelConfig) -> tuple[int | float, str | None]:
    """`derive_max_model_len_and_key`, model_arch_config_convertor.py:326-359 (0.26.0): the smallest key,
    Command-R's wins.
    """
    text = config.text
    derived: int | float = float("inf")
    key = None
    for name in _LENGTH_KEYS:
        value = text.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise InputError(f"config key {name!r} must be a positive number, not {value!r:.60}")
        if value < derived:
            derived, key = value, name
        if name != key:
            continue
        if value != value or (value != float("inf") and value > MAX_DIMENSION):
            raise InputError(f"config key {name!r} is {value}, no length of a model")
    own = text.get("model_max_length")
    if own and (isinstance(own, bool) or not isinstance(own, int) or not 0 < own <= MAX_DIMENSION):
        raise InputError(f"config key 'model_max_length' must be a positive integer, not {own!r:.60}")
    return (own, "model_max_length") if own else (derived, key)


def _scaling(parameters: tuple[dict[str, Any], ...], release: Release) -> int | float:
    """The last factor of a rope type that stretches the length, else 1.0 (a float, as vLLM prints it)."""
    unscaled = _UNSCALED if release.has("yarn_scales_max_len") else _UNSCALED_SINCE_0_30
    factor: Any = 1.0
    for part in parameters:
        if part["rope_type"] not in unscaled:
            factor = part.get("factor", factor)
    if factor is None:
        return 1.0
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor <= 1e6:
        raise InputError(f"the rope factor must be a positive number, not {factor!r:.60}")
    return factor


def _pretraining_length(config: ModelConfig, parameters: tuple[dict[str, Any], ...]) -> int:
    """YaRN's `original_max_position_embeddings`: at the top, else in the rope block, else the config's own
    length.
    """
    outside = config.get("original_max_position_embeddings")
    last = [p for p in parameters if p["rope_type"] == "yarn"][-1]
    value = outside or last.get("original_max_position_embeddings") or config.get("max_position_embeddings")
    if not isinstance(value, int) or value <= 0:
        raise InputError(
            f"{config.name}: YaRN needs a positive original_max_position_embeddings, not {value!r:.60}"
        )
    return value
