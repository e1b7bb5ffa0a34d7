"""From bytes to clean lines: decompression, carriage returns, colours, and the prefixes that carriers add.

Everything here works on one line at a time, so a log of any size is read in constant memory.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

MAX_LINE = 64 * 1024
"""Characters kept of one line; vLLM's longest (the engine config) has a few thousand."""
CHUNK = 1 << 20

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its prefixes. `process` is vLLM's own name ('Worker_TP0', 'EngineCore'), `pid` its
    id."""

    number: int
    text: str
    process: str = ""
    pid: int | None = None
    level: str = ""
    file: str = ""


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The stream in pieces of at most CHUNK bytes, decompressed if it starts like a gzip file.

    What can be read of a stream that breaks off, or of a broken gzip file, is given; then it ends quietly.
    """
    first = _read(stream)
    if first[:2] != GZIP_MAGIC:
        while first:
            yield first
            first = _read(stream)
        return
    unpack = zlib.decompressobj(wbits=31)
    data = first
    while data:
        try:
            piece = unpack.decompress(data, CHUNK)
        except zlib.error:
            return
        if piece:
            yield piece
        data = unpack.unconsumed_tail
        if unpack.eof:
            data, unpack = unpack.unused_data, zlib.decompressobj(wbits=31)  # the next member
        if not data:
            data = _read(stream)


def _read(stream: BinaryIO) -> bytes:
    try:
        return stream.read(CHUNK) or b""
    except (OSError, EOFError):
        return b""


def split_bytes(stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """(line number, text): a carriage return ends a text, not a line, so that a progress bar counts as one
    line."""
    number, rest, overlong = 1, b"", False
    for chunk in chunks(stream):
        pieces = (rest + chunk).split(b"\n")
        rest = pieces.pop()
        for piece in pieces:
            if not overlong:
                yield from _texts(number, piece)
            overlong = False
            number += 1
        if len(rest) > MAX_LINE:
            if not overlong:
                yield from _texts(number, rest[:MAX_LINE])
            rest, overlong = b"", True
    if rest and not overlong:
        yield from _texts(number, rest)


def _texts(number: int, piece: bytes) -> Iterator[tuple[int, str]]:
    text = piece[:MAX_LINE].decode("utf-8", "replace")
    if "\r" not in text:
        yield number, text
        return
    for part in text.split("\r"):
        if part:
            yield number, part


_ANSI = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
_DOCKER_KEYS = ("log", "message", "msg", "MESSAGE", "textPayload")
_CARRIER = re.compile(
    r"""^\s*(?:
        \[pod/[\w.-]+/[\w.-]+\]\s                                  # kubectl logs --prefix
      | (?:[\w.-]+/)?[\w.-]+\s+[\w.-]+\s+(?=\d{4}-\d\d-\d\dT)      # stern
      | \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s(?:\|\s)?  # --timestamps
      | (?:stdout|stderr)\s[FP]\s                                  # CRI files
      | [\w.-]+\s*\|\s                                             # docker compose
      | [A-Z][a-z]{2}\s+\d+\s\d\d:\d\d:\d\d\s\S+\s\S+?\[\d+\]:\s   # journald
    )""",
    re.VERBOSE,
)
_PROCESS = re.compile(
    r"^\s*\(?(?P<name>(?:[A-Z][A-Za-z]*(?:Core|Worker|Server|Proc|Process|Client|Engine|Coordinator)?\w*|Wor"
    r"ker|pid=\S+)"
    r"(?:\s+rank=\d+)?)\s+pid=(?P<pid>\d+)(?:,\s*ip=[\w.:]+)?\)\s?"
)
_HEADER = re.compile(
    r"^\s*(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+"
    r"(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\s+\[(?P<file>[^\]\s:]+):\d+\]\s?"
)


def clean(number: int, text: str) -> Line:
    """The line without colours and prefixes; the carriers may be nested in any order."""
    if "\x1b" in text or not text.isprintable():
        text = _ANSI.sub("", text)
    text = _unwrap_json(text)
    process, pid, level, file = "", None, "", ""
    for _ in range(6):
        header = _HEADER.match(text)
        if header:
            level, file, text = header["level"], header["file"], text[header.end() :]
            continue
        named = _PROCESS.match(text)
        if named:
            process, pid, text = named["name"], int(named["pid"][:12]), text[named.end() :]
            continue
        carrier = _CARRIER.match(text)
        if carrier:
            text = text[carrier.end() :]
            continue
        break
    return Line(number, text, process, pid, level, file)


def _unwrap_json(text: str) -> str:
    """The message of a docker or structured JSON line; other text as it is."""
    start = text.lstrip()
    if not start.startswith('{"'):
        return text
    try:
        data = json.loads(start)
    except (ValueError, RecursionError):
        return text
    if isinstance(data, dict):
        for key in _DOCKER_KEYS:
            value = data.get(key)
            if isinstance(value, str):
                return _ANSI.sub("", value.rstrip("\r\n"))
    return text


def clean_lines(stream: BinaryIO) -> Iterator[Line]:
    """Clean lines of a plain or gzip stream."""
    for number, text in split_bytes(stream):
        if "HTTP/1." in text and '"' in text:
            continue  # the access log: most of a long log, and nothing about memory
        yield from _split_carriage(number, clean(number, text))


def clean_texts(texts: Iterable[str]) -> Iterator[Line]:
    """Clean lines of text that is already split."""
    for number, text in enumerate(texts, 1):
        for part in re.split(r"[\r\n]+", text[:MAX_LINE]):
            if part:
                yield clean(number, part)


def _split_carriage(number: int, line: Line) -> Iterator[Line]:
    # A JSON line can carry several lines of its own.
    if "\n" not in line.text and "\r" not in line.text:
        yield line
        return
    for part in re.split(r"[\r\n]+", line.text):
        if part:
            inner = clean(number, part)
            yield (
                inner
                if inner.process or not line.process
                else Line(
                    number,
                    inner.text,
                    line.process,
                    line.pid,
                    inner.level or line.level,
                    inner.file or line.file,
                )
            )
