"""The Hub's plain answers, over connections that are kept and without huggingface_hub, whose import takes as long as a plan.

Only what is plain is answered here: a file that the endpoint gives with its commit, hash and size, the start of a large
one, or "there is no such file". Everything else is None (a refusal, a limit, a broken connection, a proxy, a setting that
is not read here, a program that uses huggingface_hub already), and the caller asks the library, which knows how, tries
again and says what is wrong.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from vllm_capacity._version import __version__
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.hub_cache import cached_file, hub_home, is_commit, keep_file
from vllm_capacity.inputs.patience import in_time, patience_s

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

_READ_HERE = frozenset({
    "HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_ETAG_TIMEOUT",
    "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_OFFLINE",
})  # fmt: skip
_WITHOUT_EFFECT = frozenset({
    "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_SYMLINKS_WARNING",
    "HF_HUB_DISABLE_UPDATE_CHECK", "HF_HUB_DISABLE_XET", "HF_HUB_ENABLE_HF_TRANSFER",
    "HF_XET_HIGH_PERFORMANCE", "HF_DATASETS_CACHE",
})  # fmt: skip
"""On config files and headers."""
_OF_THE_LIBRARY = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "TRANSFORMERS_OFFLINE"})
"""In either case. SSL_CERT_FILE and SSL_CERT_DIR are Python's own."""
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_ENDPOINT = "https://huggingface.co"
_TIMEOUT_S = 10
"""huggingface_hub/constants.py: DEFAULT_ETAG_TIMEOUT."""

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_REVISION = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
_HASH = re.compile(r"[0-9A-Za-z-]{6,128}")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_SMALL = 1 << 16
"""What is read of an answer that only says no or points elsewhere."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What huggingface_hub would make of the environment, as far as it matters here."""

    endpoint: str
    token: str | None
    timeout: float


class Missing(Enum):
    """The Hub says that the repository has no such file."""

    MISSING = "missing"


MISSING = Missing.MISSING


@dataclass(frozen=True, slots=True)
class PlainFile:
    path: Path
    commit: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class FileStart:
    """The first bytes of a file, the size of all of it, its commit."""

    data: bytes
    size: int
    commit: str | None


def settings() -> Settings | None:
    """None where the library has to be asked."""
    if "huggingface_hub" in sys.modules or "google.colab" in sys.modules or os.name != "posix":
        return None
    for name, value in os.environ.items():
        ours = name.startswith(("HF_", "HUGGING"))
        if value and (
            (ours and name not in _READ_HERE and name not in _WITHOUT_EFFECT)
            or name.upper() in _OF_THE_LIBRARY
        ):
            return None
    given = os.environ.get
    if (
        given("HF_HUB_OFFLINE") or ""
    ).upper() in _TRUE or "$" in f"{given('HF_HOME')}{given('HF_HUB_CACHE')}":
        return None
    endpoint = given("HF_ENDPOINT", _ENDPOINT).rstrip("/")
    try:
        patience_s()
        timeout = int(given("HF_HUB_ETAG_TIMEOUT") or 0) or _TIMEOUT_S
        token = _token()
    except (OSError, ValueError):
        return None
    return Settings(endpoint, token, timeout) if endpoint.startswith(("http://", "https://")) else None


def _token() -> str | None:
    """HF_TOKEN, else that of `hf auth login`. Raises ValueError for one that has to be renewed."""
    home = hub_home()
    token = os.environ.get("HF_TOKEN")
    if not token and (home / "token").is_file():
        token = (home / "token").read_text(encoding="utf-8")
        if (home / "stored_tokens").is_file() and "refresh" in (home / "stored_tokens").read_text("utf-8"):
            raise ValueError("a token that expires")
    token = (token or "").replace("\r", "").replace("\n", "").strip()
    if not token.isprintable() or not token.isascii():
        raise ValueError("not a token")
    return token or None


# -- what callers ask ----------------------------------------------------------------------------------------


def fetch(repository: str, name: str, revision: str | None, limit: int) -> PlainFile | Missing | None:
    """A file of at most `limit` bytes, through the local cache. Raises OutOfTimeError."""
    return _asked(
        repository, revision, lambda session: _fetch(session, repository, name, revision or "main", limit)
    )


def start_of(
    repository: str, name: str, revision: str | None, n_bytes: int, needed: Callable[[bytes, int], int]
) -> FileStart | None:
    """The first `n_bytes` of a file of weights, or as many as these, with the file's size, say to be `needed`.

    Raises OutOfTimeError, and what `needed` raises.
    """
    return _asked(
        repository,
        revision,
        lambda session: _start(session, repository, name, revision or "main", n_bytes, needed),
    )


def _asked(repository: str, revision: str | None, ask: Callable[[Session], T]) -> T | None:
    found = settings()
    if found is None or not _REPOSITORY.fullmatch(repository) or not _REVISION.fullmatch(revision or "main"):
        return None

    def work() -> T:
        with _session(found) as session:
            return ask(session)

    try:
        return in_time(work, patience_s())
    except (OSError, HTTPException, ValueError):
        return None


def _fetch(
    session: Session, repository: str, name: str, revision: str, limit: int
) -> PlainFile | Missing | None:
    url = _url(session, repository, name, revision)
    known = cached_file(repository, name, revision)
    if known is not None:
        answer = session.ask("HEAD", url)
        if answer is None or answer.status != 200:
            return MISSING if answer is not None and answer.is_missing else None
        if answer.commit == known[1]:
            return PlainFile(*known, session.settings.endpoint)
    answer = session.ask("GET", url, limit=limit)
    if answer is None:
        return None
    if answer.is_missing:
        return MISSING
    if answer.status != 200 or answer.body is None or answer.commit is None or answer.blob is None:
        return None
    path = keep_file(repository, name, revision, answer.commit, answer.blob, answer.body)
    return PlainFile(path, answer.commit, session.settings.endpoint)


