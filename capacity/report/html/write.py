"""A page on disk: all of it or nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from vllm_capacity.errors import InputError

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
    """Written beside its name and then moved onto it, so that no reader ever meets half a page. Raises InputError."""
    check_path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(page, encoding="utf-8", newline="\n")
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"--report {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
