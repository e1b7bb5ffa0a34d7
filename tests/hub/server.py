"""A small HTTP server that speaks the part of the Hugging Face Hub that huggingface_hub uses.

Run as a real server on a free port; tests point HF_ENDPOINT at it. `REPOSITORIES` maps ids to files; special
ids behave badly on purpose. Every request is written down in `requests`, so that tests can say what
travelled.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_RESOLVE = re.compile(r"^/(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)$")
_CDN = re.compile(r"^/cdn/(?P<repo>[^/]+/[^/]+)/(?P<file>.+)$")


@dataclass
class Repository:
    """Files of one repository and how it misbehaves."""

    files: Mapping[str, bytes]
    gated: bool = False
    token: str | None = None
    """With a token only this one may read a gated repository."""
    status: int = 200
    """Answer every request for a file with this status (429, 500, 503)."""
    retry_after: int | None = None
    fail_first: int = 0
    """So many requests for each file get `status`, the next ones succeed."""
    delay_s: float = 0.0
    truncate: bool = False
    """Promise the whole file and close the connection half-way."""
    redirect: bool = False
    """HEAD and GET answer 302 to /cdn/..., as large files on the real Hub."""
    ignore_ranges: bool = False
    claimed_size: int | None = None
    revisions: tuple[str, ...] = ("main", COMMIT)
    seen: dict[str, int] = field(default_factory=dict)


class HubServer:
    """Context manager; `url` is the endpoint, `requests` what was asked (method, path, range,
    authorisation)."""

    def __init__(self, repositories: Mapping[str, Repository]) -> None:
        self.repositories = dict(repositories)
        self.requests: list[tuple[str, str, str | None, str | None]] = []
        self.sent_bytes = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = (
                True  # as real servers: a body does not wait until its headers have arrived
            )

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:
                server.answer(self, body=False)

            def do_GET(self) -> None:
                server.answer(self, body=True)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    # -- one request -----------------------------------------------------------------------------------------
    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(request.path.partition("?")[0])
        self.requests.append(
            (request.command, path, request.headers.get("Range"), request.headers.get("Authorization"))
        )
        match = _RESOLVE.match(path)
        if match:
            self._resolve(request, match["repo"], match["revision"], match["file"], body)
            return
        match = _CDN.match(path)
        if match and match["repo"] in self.repositories:
            repository = self.repositories[match["repo"]]
            self._send_file(request, repository, repository.files[match["file"]], body)
            return
        if path.startswith("/api/models/"):
            repository_id = path.removeprefix("/api/models/").partition("/revision/")[0]
            if repository_id in self.repositories:
                files = [{"rfilename": name} for name in self.repositories[repository_id].files]
                self._send(
                    request,
                    200,
                    json.dumps({"id": repository_id, "sha": COMMIT, "siblings": files}).encode(),
                    body,
                )
                return
            self._refuse(request, 401, "RepoNotFound", "Repository not found", body)
            return
        self._refuse(request, 404, None, "not found", body)

    def _resolve(
        self, request: BaseHTTPRequestHandler, repo: str, revision: str, file: str, body: bool
    ) -> None:
        repository = self.repositories.get(repo)
        if repository is None:
            self._refuse(request, 401, "RepoNotFound", "Invalid username or password.", body)
            return
        if repository.delay_s:
            time.sleep(repository.delay_s)
        count = repository.seen[file] = repository.seen.get(file, 0) + 1
        if repository.status != 200 and (not repository.fail_first or count <= repository.fail_first):
            extra = {"Retry-After": str(repository.retry_after)} if repository.retry_after is not None else {}
            self._refuse(request, repository.status, None, "slow down", body, extra)
            return
        authorisation = request.headers.get("Authorization")
        if repository.gated and authorisation != f"Bearer {repository.token}":
            self._refuse(
                request, 403 if authorisation else 401, "GatedRepo", "Access to model is restricted.", body
            )
            return
        if revision not in repository.revisions:
            self._refuse(request, 404, "RevisionNotFound", "Revision not found", body)
            return
        if file not in repository.files:
            self._refuse(request, 404, "EntryNotFound", "Entry not found", body)
            return
        if repository.redirect:
            self._redirect(request, repository, f"/cdn/{repo}/{file}", repository.files[file])
            return
        self._send_file(request, repository, repository.files[file], body)

    def _redirect(
        self, request: BaseHTTPRequestHandler, repository: Repository, location: str, data: bytes
    ) -> None:
        request.send_response(302)
        # Another host name for the same machine, as a CDN is: credentials must not follow.
        request.send_header("Location", self.url.replace("127.0.0.1", "localhost") + location)
        request.send_header("X-Repo-Commit", COMMIT)
        request.send_header("X-Linked-Size", str(repository.claimed_size or len(data)))
        request.send_header("X-Linked-Etag", f'"{hashlib.sha256(data).hexdigest()}"')
        request.send_header("Content-Length", "0")
        request.end_headers()

    def _send_file(
        self, request: BaseHTTPRequestHandler, repository: Repository, data: bytes, body: bool
    ) -> None:
        headers = {
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range") or "")
        if wanted and not repository.ignore_ranges:
            first = int(wanted[1])
            last = min(int(wanted[2] or len(data) - 1), len(data) - 1)
            if first >= len(data):
                self._send(request, 416, b"", body, {"Content-Range": f"bytes */{len(data)}"})
                return
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self._send(request, 206, data[first : last + 1], body, headers, truncate=repository.truncate)
            return
        size = repository.claimed_size
        self._send(request, 200, data, body, headers, truncate=repository.truncate, size=size)

    def _refuse(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        code: str | None,
        message: str,
        body: bool,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        headers = {"X-Error-Message": message, **(extra or {})}
        if code:
            headers["X-Error-Code"] = code
        self._send(request, status, json.dumps({"error": message}).encode(), body, headers)

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        data: bytes,
        body: bool,
        headers: Mapping[str, str] | None = None,
        *,
        truncate: bool = False,
        size: int | None = None,
    ) -> None:
        request.send_response(status)
        for key, value in (headers or {}).items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(size if size is not None else len(data)))
        request.end_headers()
        if not body:
            return
        if truncate:
            data = data[: len(data) // 2]
            request.close_connection = True
        try:
            request.wfile.write(data)
            self.sent_bytes += len(data)
        except (BrokenPipeError, ConnectionResetError):
            request.close_connection = True
