"""Text and YAML from files of strangers: bounded in size and in what they expand to, and every fault is one InputError.

YAML is read by PyYAML's safe loader only: no tag makes an object, nothing is executed. Aliases and merge keys can make
a small file stand for a huge value; both are counted before anything walks over the value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm_capacity.errors import InputError

MAX_BYTES = 1 << 20
"""The largest YAML file read; the largest known (a matrix of runs) has 10 kB."""

MAX_VALUES = 100_000
"""Values of one YAML file, each counted as often as aliases repeat it."""

MAX_ALIASES = 1000
MAX_MERGED = 5000
"""Keys of one mapping with `<<`."""


def read_text(path: Path, what: str, limit: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file without a byte order mark, line ends as \\n. Never reads more than `limit` bytes.

    `what` names the file in errors. Raises InputError.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise InputError(f"{what} cannot be read: {error.strerror or error}") from None
    if len(data) > limit:
        raise InputError(f"{what}: the file is larger than {limit:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_yaml(path: Path, what: str, limit: int = MAX_BYTES) -> Any:
    """The plain values of a YAML file. Raises InputError."""
    return parse_yaml(read_text(path, what, limit), what)


def parse_yaml(text: str, what: str) -> Any:
    """The plain values (mappings, lists, texts, numbers, dates) of a YAML text. Raises InputError."""
    import yaml  # costs start-up time, and most commands read none

    class Loader(yaml.SafeLoader):
        aliases = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                self.aliases += 1
                if self.aliases > MAX_ALIASES:
                    raise yaml.YAMLError(f"more than {MAX_ALIASES:,} aliases")
            return super().compose_node(parent, index)

        def flatten_mapping(self, node: Any) -> None:
            before = len(node.value)
            super().flatten_mapping(node)
            if len(node.value) > max(before, MAX_MERGED):
                raise yaml.YAMLError(f"more than {MAX_MERGED:,} merged keys")

    try:
        value = yaml.load(text, Loader)
    # PyYAML's constructors let errors of int(), float(), datetime() and of their own lookups through
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        raise InputError(f"{what} is not YAML: {error!s:.160}") from None
    except RecursionError:
        raise InputError(f"{what} is not YAML: it is nested too deeply") from None
    _check_size(value, what)
    return value


def _check_size(value: Any, what: str) -> None:
    """Counts what a walk over the value would meet; an alias that holds itself never ends, so it fails too."""
    level: list[Any] = [value]
    seen = 0
    while level:
        inside: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                inside += node.values()
            elif isinstance(node, (list, set, tuple)):
                inside += node
            if seen + len(inside) > MAX_VALUES:
                raise InputError(
                    f"{what} stands for more than {MAX_VALUES:,} values (aliases that repeat or hold themselves)"
                )
        seen += len(inside)
        level = inside
