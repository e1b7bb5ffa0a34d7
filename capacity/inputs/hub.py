"""Fetches a model's small files from the Hugging Face Hub.

The usual answers come without a library (plain_hub.py). All else is huggingface_hub's (imported here and nowhere at
start-up; only calls that exist from 0.34 to 2.x), so HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they
mean elsewhere. Every failure becomes one InputError line that says what to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.config_json import CONFIG_NAME, MAX_CONFIG_BYTES, QUANTISATION_NAME, parse_json
from vllm_capacity.inputs.hub_cache import cached_file
from vllm_capacity.inputs.patience import OutOfTimeError, in_time, patience_s


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of one commit in the local cache."""

    path: Path
    commit: str | None
    fresh: bool
    """False when the Hub was not asked or did not answer and the cache answered instead."""
    endpoint: str = ""
    """The Hub that answered."""


@dataclass(frozen=True, slots=True)
class HubConfig:
    """config.json and hf_quant_config.json of one commit, parsed."""

    config: dict[str, Any]
    quantization: dict[str, Any] | None
    commit: str | None
    source: str


def fetch_config(
    repository: str, *, revision: str | None = None, offline: bool = False, hint: str = ""
) -> HubConfig:
    """The config of a repository; hf_quant_config.json only where config.json has no quantisation block.

    `hint` (" did you mean ...") is appended when the repository does not exist. Raises InputError.
    """
    file = fetch_file(repository, CONFIG_NAME, revision=revision, offline=offline, hint=hint)
    assert file is not None
    root = _parse(file, f"{CONFIG_NAME} of {repository}")
    quantization = None
    if root.get("quantization_config") is None:
        beside = fetch_file(
            repository,
            QUANTISATION_NAME,
            revision=file.commit or revision,
            offline=offline or not file.fresh,
            optional=True,
        )
        if beside is not None:
            quantization = _parse(beside, f"{QUANTISATION_NAME} of {repository}")
    where = (
        f"Hugging Face Hub ({_name(file.endpoint)}" if file.fresh else "Hugging Face cache on this machine ("
    )
    commit = f"commit {file.commit[:12]}" if file.commit else f"revision {revision or 'main'}"
    source = f"{where}, {commit})" if file.fresh else f"{where}{commit})"
    return HubConfig(root, quantization, file.commit, source)


def is_offline() -> bool:
    """Whether the environment forbids the network."""
    if not any(os.environ.get(name) for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        return False
    check_settings()
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def check_settings() -> None:
    """huggingface_hub reads its variables when it is imported. Raises InputError for one that it cannot read."""
    try:
        from huggingface_hub import constants  # noqa: F401
    except ValueError as error:
        raise InputError(
            f"a variable HF_... of the environment is not what huggingface_hub expects: {error}"
        ) from None


def _parse(file: HubFile, what: str) -> dict[str, Any]:
    return parse_json(read_bounded(file.path, MAX_CONFIG_BYTES), what)


def read_bounded(path: Path, limit: int) -> bytes:
    """At most `limit` + 1 bytes of a file of the cache, which others write too. Raises InputError."""
    try:
        with path.open("rb") as file:
            return file.read(limit + 1)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}; remove it from the cache, or set HF_HOME to another"
        ) from None


