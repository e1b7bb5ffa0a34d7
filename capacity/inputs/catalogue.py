"""The bundled catalogue of models, `models.yaml`: facts of public models, for planning without a network.

The schema is in docs/catalogue.md. Looking one model up reads the file and parses one entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.config_json import apply_overrides, normalise
from vllm_capacity.inputs.entries import EntryFile
from vllm_capacity.inputs.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model as the catalogue knows it."""

    model_id: str
    config: Mapping[str, Any]
    quantization: Mapping[str, Any] | None
    """Contents of hf_quant_config.json where the model has one."""
    facts: Mapping[str, Any]
    """`parameters`, `checkpoint_bytes`, `source`, `confidence`, ... (docs/catalogue.md)."""


def catalogue_path() -> Path:
    """`models.yaml` beside the installed package, or at the top of a source tree."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "models.yaml"
    return installed if installed.is_file() else package.parent / "models.yaml"


@cache
def _entries() -> EntryFile:
    return EntryFile(catalogue_path())


def find_entry(model_id: str) -> CatalogueEntry | None:
    """The entry of a Hub id, whatever its case; an alias (a renamed repository) gives the entry it stands
    for."""
    name = _entries().canonical(model_id)
    if name is None:
        return None
    fields = _entries().get(name)
    assert fields is not None
    if "alias_of" in fields:
        name = fields["alias_of"]
        fields = _entries().get(name)
        assert fields is not None, f"{name} is missing"
    return _entry(name, fields)


def _entry(name: str, fields: dict[str, Any]) -> CatalogueEntry:
    facts = {key: value for key, value in fields.items() if key not in ("config", "quantization")}
    config = expand(fields["config"])
    quantization = expand(fields["quantization"]) if "quantization" in fields else None
    return CatalogueEntry(name, config, quantization, facts)


def entries() -> Iterator[CatalogueEntry]:
    """Every model, in the catalogue's order; aliases are left out."""
    for name, fields in _entries().items():
        if "alias_of" not in fields:
            yield _entry(name, fields)


def model_ids(text: str | None = None) -> list[str]:
    """Ids that contain `text`, whatever its case; all without `text`."""
    wanted = (text or "").casefold()
    return [name for name in _entries().ids() if wanted in name.casefold()]


def suggestions(model_id: str, count: int = 3) -> list[str]:
    """Known ids that look like `model_id`; its last part alone is tried too."""
    import difflib

    names = {name.casefold(): name for name in _entries().ids()}
    wanted = model_id.casefold()
    close = difflib.get_close_matches(wanted, names, n=count, cutoff=0.7)
    tails: dict[str, str] = {}
    for folded in names:
        tails.setdefault(folded.rpartition("/")[2], folded)
    close += [
        tails[tail]
        for tail in difflib.get_close_matches(wanted.rpartition("/")[2], tails, n=count, cutoff=0.7)
    ]
    return [names[folded] for folded in dict.fromkeys(close)][:count]


def load_entry(entry: CatalogueEntry, hf_overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """The `ModelConfig` of an entry."""
    return normalise(
        entry.model_id,
        apply_overrides(entry.config, hf_overrides or {}),
        source=f"bundled catalogue ({entry.facts['source']})",
        quantization=entry.quantization,
        facts=entry.facts,
    )


# -- compact lists of module names ---------------------------------------------------------------------------

NAME_LISTS = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
"""Lists of module names in quantisation blocks, one entry per layer: written with ranges."""

NAME_KEYS = ("quantized_layers",)
"""Objects with one key per module: written as a list of [value, names with ranges]."""

_RANGE = re.compile(r"\{([0-9,-]+)\}")


def expand(value: Any) -> Any:
    """Undoes the compaction of `tools/build_catalogue.py`: 'layers.{0-2,5}.mlp' stands for four names."""
    if isinstance(value, dict):
        result: dict[str, Any] = {}
        for key, child in value.items():
            if key in NAME_LISTS and isinstance(child, list):
                result[key] = [name for pattern in child for name in expand_name(pattern)]
            elif key in NAME_KEYS and isinstance(child, list):
                result[key] = {
                    name: setting
                    for setting, patterns in child
                    for pattern in patterns
                    for name in expand_name(pattern)
                }
            else:
                result[key] = expand(child)
        return result
    if isinstance(value, list):
        return [expand(child) for child in value]
    return value


def expand_name(pattern: str) -> Iterator[str]:
    """All names that 'a.{0-2,5}.b.{0-1}' stands for; a pattern without a range is its own name."""
    parts = _RANGE.split(pattern) if isinstance(pattern, str) else [pattern]
    if len(parts) == 1:
        yield pattern
        return
    choices = [_numbers(text) for text in parts[1::2]]
    for combination in product(*choices):
        name = parts[0]
        for number, literal in zip(combination, parts[2::2], strict=True):
            name += number + literal
        yield name


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        numbers += map(str, range(int(first), int(last or first) + 1))
    return numbers
