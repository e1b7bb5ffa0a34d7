"""Which layers a checkpoint leaves unquantised: vLLM's matching of prefixes against an ignore list."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from functools import lru_cache

from vllm_capacity.errors import InputError, Reason, RefusedError

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
"""Checkpoint names behind vLLM's fused layers (the models' `packed_modules_mapping`)."""

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?=\.|$)")
_TEXT = re.compile(r"^(?:model\.language_model\.|language_model\.model\.)")
_OUTER = re.compile(
    r"^(?:language_model\.|model\.(?=visual|vision|multi_modal|mm_|audio|embed_vision|embed_audio))"
)


@lru_cache(maxsize=65536)
def plain_name(name: str) -> str:
    """A module's name without what the checkpoint or vLLM puts around the text model.

    vLLM maps 'model.language_model.layers.0' to 'language_model.model.layers.0' before it compares
    (`hf_to_vllm_mapper`, models/utils.py); both become 'model.layers.0' here. Nemotron-H's checkpoints say
    'backbone.layers.0' (models/nemotron_h.py: NemotronHForCausalLM).
    """
    if name.startswith("backbone."):
        return "model." + name.removeprefix("backbone.")
    return _OUTER.sub("", _TEXT.sub("model.", name))


def shards_of(prefix: str) -> tuple[str, ...]:
    """The checkpoint's modules behind a fused layer; () where the layer is not fused."""
    stem, _, last = prefix.rpartition(".")
    return tuple(f"{stem}.{shard}" for shard in FUSED.get(last, ()))


def all_alike(prefix: str, shards: Iterable[str], test: Callable[[str], Hashable]) -> Hashable:
    """What `test` says about every shard. Raises RefusedError where they differ, as vLLM does."""
    found = {test(shard) for shard in shards}
    if len(found) > 1:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"Detected some but not all shards of {prefix} are quantized."
            " All shards of fused layers to have the same precision.",
        )
    return found.pop()


class IgnoreList:
    """`is_layer_skipped`, layers/quantization/utils/quant_utils.py:510-575 (0.26.0).

    `substring` is its `skip_with_substr`: an entry matches anywhere in the prefix, otherwise only as the
    whole prefix.
    """

    def __init__(self, entries: Sequence[str], *, substring: bool = False) -> None:
        self.entries = frozenset(plain_name(entry) for entry in entries)
        self.substring = substring
        self._classes = classes_of(self.entries)

    def layer_class(self, index: int) -> frozenset[str]:
        """Equal for two layers that the list treats alike."""
        return self._classes.get(index, frozenset())

    def skips(self, prefix: str) -> bool:
        """True where vLLM leaves `prefix` ('model.layers.0.self_attn.qkv_proj') unquantised.

        Raises InputError where only some shards of a fused layer are listed (vLLM refuses that).
        """
        if not self.entries:
            return False
        prefix = plain_name(prefix)
        shards = shards_of(prefix)
        if shards:
            return self._match(prefix) or bool(all_alike(prefix, shards, self._match))
        if "experts" in prefix and not self.substring:
            return any("experts" in entry and prefix in entry for entry in self.entries)
        return self._match(prefix)

    def _match(self, prefix: str) -> bool:
        if self.substring:
            return any(entry in prefix for entry in self.entries)
        return prefix in self.entries


