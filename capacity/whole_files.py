"""Files that are never left half-written: replaced in one step, appended to by one process at a time."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

COPY_BYTES = 1 << 20


def replace_file(path: Path, data: bytes, *, lasting: bool = True) -> None:
    """`data` becomes the content of `path`: readers see the old file or the new one. Raises OSError.

    What is not `lasting`, a cache, does not wait for the disk.
    """
    path = path.resolve()  # a link stays one
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _check_regular(path.stat())
    with _replacement(path, lasting=lasting) as file:
        file.write(data)


def append_line(path: Path, line: bytes, *, whole: Callable[[bytes], bool]) -> None:
    """Adds a line (which ends with a newline) to a file of lines; readers see the file without it or with all of it.

    A last line without a newline gets one if it is `whole`, else it is what a crash left and is removed. Other processes
    that append wait. Raises OSError.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path) as file:
        _remove_leftovers(path)
        kept, newline = _kept(file, whole)
        file.seek(0)
        with _replacement(path) as new:
            _copy(file, new, kept)
            new.write(newline + line)


def check_appendable(path: Path) -> None:
    """Raises OSError where `append_line` could not write."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    existed = path.exists()
    with _locked(path):
        try:
            with _replacement(path, keep=False) as new:
                new.write(b"\n" * 4096)
        finally:
            if not existed:
                path.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """The file, open for reading and locked; made where there is none. The lock is on the file that has the name now."""
    import fcntl  # not on Windows, where records are not written

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "rb") as file:
            _check_regular(os.fstat(descriptor))
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                current = os.stat(path)
            except FileNotFoundError:
                continue
            if os.path.samestat(os.fstat(descriptor), current):
                yield file
                return
            # another process replaced the file while this one waited


@contextmanager
def _replacement(path: Path, *, keep: bool = True, lasting: bool = True) -> Iterator[IO[bytes]]:
    """A file beside `path` that takes its place, with its permissions, once it is written; else it is removed."""
    temporary = path.with_name(f"{_prefix(path)}{os.urandom(8).hex()}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        if keep:
            with suppress(FileNotFoundError):
                temporary.chmod(path.stat().st_mode & 0o777)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _check_regular(state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def _prefix(path: Path) -> str:
    return f".{path.name}.replacing-"


def _remove_leftovers(path: Path) -> None:
    """Replacements of processes that were killed: whoever holds the lock is the only one that writes any."""
    for left in path.parent.iterdir():
        if left.name.startswith(_prefix(path)):
            left.unlink(missing_ok=True)


def _kept(file: BinaryIO, whole: Callable[[bytes], bool]) -> tuple[int, bytes]:
    """How many bytes of the file stay, and what is missing at their end."""
    size = file.seek(0, os.SEEK_END)
    start, tail = size, b""
    while start > 0 and b"\n" not in tail:
        step = min(COPY_BYTES, start)
        start -= step
        file.seek(start)
        tail = file.read(step) + tail
    unfinished = tail.rpartition(b"\n")[2]
    if not unfinished or whole(unfinished):
        return size, b"\n" if unfinished else b""
    return size - len(unfinished), b""


def _copy(source: BinaryIO, target: IO[bytes], n_bytes: int) -> None:
    while n_bytes > 0:
        piece = source.read(min(COPY_BYTES, n_bytes))
        if not piece:
            return
        target.write(piece)
        n_bytes -= len(piece)
