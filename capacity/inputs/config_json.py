"""Reads a Hugging Face `config.json` and turns it into a `ModelConfig`.

Files come from strangers: size, nesting and numbers are bounded, and everything wrong is one `InputError`
line. Which part is the text model, where the quantisation block stands and how `--hf-overrides` merge follows
vLLM (transformers_utils/config.py and model_arch_config_convertor.py, 0.26.0).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.config_defaults import class_defaults, fill, fill_defaults, part_type
from vllm_capacity.inputs.model_config import ModelConfig

CONFIG_NAME = "config.json"
QUANTISATION_NAME = "hf_quant_config.json"
"""ModelOpt up to 0.29 writes the quantisation block here and not into config.json."""

MAX_CONFIG_BYTES = 10 * 1024 * 1024
"""The largest config.json known (MiniMax-M3-NVFP4, a list of quantised layers) has 3 MB."""

MAX_CONTAINERS = 200_000
"""Objects and lists in one file; the largest real config has 22,500."""

MAX_DEPTH = 64
"""Levels of nesting; real configs have up to 8."""

TEXT_PARTS = ("decoder", "generator", "text_config", "text_encoder")
"""Where `PretrainedConfig.get_text_config` of transformers 5 looks for the text model."""

TEXT_SYNONYMS = ("llm_config", "language_config")
"""vLLM renames `llm_config` to `text_config` (`_CONFIG_ATTRS_MAPPING`), its DeepSeek-VL2 class reads
`language_config`."""

VISION_PARTS = ("vision_config", "visual", "siglip_config", "vit_config")
AUDIO_PARTS = ("audio_config", "audio_encoder_config", "speech_config")


# -- reading -------------------------------------------------------------------------------------------------


def parse_json(data: bytes | str, what: str) -> dict[str, Any]:
    """A JSON object from a stranger. `what` names the file in errors.

    Refused with InputError: more than MAX_CONFIG_BYTES, not UTF-8, not JSON, NaN, duplicate keys, nesting
    beyond MAX_DEPTH, a top level that is not an object. `Infinity` is accepted: Mamba-Codestral's
    `time_step_limit` holds it.
    """
    if len(data) > MAX_CONFIG_BYTES:
        raise InputError(f"{what} has {len(data):,} bytes; a config has at most {MAX_CONFIG_BYTES:,}")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not UTF-8 text ({error.reason} at byte {error.start})") from None

    n_containers = text.count("{") + text.count("[")
    if n_containers > MAX_CONTAINERS:
        raise InputError(f"{what} holds more than {MAX_CONTAINERS:,} objects and lists; that is no config")

    def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise InputError(f"{what} holds the key {twice!r:.60} twice in one object")
        return values

    def constant(name: str) -> float:
        if name == "NaN":
            raise InputError(f"{what} holds NaN, which is not a number that a model can have")
        return float(name.replace("Infinity", "inf"))

    try:
        value = json.loads(text, object_pairs_hook=reject_duplicates, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise InputError(f"{what} is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        raise InputError(f"{what} holds a number with thousands of digits") from None
    if not isinstance(value, dict):
        raise InputError(f"{what} must hold a JSON object, not {_kind(value)}")
    if n_containers > MAX_DEPTH:
        check_depth(value, what)
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(value, what)
    return value


def check_depth(value: Any, what: str, limit: int = MAX_DEPTH) -> None:
    """InputError if `value` is nested deeper than `limit` levels; works level by level, so never recurses."""
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise InputError(f"{what} is nested deeper than {limit} levels")


def _check_surrogates(value: Any, what: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{what} holds half of a surrogate pair (\\ud800 and the like), which is not text"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """`parse_json` of a file; reads no more than the limit."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a file") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise InputError(f"{path} is larger than {MAX_CONFIG_BYTES:,} bytes; that is not a config.json")
    return parse_json(data, str(path))


