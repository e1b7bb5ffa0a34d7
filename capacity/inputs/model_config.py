"""What a Hugging Face `config.json` says, normalised: text part, synonyms, typed and bounded access.

Family builders read fields only through the getters here, so that a missing key, a wrong type or an absurd number is one
clear error that names the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass

MAX_DIMENSION = 1 << 40
"""Larger than any dimension or count of a real model; a number above it is a broken config."""
MAX_LAYERS = 4_000
"""Likewise for layers; work grows with their number, so a broken count must fail before it costs seconds."""
_LAYER_COUNT = re.compile(r"(^|_)layers?$|^depth$")

_MISSING: Any = object()


@dataclass(frozen=True, slots=True, eq=False)
class ModelConfig:
    """A parsed config.json; equal only to itself, so that what is built from it can be kept.

    `root` is the whole file, `text` the part vLLM calls `hf_text_config` (the same mapping for text-only models),
    `vision` the vision part or None. `quantization` is the checkpoint's quantisation block wherever it stands
    (config.json, text part, hf_quant_config.json) or None. `source` says in words where the config came from.
    """

    name: str
    root: Mapping[str, Any]
    text: Mapping[str, Any]
    vision: Mapping[str, Any] | None = None
    audio: Mapping[str, Any] | None = None
    quantization: Mapping[str, Any] | None = None
    architectures: tuple[str, ...] = ()
    model_type: str = ""
    text_model_type: str = ""
    source: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the catalogue or the checkpoint adds: `parameters`, `checkpoint_bytes`, `dtype_of_tensors`, ..."""

    # -- typed access ---------------------------------------------------------------------------------------------
    def get(self, key: str, default: Any = None) -> Any:
        """The text config's value, or `default` when absent or null."""
        value = self.text.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = _MISSING, *, minimum: int = 0) -> int:
        """An integer of the text config in [minimum, MAX_DIMENSION]; InputError names the key otherwise."""
        return _integer(self.text, key, default, minimum, self.name)

    def size(self, key: str, default: int | None = _MISSING) -> int:
        """An integer of at least 1."""
        return self.integer(key, default, minimum=1)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.text.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise InputError(f"{self.name}: config key {key!r} must be true or false, not {value!r:.60}")

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of integers, or None when absent."""
        value = self.text.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(
            type(v) is int and 0 <= v <= MAX_DIMENSION for v in value
        ):
            raise InputError(f"{self.name}: config key {key!r} must be a list of integers")
        return tuple(value)

    def strings(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, or None when absent."""
        value = self.text.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            raise InputError(f"{self.name}: config key {key!r} must be a list of strings")
        return tuple(value)

    def sub(self, part: str) -> SubConfig:
        """A nested mapping (for example `vision_config`) with the same typed access."""
        value = self.text.get(part) or self.root.get(part)
        if not isinstance(value, Mapping):
            raise InputError(f"{self.name}: config key {part!r} must be an object")
        return SubConfig(self.name, part, value)

    # -- synonyms that vLLM resolves (transformers_utils/model_arch_config_convertor.py, 0.26.0) ---------------------
    @property
    def hidden_size(self) -> int:
        return self.size("hidden_size")

    @property
    def num_hidden_layers(self) -> int:
        return self.size("num_hidden_layers")

    @property
    def num_attention_heads(self) -> int:
        return self.size("num_attention_heads")

    @property
    def vocab_size(self) -> int:
        return self.size("vocab_size")

    @property
    def num_key_value_heads(self) -> int:
        """:109-126: first present synonym, else one KV head per query head."""
        for key in (
            "n_head_kv",
            "num_kv_heads",
            "num_key_value_heads",
            "multi_query_group_num",
            "num_attention_groups",
        ):
            if self.text.get(key) is not None:
                return self.size(key)
        return self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """:63-75: `head_dim` if present and > 0, else `hidden_size_per_head`, else hidden_size // heads."""
        if self.text.get("head_dim"):
            return self.size("head_dim")
        if self.text.get("hidden_size_per_head"):
            return self.size("hidden_size_per_head")
        return self.hidden_size // self.num_attention_heads

    @property
    def tie_word_embeddings(self) -> bool | None:
        """The top level wins over the text part (config/vllm.py:736-768); None when neither says."""
        for part in (self.root, self.text):
            value = part.get("tie_word_embeddings")
            if isinstance(value, bool):
                return value
        return None


@dataclass(frozen=True, slots=True)
class SubConfig:
    """A nested part of a config with typed access; errors name the part."""

    model: str
    part: str
    values: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = _MISSING, *, minimum: int = 0) -> int:
        return _integer(self.values, key, default, minimum, f"{self.model}: {self.part}")

    def size(self, key: str, default: int | None = _MISSING) -> int:
        return self.integer(key, default, minimum=1)


def _integer(values: Mapping[str, Any], key: str, default: int | None, minimum: int, name: str) -> int:
    value = values.get(key)
    if value is None:
        if default is _MISSING or default is None:
            raise InputError(f"{name}: config key {key!r} is missing")
        return default
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or value - value != 0
        or int(value) != value
    ):
        raise InputError(f"{name}: config key {key!r} must be an integer, not {value!r:.60}")
    most = MAX_LAYERS if value > MAX_LAYERS and _LAYER_COUNT.search(key) else MAX_DIMENSION
    if not minimum <= value <= most:
        raise InputError(f"{name}: config key {key!r} is {value}, outside [{minimum}, {most}]")
    return int(value)