def _start(
    session: Session, repository: str, name: str, revision: str, n_bytes: int, needed: Callable[[bytes, int], int],
) -> FileStart | None:  # fmt: skip
    url = _url(session, repository, name, revision)
    answer = session.ask("GET", url, first=0, limit=n_bytes, elsewhere=True)
    if answer is None or answer.body is None or answer.size is None:
        return None
    data, missing = answer.body, needed(answer.body, answer.size) - len(answer.body)
    if missing > 0:
        rest = session.ask("GET", answer.url, first=len(data), limit=missing)
        if rest is None or rest.status != 206 or rest.body is None or len(rest.body) != missing:
            return None
        data += rest.body
    return FileStart(data, answer.size, answer.commit)


def _url(session: Session, repository: str, name: str, revision: str) -> str:
    return f"{session.settings.endpoint}/{repository}/resolve/{quote(revision, safe='')}/{quote(name)}"


# -- connections ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Answer:
    """`body` is None where it is longer than was asked for, packed or of unknown length. `said` are the headers of the Hub
    itself where it sent us elsewhere.
    """

    status: int
    url: str
    headers: HTTPMessage
    said: HTTPMessage
    body: bytes | None

    @property
    def commit(self) -> str | None:
        commit = self.said.get("X-Repo-Commit") or ""
        return commit if is_commit(commit) else None

    @property
    def blob(self) -> str | None:
        """The file's name among the cache's blobs (huggingface_hub/file_download.py: _normalize_etag)."""
        tag = (self.said.get("X-Linked-ETag") or self.said.get("ETag") or "").removeprefix("W/").strip('"')
        return tag if _HASH.fullmatch(tag) else None

    @property
    def is_missing(self) -> bool:
        return self.status == 404 and self.said.get("X-Error-Code") == "EntryNotFound"

    @property
    def size(self) -> int | None:
        """Of the whole file, of which this is a part, or all of it."""
        if self.status == 200 and self.body is not None:
            return len(self.body)
        total = (self.headers.get("Content-Range") or "").rpartition("/")[2]
        return int(total) if self.status == 206 and total.isdecimal() else None


class Session:
    """Connections by host, for one thread at a time."""

    def __init__(self, found: Settings) -> None:
        self.settings, self.process = found, os.getpid()
        self._open: dict[tuple[str, str], HTTPConnection] = {}

    def ask(
        self, method: str, url: str, *, first: int | None = None, limit: int = _SMALL, elsewhere: bool = False
    ) -> _Answer | None:
        """The answer, from `first` on where given. Only with `elsewhere` from another host, which gets no token."""
        wanted = {} if first is None else {"Range": f"bytes={first}-{first + limit - 1}"}
        said: HTTPMessage | None = None
        for _ in range(_MOST_REDIRECTS):
            status, headers, body = self._exchange(method, url, wanted, limit)
            if status not in _REDIRECTS:
                return _Answer(status, url, headers, said or headers, body)
            target = urljoin(url, headers.get("Location") or "")
            if _host(target) != _host(url):
                if not elsewhere or not target.startswith(("https://", url.partition("//")[0] + "//")):
                    return None
                said = said or headers
            url = target
        return None

    def _exchange(
        self, method: str, url: str, wanted: Mapping[str, str], limit: int
    ) -> tuple[int, HTTPMessage, bytes | None]:
        sent = {"User-Agent": f"vllm-capacity/{__version__}", "Accept-Encoding": "identity", **wanted}
        host = _host(url)
        if self.settings.token and host == _host(self.settings.endpoint):
            sent["Authorization"] = f"Bearer {self.settings.token}"
        parts = urlsplit(url)
        place = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        kept = self._open.pop(host, None)
        if kept is not None:
            try:
                return self._once(kept, host, method, place, sent, limit)
            except (ConnectionError, HTTPException):  # the server let go of it meanwhile
                kept.close()
        scheme, name = host
        timeout = self.settings.timeout
        fresh = (
            HTTPSConnection(name, timeout=timeout, context=_certificates())
            if scheme == "https"
            else HTTPConnection(name, timeout=timeout)
        )
        return self._once(fresh, host, method, place, sent, limit)

    def _once(
        self, connection: HTTPConnection, host: tuple[str, str], method: str, place: str, sent: Mapping[str, str],
        limit: int,
    ) -> tuple[int, HTTPMessage, bytes | None]:  # fmt: skip
        connection.request(method, place, headers=dict(sent))
        response = connection.getresponse()
        body = None
        if response.length is not None and response.length <= limit:
            body = response.read()
            body = None if response.headers.get("Content-Encoding") else body
        if response.isclosed() and not response.will_close:
            self._open[host] = connection
        else:
            connection.close()
        return response.status, response.headers, body


_idle: list[Session] = []
"""Sessions whose connections are open, for the next question of this process."""


@contextmanager
def _session(found: Settings) -> Iterator[Session]:
    session = _idle.pop() if _idle else Session(found)
    if session.settings != found or session.process != os.getpid():
        session = Session(found)
    yield session
    _idle.append(session)


def _host(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    import ssl

    return ssl.create_default_context()
