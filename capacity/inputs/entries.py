"""Reads one entry of a large YAML file of facts without parsing the rest, and without PyYAML.

The two files of facts (`models.yaml`, `gpus.yaml`) keep to a small part of YAML that this module can slice:
under one top-level key, entries start at two spaces of indentation, fields at four, and every field is one
line whose value is JSON (which is YAML too). Tests hold the slices equal to a full parse by PyYAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ENTRY = re.compile(r"^  ([^\s#:][^\s:]*):$", re.MULTILINE)
_FIELD = re.compile(r"^    ([a-z_]+): (.+)$", re.MULTILINE)


class EntryFile:
    """A file of entries by id. Reads the file once, on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text: str | None = None
        self._folded: dict[str, str] | None = None

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = self.path.read_text(encoding="utf-8")
        return self._text

    def ids(self) -> list[str]:
        """All ids in file order."""
        return _ENTRY.findall(self.text)

    def canonical(self, entry_id: str) -> str | None:
        """The id as the file spells it, whatever the case of `entry_id`; None when unknown."""
        if f"\n  {entry_id}:\n" in self.text:
            return entry_id
        if self._folded is None:
            self._folded = {name.casefold(): name for name in self.ids()}
        return self._folded.get(entry_id.casefold())

    def get(self, entry_id: str) -> dict[str, Any] | None:
        """The fields of one entry, found case-insensitively, or None."""
        name = self.canonical(entry_id)
        if name is None:
            return None
        head = f"\n  {name}:\n"
        start = self.text.index(head) + len(head)
        following = _ENTRY.search(self.text, start)
        return _fields(self.text[start : following.start() if following else len(self.text)])

    def items(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every entry, sliced."""
        heads = list(_ENTRY.finditer(self.text))
        for head, following in zip(heads, [*heads[1:], None], strict=True):
            yield head[1], _fields(self.text[head.end() : following.start() if following else len(self.text)])


def _fields(block: str) -> dict[str, Any]:
    return {match[1]: json.loads(match[2]) for match in _FIELD.finditer(block)}
