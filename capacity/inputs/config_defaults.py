"""What a model's config class fills in where config.json is silent: constants and synonyms per model type.

vLLM never sees config.json itself but the `PretrainedConfig` made from it; gemma-3-4b's file, for one, does
not say how many heads the model has. The table is data taken from transformers' and vLLM's config classes
(tools/build_config_defaults.py). A key that the file sets to null stays null, as in the classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vllm_capacity.frozen import dataclass

_FILE = Path(__file__).with_name("config_defaults.json")


@dataclass(frozen=True, slots=True)
class ClassDefaults:
    """One model type: constants, `attribute_map` (new name -> name in the file), types of nested parts, base
    class."""

    values: Mapping[str, Any]
    synonyms: Mapping[str, str]
    parts: Mapping[str, str]
    architecture: str | None


@dataclass(frozen=True, slots=True)
class FilledConfig:
    root: Mapping[str, Any]
    text: Mapping[str, Any]
    architectures: tuple[str, ...]
    """vLLM's guess where the file has no `architectures`: transformers' base class of the model type."""


_UNKNOWN = ClassDefaults({}, {}, {}, None)


@cache
def _table() -> str:
    return _FILE.read_text(encoding="utf-8")


@cache
def class_defaults(model_type: str) -> ClassDefaults:
    """The entry of one model type, empty for an unknown one. Parses one line of the table, not all of it."""
    marker = f"\n{json.dumps(model_type)}: "
    start = _table().find(marker)
    if start < 0 or model_type == "source":
        return _UNKNOWN
    start += len(marker)
    entry = json.loads(_table()[start : _table().index("\n", start)].rstrip(","))
    return ClassDefaults(
        entry["values"], entry.get("synonyms", {}), entry.get("parts", {}), entry.get("architecture")
    )


def fill(values: Mapping[str, Any], defaults: ClassDefaults) -> dict[str, Any]:
    """`values` with the class's constants for absent keys, and each synonym under both names."""
    given = dict(values)
    for new, old in defaults.synonyms.items():
        if new in given:
            given.setdefault(old, given[new])
        elif old in given:
            given[new] = given[old]
    result = {**defaults.values, **given}
    for new, old in defaults.synonyms.items():
        if new not in result and old in result:
            result[new] = result[old]
    if "dtype" not in result and "torch_dtype" in result:
        result["dtype"] = result["torch_dtype"]
    if result.get("num_hidden_layers") is None:
        # NemotronHConfig.num_hidden_layers is a property: the length of the list of layers.
        for key in ("layers_block_type", "hybrid_override_pattern"):
            if isinstance(result.get(key), (list, str)):
                result["num_hidden_layers"] = len(result[key])
                break
    return result


def fill_defaults(root: Mapping[str, Any], text: Mapping[str, Any], *, text_is_root: bool) -> FilledConfig:
    """Root and text part with their classes' defaults; one mapping for both where the text part is the root.

    A flat multimodal config (old Qwen2.5-VL files) gets the defaults of its class's text part too, as that
    class passes all its arguments on.
    """
    outer = class_defaults(_type(root))
    architectures = (outer.architecture,) if outer.architecture else ()
    if text_is_root:
        flat = fill(root, outer)
        inner = outer.parts.get("text_config")
        if inner:
            flat = fill(flat, class_defaults(inner))
        return FilledConfig(flat, flat, architectures)
    own = _type(text) or next(
        (outer.parts[key] for key in ("text_config", "llm_config") if key in outer.parts), ""
    )
    return FilledConfig(fill(root, outer), fill(text, class_defaults(own)), architectures)


def part_type(root: Mapping[str, Any], part: Mapping[str, Any], key: str) -> str:
    """The model type of a nested part: its own, else what the root's class makes of it."""
    return _type(part) or class_defaults(_type(root)).parts.get(key, "")


def _type(values: Mapping[str, Any]) -> str:
    value = values.get("model_type")
    return value if isinstance(value, str) else ""