def read_config(path: Path, hf_overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """The config of a local model: `path` is a folder with a config.json or the file itself."""
    folder, file = (path, path / CONFIG_NAME) if path.is_dir() else (path.parent, path)
    if folder is path and not file.is_file():
        hint = (
            "; it has Mistral's params.json, which is not read: put the model's config.json beside it"
            if (folder / "params.json").is_file()
            else "; give the folder of a model or the file itself"
        )
        raise InputError(f"{folder} has no {CONFIG_NAME}{hint}")
    root = read_json(file)
    beside = folder / QUANTISATION_NAME
    quantization = read_json(beside) if root.get("quantization_config") is None and beside.is_file() else None
    return normalise(
        str(path),
        apply_overrides(root, hf_overrides or {}),
        source=f"local file {file}",
        quantization=quantization,
    )


# -- meaning -------------------------------------------------------------------------------------------------


def normalise(
    name: str,
    root: Mapping[str, Any],
    *,
    source: str,
    quantization: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> ModelConfig:
    """A `ModelConfig` from the contents of config.json.

    `quantization` is the content of hf_quant_config.json beside it, which counts only where config.json has
    no `quantization_config` (`get_config`, transformers_utils/config.py:762-772, 0.26.0). Raises InputError
    where the shape of the config itself is broken, RefusedError where vLLM refuses its quantisation block.
    """
    text_raw, text_is_root = find_text_part(name, root)
    model_type = _string(name, root, "model_type")
    text_model_type = _string(name, text_raw, "model_type") or (model_type if text_is_root else "")
    block = find_quantization(name, root, text_raw, quantization)
    filled = fill_defaults(root, text_raw, text_is_root=text_is_root)
    architectures = _architectures(name, root) or filled.architectures
    outer = _inner(root, "thinker_config") or root
    return ModelConfig(
        name=name,
        root=filled.root,
        text=filled.text,
        vision=_part(name, outer, VISION_PARTS),
        audio=_part(name, outer, AUDIO_PARTS),
        quantization=block,
        architectures=architectures,
        model_type=model_type,
        text_model_type=text_model_type,
        source=source,
        facts=dict(facts or {}),
    )


def find_text_part(name: str, root: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """What vLLM calls `hf_text_config`, and whether it is the root itself.

    Source: `get_hf_text_config` -> `PretrainedConfig.get_text_config` (transformers 5): the one of `decoder`,
    `generator`, `text_config`, `text_encoder` that is there, else the config itself; `llm_config` counts as
    `text_config` (`_maybe_remap_hf_config_attrs`); the Qwen Omni classes look inside `thinker_config`.
    """
    thinker = _inner(root, "thinker_config")
    if thinker is not None:
        return find_text_part(name, thinker)[0], False
    found = [part for part in TEXT_PARTS if _inner(root, part)]
    if len(found) > 1:
        raise InputError(
            f"{name}: the config has several text parts ({', '.join(found)}); vLLM cannot tell which one runs"
        )
    if not found:
        found = [part for part in TEXT_SYNONYMS if _inner(root, part)][:1]
    for part in found:
        inner = _inner(root, part)
        assert inner is not None
        return inner, False
    for part in ("text_config", *TEXT_SYNONYMS):
        if root.get(part) is not None and not isinstance(root[part], Mapping):
            raise InputError(f"{name}: config key {part!r} must be an object, not {_kind(root[part])}")
    return root, True


_MODELOPT_FP8 = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO")


def find_quantization(
    name: str, root: Mapping[str, Any], text: Mapping[str, Any], beside: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The checkpoint's quantisation block with vLLM's `quant_method`, wherever it stands, or None.

    Source: `get_quantization_config` and `_normalize_quantization_config`,
    transformers_utils/model_arch_config_convertor.py (0.26.0; `modelopt_mixed` for a side file that says
    MIXED_PRECISION since 0.33.0). An empty `quant_method` means what it means to vLLM: no method, the model
    loads unquantised.
    """
    own = root.get("quantization_config")
    block = own if own is not None else beside
    if block is None:
        block = root.get("compression_config")
        if block is None and text is not root:
            block = text.get("quantization_config")
            if block is None:
                block = text.get("compression_config")
    if block is None:
        return None
    if not isinstance(block, Mapping):
        raise InputError(f"{name}: the quantisation block must be an object, not {_kind(block)}")
    result = dict(block)
    legacy = _modelopt_algorithm(name, result)
    if legacy is not None:
        algorithm = legacy.upper()
        if algorithm in _MODELOPT_FP8:
            result["quant_method"] = "modelopt"
        elif algorithm == "NVFP4":
            result["quant_method"] = "modelopt_fp4"
        elif algorithm == "MIXED_PRECISION":
            result["quant_method"] = "modelopt_mixed"
        else:
            raise RefusedError(Reason.UNSUPPORTED_BY_RELEASE, f"Unknown ModelOpt quant algo: {legacy}")
    method = result.get("quant_method") or ""
    if not isinstance(method, str):
        raise InputError(f"{name}: quant_method must be a string, not {_kind(method)}")
    result["quant_method"] = method.lower().replace("compressed_tensors", "compressed-tensors")
    return result


def _modelopt_algorithm(name: str, block: Mapping[str, Any]) -> str | None:
    """`quantization.quant_algo` of ModelOpt's side-file format, None for any other block."""
    producer, inner = block.get("producer"), block.get("quantization")
    if inner is None or not isinstance(inner, Mapping):
        return None
    by_modelopt = isinstance(producer, Mapping) and producer.get("name") == "modelopt"
    if not by_modelopt and "modelopt_quant_config" not in inner:
        return None
    algorithm = inner.get("quant_algo")
    if algorithm is not None and not isinstance(algorithm, str):
        raise InputError(f"{name}: quant_algo must be a string, not {_kind(algorithm)}")
    return algorithm


def apply_overrides(root: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`--hf-overrides`: plain values replace the top level's; an object merges into a nested config of that
    name.

    Source: `ModelConfig.__post_init__` and `_apply_dict_overrides`, config/model.py:521-580 (0.26.0). Raises
    InputError for an override of a nested config that the model does not have.
    """
    result = dict(root)
    for key, value in overrides.items():
        if not isinstance(value, Mapping):
            result[key] = value
            continue
        nested = result.get(key)
        if isinstance(nested, Mapping) and _is_nested_config(key):
            result[key] = _merge(nested, value)
        elif nested is None and _is_nested_config(key):
            raise InputError(
                f"--hf-overrides sets {key!r}, which this config has not; set its keys at the top level"
            )
        else:
            result[key] = dict(value)
        if key == "rope_scaling" and "rope_parameters" in result:
            # transformers 5 keeps one value under both names (RotaryEmbeddingConfigMixin).
            result["rope_parameters"] = dict(value)
    return result


def _is_nested_config(key: str) -> bool:
    """transformers makes these objects `PretrainedConfig`s; other objects (rope_scaling, quantization_config)
    stay dicts."""
    return key in (
        *TEXT_PARTS,
        *TEXT_SYNONYMS,
        *VISION_PARTS,
        *AUDIO_PARTS,
        "thinker_config",
        "talker_config",
    )


def _merge(base: Mapping[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
    """`_update_nested`, config/model.py:437-463 (0.26.0)."""
    result = dict(base)
    for key, value in updates.items():
        nested = result.get(key)
        result[key] = (
            _merge(nested, value) if isinstance(value, Mapping) and isinstance(nested, Mapping) else value
        )
    return result


# -- small pieces --------------------------------------------------------------------------------------------


def _inner(values: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    value = values.get(key)
    return value if isinstance(value, Mapping) and value else None


def _part(name: str, root: Mapping[str, Any], keys: Iterable[str]) -> Mapping[str, Any] | None:
    for key in keys:
        value = root.get(key)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise InputError(f"{name}: config key {key!r} must be an object, not {_kind(value)}")
        return fill(value, class_defaults(part_type(root, value, key)))
    return None


def _string(name: str, values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{name}: config key {key!r} must be a string, not {_kind(value)}")
    return value


def _architectures(name: str, root: Mapping[str, Any]) -> tuple[str, ...]:
    value = root.get("architectures")
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(entry, str) for entry in value):
        raise InputError(f"{name}: config key 'architectures' must be a list of strings")
    return tuple(value)


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "a string"
    return "a number"
