"""A proxy publishes the server under a prefix, and may or may not take it off before it hands a request on."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class Prefix:
    """ASGI middleware: every scope carries the prefix as `root_path` and in front of its `path`, as ASGI has it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self.root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            path = scope["path"]
            if path != self.root_path and not path.startswith(self.root_path + "/"):
                path = self.root_path + path
            scope = {**scope, "root_path": self.root_path, "path": path}
        await self.app(scope, receive, send)
