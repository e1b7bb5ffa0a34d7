"""Where huggingface_hub keeps a model's files, found and written without importing it.

Layout: <cache>/models--owner--name/refs/<revision> holds a commit, snapshots/<commit>/<file> points to blobs/<hash>
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from vllm_capacity.whole_files import replace_file


def hub_home() -> Path:
    """huggingface_hub/constants.py: HF_HOME, else huggingface in XDG_CACHE_HOME or ~/.cache."""
    home = os.environ.get("HF_HOME")
    base = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return base.expanduser()


def hub_cache() -> Path:
    """huggingface_hub/constants.py: HF_HUB_CACHE (HUGGINGFACE_HUB_CACHE), else `hub` in its home."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(given).expanduser() if given else hub_home() / "hub"


def model_folder(repository: str) -> Path:
    return hub_cache() / f"models--{repository.replace('/', '--')}"


def is_commit(revision: str) -> bool:
    return len(revision) == 40 and all(c in "0123456789abcdef" for c in revision)


def cached_commit(repository: str, revision: str | None) -> str | None:
    """The commit that the cache knows under this revision."""
    revision = revision or "main"
    if repository.count("/") != 1 or ".." in repository or ".." in revision:
        return None
    if is_commit(revision):
        return revision
    try:
        commit = (model_folder(repository) / "refs" / revision).read_text()[:64].strip()
    except (OSError, ValueError):
        return None
    return commit if commit.isalnum() else None


def cached_file(repository: str, name: str, revision: str | None) -> tuple[Path, str] | None:
    """(path, commit) of a file in the cache."""
    commit = cached_commit(repository, revision)
    if commit is None:
        return None
    path = model_folder(repository) / "snapshots" / commit / name
    return (path, commit) if path.is_file() else None


def keep_file(repository: str, name: str, revision: str, commit: str, blob: str, data: bytes) -> Path:
    """Puts a file where huggingface_hub would. Readers see all of it or nothing. Raises OSError."""
    folder = model_folder(repository)
    pointer = folder / "snapshots" / commit / name
    if not is_commit(revision):
        ref = folder / "refs" / revision
        if cached_commit(repository, revision) != commit:
            replace_file(ref, commit.encode(), lasting=False)
    if not pointer.is_file():
        if not (folder / "blobs" / blob).is_file():
            replace_file(folder / "blobs" / blob, data, lasting=False)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another process was quicker
            pointer.symlink_to(os.path.relpath(folder / "blobs" / blob, pointer.parent))
        if not pointer.is_file():
            raise FileNotFoundError(pointer)
    return pointer
