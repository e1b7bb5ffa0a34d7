"""A real server on a free port of 127.0.0.1, in a thread of its own, and clients of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from vllm_capacity.web.app import create_app
from vllm_capacity.web.server import listen
from vllm_capacity.web.settings import WebSettings

PROBLEM = "application/problem+json"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
LONG = {
    "model": "deepseek-ai/DeepSeek-V3",
    "concurrency": 64,
    "flags": {"max_model_len": 32768},
    "every_layout": True,
}
"""A `size` over the whole catalogue: many seconds of work."""


@contextmanager
def serving(settings: WebSettings) -> Iterator[Served]:
    """The server, ready; it has ended when the block has."""
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    app = create_app(settings)
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_until(lambda: server.started)
            yield Served(client, port, app)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


class Served:
    """A running server. `app.state.pool` is its pool of workers."""

    def __init__(self, client: httpx.Client, port: int, app: Any) -> None:
        self.client, self.port, self.app = client, port, app

    def get(self, path: str, **query: str) -> httpx.Response:
        return self.client.get(path, params=query)

    def post(self, path: str, body: Any) -> httpx.Response:
        """JSON, or bytes that claim to be it."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(path, content=content, headers={"content-type": "application/json"})

    def plan(self, **body: Any) -> httpx.Response:
        return self.post("/api/v1/plan", body)

    def explain(self, log: bytes, media_type: str = "text/plain", **query: str) -> httpx.Response:
        return self.client.post(
            "/api/v1/explain", content=log, params=query, headers={"content-type": media_type}
        )


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def problem(answer: httpx.Response, status: int, name: str) -> Mapping[str, Any]:
    """The members of a problem of that status and kind; what RFC 9457 asks of every one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    members: dict[str, Any] = answer.json()
    assert members["status"] == status
    assert members["type"].endswith(f"/api/v1/problems/{name}")
    assert members["title"]
    assert members["detail"]
    assert members["instance"].endswith(answer.request.url.path)
    assert "Traceback" not in answer.text
    assert 'File "' not in answer.text
    return members
