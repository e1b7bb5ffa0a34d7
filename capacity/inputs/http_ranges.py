"""Byte ranges of files on the Hub: retries with growing pauses, and never more bytes than asked for."""

from __future__ import annotations

import importlib
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from vllm_capacity.errors import InputError

T = TypeVar("T")

ATTEMPTS = 4
TIMEOUT_S = 20.0
LONGEST_PAUSE_S = 10
MAX_SKIPPED_BYTES = 100 * 1000 * 1000


def retry(call: Callable[[], T], *, answered_only: bool = False) -> T:
    """Tries again after server errors, rate limits and broken connections, waiting longer each time.

    `answered_only` gives up at once where the server does not answer at all.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return call()
        except Exception as error:
            if not _is_transient(error, answered_only):
                raise
            time.sleep(_pause(error, attempt))
    return call()


def _is_transient(error: BaseException, answered_only: bool) -> bool:
    status = error.code if isinstance(error, urllib.error.HTTPError) else None
    status = status or getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return bool(status == 429 or status >= 500)
    broken = any(word in type(error).__name__ for word in ("Timeout", "Connect", "Protocol", "Read"))
    return not answered_only and (broken or isinstance(error, OSError))


def _pause(error: BaseException, attempt: int) -> float:
    """Retry-After where the server gives one of at most LONGEST_PAUSE_S, else 0.5, 1, 2 s."""
    response = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "response", None)
    wait = (getattr(response, "headers", None) or {}).get("Retry-After")
    if wait is not None and str(wait).isdigit():
        if int(wait) > LONGEST_PAUSE_S:
            raise error
        return float(wait)
    return float(0.5 * 2**attempt)


class _NoForeignToken(urllib.request.HTTPRedirectHandler):
    """Drops the token when a redirect leaves the host, as huggingface_hub does."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> Any:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            following.remove_header("Authorization")
        return following


def get_range(url: str, first: int, last: int) -> bytes:
    """Bytes first..last of a file; never reads more, even from a server that ignores the range."""

    def get() -> bytes:
        request = urllib.request.Request(
            url, headers={"Range": f"bytes={first}-{last}", **_authorisation(url)}
        )
        with _opener().open(request, timeout=TIMEOUT_S) as response:
            if response.status == 200:
                _skip(response, first)
            data: bytes = response.read(last - first + 1)
            expected = response.headers.get("Content-Length")
            if expected is not None and response.status == 206 and len(data) < int(expected):
                raise ConnectionError("the connection closed early")
            return data

    return retry(get)


def _skip(response: Any, n_bytes: int) -> None:
    if n_bytes > MAX_SKIPPED_BYTES:
        raise InputError("the server ignores range requests; use --weights config")
    while n_bytes > 0:
        piece = response.read(min(n_bytes, 1 << 20))
        if not piece:
            return
        n_bytes -= len(piece)


def _authorisation(url: str) -> Mapping[str, str]:
    """The token, for the endpoint's own host only."""
    from huggingface_hub import constants, get_token

    token = get_token()
    same_host = urlsplit(url).netloc == urlsplit(constants.ENDPOINT).netloc
    return {"Authorization": f"Bearer {token}"} if token and same_host else {}


def _opener() -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    # certifi comes with huggingface_hub's HTTP client; minimal images have no certificates of their own.
    with suppress(ImportError, OSError):
        context.load_verify_locations(importlib.import_module("certifi").where())
    return urllib.request.build_opener(_NoForeignToken, urllib.request.HTTPSHandler(context=context))
