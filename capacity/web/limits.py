"""Holds every request body, the page's uploads too, to a size and a time, whether or not its length is announced."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from vllm_capacity.web.problems import MEDIA_TYPE, ProblemError
from vllm_capacity.web.settings import WebSettings

DRAIN_SECONDS = 5
JSON_PATHS = ("/api/v1/plan", "/api/v1/size")


class BodyLimits:
    """ASGI middleware. A body beyond a limit is answered at once (413, 408); the application sees the client leave."""

    def __init__(self, app: ASGIApp, settings: WebSettings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self._limit(scope)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit:
            await answer_problem(scope, send, self.settings, _too_large(limit), receive)
            return
        await _Bounded(self, scope, receive, send, limit).run()

    def _limit(self, scope: Scope) -> int:
        path = scope["path"].removeprefix(self.settings.root_path)
        return self.settings.json_body_bytes if path in JSON_PATHS else self.settings.log_body_bytes


class _Bounded:
    """One request whose body is counted and timed as it arrives."""

    def __init__(self, limits: BodyLimits, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        self._app, self._settings = limits.app, limits.settings
        self._scope, self._receive, self._send = scope, receive, send
        self._limit = limit
        self._seen = 0
        self._complete = self._started = self._refused = False
        self._deadline: float | None = None

    async def run(self) -> None:
        try:
            await self._app(self._scope, self.receive, self.send)
        except Exception:
            if not self._refused:  # what the application says about a client that left is of no interest
                raise

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        if self._refused:
            return {"type": "http.disconnect"}
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._settings.body_seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            seconds = self._settings.body_seconds
            slow = ProblemError("slow-body", f"no whole body within {seconds:g} s", {"limit": seconds})
            return await self._refuse(slow)
        self._seen += len(message.get("body", b""))
        if self._seen > self._limit:
            return await self._refuse(_too_large(self._limit), self._receive)
        self._complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if not self._refused:
            self._started = True
            await self._send(message)

    async def _refuse(self, problem: ProblemError, unread: Receive | None = None) -> Message:
        self._refused = True
        if not self._started:
            await answer_problem(self._scope, self._send, self._settings, problem, unread)
        return {"type": "http.disconnect"}


def _too_large(limit: int) -> ProblemError:
    return ProblemError("too-large", f"at most {limit:,} bytes are read here", {"limit": limit})


async def answer_problem(
    scope: Scope, send: Send, settings: WebSettings, problem: ProblemError, unread: Receive | None = None
) -> None:
    """The problem; then the connection closes. What is `unread` of the body is thrown away first, for a while: a client that is
    still sending when the connection closes would never see the answer."""
    body = json.dumps(problem.document(settings.root_path, scope["path"])).encode()
    headers: list[Any] = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": problem.kind.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if unread is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while (await unread()).get("more_body", False):
                    pass
    await send({"type": "http.response.body", "body": b""})
