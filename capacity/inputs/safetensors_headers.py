"""Tensor names, dtypes and shapes from a checkpoint's safetensors headers: local, or ranges from the Hub.

Only headers travel: the index names the shards, then the first bytes of each shard are read, in parallel,
with retries. What was read is kept by commit in a small cache: a second plan of a commit needs no network.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.hub_cache import cached_file
from vllm_capacity.inputs.patience import OutOfTimeError, patience_s
from vllm_capacity.inputs.safetensors_format import (
    DTYPE_BITS,
    TensorInfo,
    header_length,
    join,
    parse_header,
    possible_shape,
    shard_names,
)
from vllm_capacity.whole_files import replace_file

__all__ = ["CheckpointHeaders", "Progress", "TensorInfo", "read_headers", "read_hub", "read_local"]

MAX_INDEX_BYTES = 100 * 1000 * 1000
FIRST_BYTES = 100_000
"""One request reads this much; most headers fit (huggingface_hub measured 97 %)."""

WORKERS = 8
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


@dataclass(frozen=True, slots=True)
class CheckpointHeaders:
    """All tensors of a checkpoint, sorted by name."""

    tensors: tuple[TensorInfo, ...]
    n_files: int
    source: str
    commit: str | None = None

    @property
    def n_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def n_elements(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)


Progress = Callable[[int, int], None]
"""Called with (shards read, shards in all)."""


def read_headers(
    spec: str, *, revision: str | None = None, offline: bool = False, progress: Progress | None = None
) -> CheckpointHeaders:
    """The headers of a folder's or a Hub repository's safetensors files. Raises InputError."""
    path = Path(spec).expanduser()
    if path.exists():
        return read_local(path)
    return read_hub(spec, revision=revision, offline=offline, progress=progress)


# -- local ---------------------------------------------------------------------------------------------------


def read_local(path: Path) -> CheckpointHeaders:
    """Headers of a folder's shards (those its index names, else all *.safetensors) or of one file."""
    files = [path] if path.is_file() else _local_shards(path)
    shards = [(file.name, _read_file(file)) for file in files]
    return CheckpointHeaders(join(shards), len(files), f"safetensors headers of {path}")


def _local_shards(folder: Path) -> list[Path]:
    index = folder / INDEX_NAME
    try:
        if index.is_file():
            with index.open("rb") as handle:
                data = handle.read(MAX_INDEX_BYTES + 1)
            if len(data) > MAX_INDEX_BYTES:
                raise InputError(f"{index} is larger than {MAX_INDEX_BYTES:,} bytes")
            names = shard_names(data, str(index))
            missing = [name for name in names if not (folder / name).is_file()]
            if missing:
                raise InputError(
                    f"{folder} lacks {len(missing)} of its {len(names)} shards, {missing[0]:.80} for one"
                )
            return [folder / name for name in names]
    except OSError as error:
        raise InputError(f"{index} cannot be read: {error.strerror or error}") from None
    files = sorted(
        file for file in folder.glob("*.safetensors") if file.is_file()
    )  # no pipe: it would never end
    # Mistral's own consolidated files hold the same weights once more; vLLM reads the ones or the others
    # (model_loader/default_loader.py: _prepare_weights)
    files = [file for file in files if not file.name.startswith("consolidated")] or files
    if not files:
        raise InputError(f"{folder} has no safetensors files; --weights config needs none")
    return files


def _read_file(file: Path) -> list[TensorInfo]:
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            length = header_length(handle.read(8), str(file), size)
            return parse_header(handle.read(length), str(file), size - 8 - length)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None


# -- hub -----------------------------------------------------------------------------------------------------


def read_hub(
    repository: str, *, revision: str | None = None, offline: bool = False, progress: Progress | None = None
) -> CheckpointHeaders:
    """Headers of a repository by HTTP range requests; cached by commit."""
    from vllm_capacity.inputs.hub import explain, fetch_file, is_offline, read_bounded

    offline = offline or is_offline()
    index = fetch_file(
        repository, INDEX_NAME, revision=revision, offline=offline, optional=True, limit=MAX_INDEX_BYTES
    )
    commit = index.commit if index else None
    if commit is None and offline:
        cached = cached_file(repository, "config.json", revision)
        commit = cached[1] if cached else None
    if commit is not None:
        kept = load_cached(repository, commit)
        if kept is not None:
            return kept
    if offline:
        raise InputError(f"the safetensors headers of {repository} are not cached and the network is off")
    names = [SINGLE_NAME]
    if index:
        names = shard_names(read_bounded(index.path, MAX_INDEX_BYTES), f"{INDEX_NAME} of {repository}")

    def read(name: str) -> tuple[str, list[TensorInfo], str | None]:
        return name, *_read_shard(repository, name, commit or revision)

    try:
        shards = _in_parallel(read, names, progress)
    except InputError:
        raise
    except Exception as error:  # the library's, the HTTP client's and the system's errors
        if not index and names == [SINGLE_NAME] and _is_missing(error):
            raise InputError(f"{repository} has no safetensors files; use --weights config") from None
        raise explain(error, repository, "safetensors headers", revision) from None
    commit = commit or shards[0][2]
    headers = CheckpointHeaders(
        join((name, tensors) for name, tensors, _ in shards),
        len(names),
        f"safetensors headers of {repository} on the Hugging Face Hub",
        commit,
    )
    if commit is not None:
        _store_cached(repository, commit, headers)
    return headers


