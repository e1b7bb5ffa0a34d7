"""Runs the application under uvicorn."""

from __future__ import annotations

import socket
import sys
import threading
import time
from dataclasses import replace

import uvicorn
from vllm_capacity.errors import InputError
from vllm_capacity.web.app import create_app
from vllm_capacity.web.hosts import names_of
from vllm_capacity.web.settings import WebSettings

SHUTDOWN_SECONDS = 3
"""Open connections (the page keeps one) are closed after this."""


def serve(
    settings: WebSettings, host: str = "127.0.0.1", port: int = 8000, open_browser: bool = True
) -> None:
    """Serves until Ctrl-C, also under the name `host`. Port 0 takes a free one. Raises InputError where it cannot listen."""
    listening = listen(host, port)
    settings = replace(settings, allowed_hosts=(*settings.allowed_hosts, *names_of(host)))
    url = address(listening, settings.root_path)
    config = uvicorn.Config(
        create_app(settings),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        server_header=False,
    )
    server = uvicorn.Server(config)
    print(f"vllm-capacity web: {url} (Ctrl-C stops it)", file=sys.stderr, flush=True)
    if open_browser:
        threading.Thread(target=_open_when_started, args=(server, url), daemon=True).start()
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # uvicorn has shut down in order and hands the signal on
    finally:
        listening.close()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises InputError in one line."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no such host"
        raise InputError(f"--host {host}: {reason}") from None
    listening = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(256)
    except OSError as error:
        listening.close()
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --port"
        ) from None
    return listening


def address(listening: socket.socket, root_path: str = "") -> str:
    """The URL of the page, as a browser on this machine reaches it."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{root_path}/"


def _open_when_started(server: uvicorn.Server, url: str) -> None:
    import webbrowser

    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.05)
    webbrowser.open(url)