def fetch_file(
    repository: str,
    name: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    optional: bool = False,
    limit: int = MAX_CONFIG_BYTES,
    hint: str = "",
) -> HubFile | None:
    """A small file through the local cache; None if it does not exist and is `optional`.

    The Hub is asked for the file's size and commit first: a file of more than `limit` bytes is refused before
    it travels, and a cached file of the same commit is used as it is. Without an answer the cached file is
    used.
    """
    if not offline:
        from vllm_capacity.inputs.plain_hub import MISSING, PlainFile, fetch

        try:
            plain = fetch(repository, name, revision, limit)
        except OutOfTimeError as error:
            kept = cached_file(repository, name, revision)
            if kept is None:
                raise explain(error, repository, name, revision, hint) from None
            return HubFile(*kept, fresh=False)
        if isinstance(plain, PlainFile):
            return HubFile(plain.path, plain.commit, fresh=True, endpoint=plain.endpoint)
        if plain is MISSING and optional:
            return None
    check_settings()
    import huggingface_hub as hub
    from huggingface_hub import constants
    from vllm_capacity.inputs.http_ranges import retry

    cached = hub.try_to_load_from_cache(repository, name, revision=revision)
    known = HubFile(Path(cached), _commit_of(cached), fresh=False) if isinstance(cached, str) else None
    if offline or constants.HF_HUB_OFFLINE:
        if known is not None or optional:
            return known
        raise InputError(
            f"{repository}: {name} is not in the cache {constants.HF_HUB_CACHE} and the network is off "
            f"(--offline or HF_HUB_OFFLINE); run once with a network, or give a folder with its config{hint}"
        )
    try:
        with _quiet():
            url = hub.hf_hub_url(repository, name, revision=revision)
            facts = in_time(
                lambda: retry(lambda: hub.get_hf_file_metadata(url), answered_only=True), patience_s()
            )
    except Exception as error:  # the library raises its own, the HTTP client's and the system's errors
        if optional and _is_missing_entry(error):
            return None
        if known is not None and not _is_missing_entry(error):
            return known
        raise explain(error, repository, name, revision, hint) from None
    if facts.size is None:  # anything could come, also more than the disk holds
        raise InputError(
            f"{_endpoint_name()} does not say how large {name} of {repository} is; check HF_ENDPOINT"
        )
    if facts.size > limit:
        raise InputError(f"{repository}: {name} has {facts.size:,} bytes; at most {limit:,} are read")
    if known is not None and known.commit == facts.commit_hash and known.path.is_file():
        return HubFile(known.path, known.commit, fresh=True, endpoint=constants.ENDPOINT)
    try:
        with _quiet():
            path = _download(repository, name, revision, limit)
    except InputError:
        raise
    except Exception as error:  # as above
        raise explain(error, repository, name, revision, hint) from None
    return HubFile(Path(path), facts.commit_hash, fresh=True, endpoint=constants.ENDPOINT)


def _download(repository: str, name: str, revision: str | None, limit: int) -> str:
    """Through huggingface_hub's cache. A server that sends without end fills neither time nor disk. Raises InputError."""
    import huggingface_hub as hub
    from huggingface_hub import constants

    blobs = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "blobs"

    def watch() -> None:
        for part in blobs.glob("*.incomplete"):
            with suppress(FileNotFoundError):
                if part.stat().st_size > limit:
                    raise InputError(
                        f"{_endpoint_name()} sends more of {name} of {repository} than it said; try again later"
                    )

    try:
        return in_time(lambda: hub.hf_hub_download(repository, name, revision=revision), patience_s(), watch)
    except (InputError, OutOfTimeError):
        with suppress(OSError):  # it is still being written, under no name from here on
            for part in blobs.glob("*.incomplete"):
                part.unlink()
        raise


# -- errors --------------------------------------------------------------------------------------------------