def _read_shard(repository: str, name: str, revision: str | None) -> tuple[list[TensorInfo], str | None]:
    """(tensors, commit) of one file, plainly where that goes, else as huggingface_hub does it."""
    from vllm_capacity.inputs.plain_hub import start_of

    what = f"{name} of {repository}"
    start = start_of(
        repository, name, revision, FIRST_BYTES, lambda first, size: 8 + header_length(first, what, size)
    )
    if start is not None:
        length = header_length(start.data, what, start.size)
        return parse_header(start.data[8 : 8 + length], what, start.size - 8 - length), start.commit
    import huggingface_hub as hub
    from vllm_capacity.inputs.http_ranges import get_range, retry
    from vllm_capacity.inputs.hub import check_settings

    check_settings()
    url = hub.hf_hub_url(repository, name, revision=revision)
    facts = retry(lambda: hub.get_hf_file_metadata(url))
    location = facts.location or url
    first = get_range(location, 0, FIRST_BYTES - 1)
    length = header_length(first, what, facts.size)
    data = first[8 : 8 + length]
    if len(data) < length:
        data += get_range(location, 8 + len(data), 7 + length)
    if len(data) != length:
        raise InputError(f"{what} arrived incomplete; try again")
    return parse_header(data, what, facts.size and facts.size - 8 - length), facts.commit_hash


def _in_parallel(
    read: Callable[[str], tuple[str, list[TensorInfo], str | None]],
    names: Sequence[str],
    progress: Progress | None,
) -> list[tuple[str, list[TensorInfo], str | None]]:
    """In the order of `names`. The threads are daemons: neither Ctrl-C nor an error waits for a server that hangs."""
    todo: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, tuple[str, list[TensorInfo], str | None] | BaseException]] = SimpleQueue()
    for index in range(len(names)):
        todo.put(index)

    def work() -> None:
        with suppress(Empty):
            while True:
                index = todo.get_nowait()
                try:
                    done.put((index, read(names[index])))
                except BaseException as error:
                    done.put((index, error))

    for _ in range(min(WORKERS, len(names))):
        threading.Thread(target=work, daemon=True).start()
    shards: dict[int, tuple[str, list[TensorInfo], str | None]] = {}
    try:
        while len(shards) < len(names):
            index, answer = done.get(timeout=patience_s())
            if isinstance(answer, BaseException):
                raise answer
            shards[index] = answer
            if progress is not None:
                progress(len(shards), len(names))
    except Empty:
        raise OutOfTimeError from None
    finally:
        with suppress(Empty):  # what is not begun is not read any more
            while True:
                todo.get_nowait()
    return [shards[index] for index in range(len(names))]


def _is_missing(error: BaseException) -> bool:
    from huggingface_hub import errors

    return isinstance(error, errors.EntryNotFoundError)


# -- cache ---------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """HF_HOME, else XDG_CACHE_HOME, else ~/.cache, each with a folder of our own."""
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "vllm-capacity"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vllm-capacity"


def _cache_file(repository: str, commit: str) -> Path:
    key = hashlib.sha256(f"{repository}@{commit}".encode()).hexdigest()[:32]
    return cache_folder() / "headers" / f"{key}.json"


def load_cached(repository: str, commit: str) -> CheckpointHeaders | None:
    """What `_store_cached` wrote; anything else in its place counts as not cached."""
    try:
        value = json.loads(_cache_file(repository, commit).read_bytes())
        if value["repository"] != repository or value["commit"] != commit:
            return None
        tensors = tuple(
            TensorInfo(str(n), str(d), tuple(map(int, s)), int(b)) for n, d, s, b in value["tensors"]
        )
        if not all(t.dtype in DTYPE_BITS and possible_shape(t.shape) for t in tensors):
            return None
        return CheckpointHeaders(tensors, int(value["n_files"]), f"{value['source']} (cached)", commit)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _store_cached(repository: str, commit: str, headers: CheckpointHeaders) -> None:
    """A reader sees all of it or nothing; a full disk or a read-only home is no error."""
    file = _cache_file(repository, commit)
    value = {
        "repository": repository,
        "commit": commit,
        "source": headers.source,
        "n_files": headers.n_files,
        "tensors": [(t.name, t.dtype, t.shape, t.n_bytes) for t in headers.tensors],
    }
    with suppress(OSError):
        replace_file(file, json.dumps(value, separators=(",", ":")).encode(), lasting=False)