class WildcardList:
    """`ModelOptQuantConfigBase.is_layer_excluded`, quantization/modelopt.py:131-180 (0.26.0): whole names, parts
    of names, shell patterns.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        names: list[str] = []
        for entry in entries:
            # ModelOpt writes `path*` for the whole tree below `path`
            if len(entry) >= 2 and entry[-1] == "*" and entry[-2] != ".":
                names += [entry[:-1], entry[:-1] + ".*"]
            else:
                names.append(entry)
        self.names = tuple(dict.fromkeys(plain_name(name) for name in names))
        self.exact = IgnoreList(self.names)
        self.patterns = tuple(
            re.compile(_translate(name)) for name in self.names if "*" in name or "?" in name
        )
        self._classes = classes_of(self.names)

    def layer_class(self, index: int) -> frozenset[str]:
        return self._classes.get(index, frozenset())

    def skips(self, prefix: str) -> bool:
        if not self.names:
            return False
        prefix = plain_name(prefix)
        if self.exact.skips(prefix):
            return True
        if any(name in prefix for name in self.names if name != prefix):
            return True
        return any(pattern.match(prefix) for pattern in self.patterns)


def _translate(pattern: str) -> str:
    from fnmatch import translate

    return translate(pattern)


class PatternList:
    """Entries of compressed-tensors, Quark and online quantisation: whole names, or regular expressions after `re:`.

    Source: `should_ignore_layer` and `_is_equal_or_regex_match`, compressed_tensors/utils.py:66-132 and
    186-203 (0.26.0): expressions match from the start of the prefix as vLLM writes it.
    """

    def __init__(self, entries: Sequence[str], model: str = "") -> None:
        self.exact = frozenset(plain_name(entry) for entry in entries if not entry.startswith("re:"))
        self.patterns = tuple(
            compile_pattern(entry[3:], model) for entry in entries if entry.startswith("re:")
        )
        self._classes = classes_of(self.exact)
        self.by_layer = any(_tells_layers_apart(entry) for entry in entries if entry.startswith("re:"))

    def layer_class(self, index: int) -> Hashable:
        return index if self.by_layer else self._classes.get(index, frozenset())

    def skips(self, prefix: str) -> bool:
        shards = shards_of(prefix)
        if shards and plain_name(prefix) not in self.exact:
            return bool(all_alike(prefix, shards, self.matches))
        return self.matches(prefix)

    def matches(self, name: str) -> bool:
        return plain_name(name) in self.exact or any(pattern.match(name) for pattern in self.patterns)


def compile_pattern(text: str, model: str) -> re.Pattern[str]:
    """A checkpoint's regular expression. Raises InputError where it is none or absurdly long."""
    if len(text) > 1000:
        raise InputError(
            f"{model}: an ignore pattern has {len(text)} characters; a checkpoint's have at most 1000"
        )
    if re.search(r"[*+}]\s*\)\s*[*+{]", text):
        raise InputError(
            f"{model}: the ignore pattern {text!r:.60} nests repetitions, which can take forever"
        )
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError):
        raise InputError(f"{model}: the ignore pattern {text!r:.60} is not a regular expression") from None


def _tells_layers_apart(pattern: str) -> bool:
    """False for patterns that say nothing about a layer's number: no digit and no class of digits."""
    return bool(re.search(r"\d|\\d|\[", pattern[3:]))


def classes_of(entries: Iterable[str]) -> Mapping[int, frozenset[str]]:
    """Layer index -> what the entries say about that layer, without its number."""
    per_index: dict[int, set[str]] = {}
    for entry in entries:
        found = _LAYER.search(entry)
        if found:
            per_index.setdefault(int(found[1]), set()).add(entry[found.end() :])
    return {index: frozenset(names) for index, names in per_index.items()}


@lru_cache(maxsize=64)
def ignore_list(entries: tuple[str, ...], substring: bool = False) -> IgnoreList:
    """A cached list: checkpoints name hundreds of layers, and a plan is made many times."""
    return IgnoreList(entries, substring=substring)


def matches_wildcard(name: str, pattern: str) -> bool:
    """Quark's rule: without an asterisk the layer's name must be part of the pattern."""
    return fnmatch(name, pattern) if "*" in pattern else name in pattern


def strings(value: object, what: str, model: str) -> tuple[str, ...]:
    """A list of strings of a quantisation block; None is empty. Raises InputError for anything else."""
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(entry, str) for entry in value):
        raise InputError(f"{model}: {what!r} in the quantisation block must be a list of strings")
    return tuple(value)
