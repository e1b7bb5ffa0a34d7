"""Which layers a checkpoint leaves unquantised: vLLM's matching of prefixes against an ignore list."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from vllm_capacity.errors import InputError

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
}
"""Checkpoint names behind vLLM's fused layers (the models' `packed_modules_mapping`)."""

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?=\.|$)")


class IgnoreList:
    """`is_layer_skipped`, layers/quantization/utils/quant_utils.py:510-575 (0.26.0).

    `substring` is its `skip_with_substr`: an entry matches anywhere in the prefix, otherwise only as the
    whole prefix.
    """

    def __init__(self, entries: Sequence[str], *, substring: bool = False) -> None:
        self.entries = frozenset(entries)
        self.substring = substring
        per_index: dict[int, set[str]] = {}
        for entry in self.entries:
            found = _LAYER.search(entry)
            if found:
                per_index.setdefault(int(found[1]), set()).add(entry[found.end() :])
        self._classes = {index: frozenset(names) for index, names in per_index.items()}

    def layer_class(self, index: int) -> frozenset[str]:
        """Equal for two layers that the list treats alike."""
        return self._classes.get(index, frozenset())

    def skips(self, prefix: str) -> bool:
        """True where vLLM leaves `prefix` ('model.layers.0.self_attn.qkv_proj') unquantised.

        Raises InputError where only some shards of a fused layer are listed (vLLM refuses that).
        """
        if not self.entries:
            return False
        stem, _, last = prefix.rpartition(".")
        shards = FUSED.get(last)
        if shards is not None:
            if self._match(prefix):
                return True
            skipped = {self._match(f"{stem}.{shard}") for shard in shards}
            if len(skipped) > 1:
                raise InputError(
                    f"Detected some but not all shards of {prefix} are quantized."
                    " All shards of fused layers to have the same precision."
                )
            return skipped.pop()
        if "experts" in prefix and not self.substring:
            return any("experts" in entry and prefix in entry for entry in self.entries)
        return self._match(prefix)

    def _match(self, prefix: str) -> bool:
        if self.substring:
            return any(entry in prefix for entry in self.entries)
        return prefix in self.entries


@lru_cache(maxsize=64)
def ignore_list(entries: tuple[str, ...], substring: bool = False) -> IgnoreList:
    """A cached list: checkpoints name hundreds of layers, and a plan is made many times."""
    return IgnoreList(entries, substring=substring)
