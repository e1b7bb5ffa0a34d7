"""A page on disk: all of it or nothing."""

from __future__ import annotations

from pathlib import Path

from vllm_capacity.errors import InputError
from vllm_capacity.whole_files import replace_file

SUFFIXES = (".html", ".htm")


def check_path(path: Path) -> None:
    """What can be known before any work is done. Raises InputError."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--report {path}: the name must end in {' or '.join(SUFFIXES)}")
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"--report {path}: what has this name is not a file")
        if not path.parent.is_dir():
            raise InputError(f"--report {path}: there is no folder {path.parent}")
    except OSError as error:
        raise InputError(f"--report {path}: {error.strerror or error}") from None


def write_page(path: Path, page: str) -> None:
    """Replaces what was there in one step. Raises InputError."""
    check_path(path)
    try:
        replace_file(path, page.encode("utf-8"))
    except OSError as error:
        raise InputError(f"--report {path}: {error.strerror or error}") from None