def explain(
    error: BaseException, repository: str, name: str, revision: str | None, hint: str = ""
) -> InputError:
    """One line that says what happened and what to do about it."""
    import urllib.error

    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError):
        error = error.__cause__ or error.__context__ or error
    if isinstance(error, OutOfTimeError):
        return InputError(
            f"{_endpoint_name()} did not send {name} of {repository} within {patience_s():.0f} s; try again later"
        )
    if isinstance(error, errors.FileMetadataError):
        return InputError(
            f"{_endpoint_name()} does not answer like a Hugging Face Hub for {repository}; check HF_ENDPOINT"
        )
    page = f"{constants.ENDPOINT}/{repository}"
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(error, urllib.error.HTTPError):
        response, status = error, error.code
    if isinstance(error, errors.GatedRepoError):
        if _has_token():
            return InputError(
                f"{repository} is gated and your token may not read it: accept its licence at {page}"
            )
        return InputError(f"{repository} is gated: accept its licence at {page}, then set HF_TOKEN")
    if isinstance(error, errors.DisabledRepoError):
        return InputError(f"{repository} was disabled by the Hub; give a folder with its config.json")
    if isinstance(error, errors.RepositoryNotFoundError):
        private = (
            "check the spelling" if _has_token() else "check the spelling, or set HF_TOKEN if it is private"
        )
        return InputError(
            f"{repository} is neither in the bundled catalogue nor on {_endpoint_name()}; {private}{hint}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(f"{repository} has no revision {revision!r}; see {page}/tree/main")
    if _is_missing_entry(error):
        return InputError(
            f"{repository} has no {name} (a GGUF, adapter or Mistral-format repository?); "
            "give the repository of the original model"
        )
    if isinstance(error, errors.HFValidationError):
        return InputError(f"{repository!r} is not a valid Hugging Face id (owner/name){hint}")
    if status in (401, 403):
        return InputError(f"{_endpoint_name()} refuses the token ({status}) for {repository}; check HF_TOKEN")
    if status == 429:
        headers = getattr(response, "headers", {})
        wait = headers.get("Retry-After") or headers.get("retry-after")
        when = f"try again in {wait} s" if wait else "try again later"
        return InputError(f"{_endpoint_name()} limits the rate of requests (429); {when}, or set HF_TOKEN")
    if status is not None:
        return InputError(f"{_endpoint_name()} answered {status} for {name} of {repository}; try again later")
    text = f"{type(error).__name__} {error}"
    elsewhere = "check the network and HF_ENDPOINT, or give a folder with the config.json"
    if "Timeout" in type(error).__name__ or "timed out" in text:
        return InputError(
            f"{_endpoint_name()} did not answer within {constants.HF_HUB_ETAG_TIMEOUT} s "
            f"for {repository}; {elsewhere}"
        )
    if isinstance(error, OSError) and ("Consistency check" in text or "should be of size" in text):
        return InputError(f"{name} of {repository} arrived incomplete or changed; try again")
    if any(
        word in text
        for word in ("Connect", "Connection", "Network", "resolve", "Protocol", "ReadError", "SSL")
    ):
        return InputError(f"{_endpoint_name()} cannot be reached for {repository}; {elsewhere}")
    if isinstance(error, OSError) and error.filename:
        return InputError(
            f"cannot write to {error.filename}: {error.strerror}; set HF_HOME to a folder you may write to"
        )
    return InputError(f"{repository}: {name} cannot be fetched ({text[:200]}); {elsewhere}")


def _is_missing_entry(error: BaseException) -> bool:
    """The repository exists but not this file (LocalEntryNotFoundError means "not cached" and is another
    matter)."""
    from huggingface_hub import errors

    return isinstance(error, errors.EntryNotFoundError) and not isinstance(
        error, errors.LocalEntryNotFoundError
    )


def _has_token() -> bool:
    from huggingface_hub import get_token

    return bool(get_token())


def _endpoint_name() -> str:
    from huggingface_hub import constants

    return _name(constants.ENDPOINT)


def _name(endpoint: str) -> str:
    return endpoint.removeprefix("https://").removeprefix("http://")


def _commit_of(path: str) -> str | None:
    """The commit in .../snapshots/<commit>/<file>, the layout of the Hugging Face cache."""
    parts = Path(path).parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar for a file of a few kilobytes, no warnings beside our own line; the settings are
    restored."""
    import logging

    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    logger = logging.getLogger("huggingface_hub")
    level, bars = logger.level, not are_progress_bars_disabled()
    logger.setLevel(logging.CRITICAL)
    if bars:
        disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            enable_progress_bars()
