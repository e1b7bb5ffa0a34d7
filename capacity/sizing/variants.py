"""Quantised checkpoints of the same model that the catalogue knows."""

from __future__ import annotations

import re
from functools import cache

from vllm_capacity.inputs.catalogue import find_entry, load_entry, model_ids
from vllm_capacity.inputs.model_config import ModelConfig

_FORMAT = re.compile(
    r"(fp8|fp4|nvfp4|mxfp4|awq|gptq|int[48]|w4a16|w8a8|w4a8|w8a16|[48]bits?|bnb|dynamic|block|kv|quantized|g128|"
    r"modelopt|marlin|autoround|hqq|gguf|eetq|ct|compressed|tensors|symmetric|asym|sym|nf4|unsloth|quant|v\d+)$"
)
"""Words at the end of a repository's name that say how it was quantised."""
_OWNERS = re.compile(r"^(meta-|neuralmagic-|redhatai-)")


def stem(model_id: str) -> str:
    """A repository's name without its owner and without the words that name a format."""
    name = model_id.rpartition("/")[2].casefold()
    words = re.split(r"[-_]", _OWNERS.sub("", name))
    while len(words) > 1 and _FORMAT.fullmatch(words[-1]):
        words.pop()
    return "-".join(words)


def variants(config: ModelConfig) -> tuple[ModelConfig, ...]:
    """Catalogue entries with the same stem and the same layers as `config`, but another quantisation; by id."""
    if find_entry(config.name) is None:
        return ()
    found = []
    shape = _shape(config)
    for model_id in _by_stem().get(stem(config.name), ()):
        entry = find_entry(model_id)
        if entry is None or entry.model_id.casefold() == config.name.casefold() or entry.model_id != model_id:
            continue
        other = load_entry(entry)
        if other.quantization and other.quantization != config.quantization and _shape(other) == shape:
            found.append(other)
    return tuple(sorted(found, key=lambda other: other.name))


@cache
def _by_stem() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for model_id in model_ids():
        found.setdefault(stem(model_id), []).append(model_id)
    return found


def _shape(config: ModelConfig) -> tuple[object, ...]:
    keys = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "num_experts",
    )
    return (config.architectures, *(config.get(key) for key in keys))
