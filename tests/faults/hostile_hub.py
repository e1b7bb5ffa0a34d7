"""A real HTTP server that answers like a Hugging Face Hub gone bad, one way per repository name.

`good/<way>` behaves until the file's content is asked for; `bad/<way>` misbehaves from the first request on.
"""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable
from functools import cache
from types import TracebackType

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FACTS = f'ETag: "abc"\r\nX-Repo-Commit: {COMMIT}\r\nAccept-Ranges: bytes\r\n'
BOMB_BYTES = 1 << 30

Send = Callable[[bytes], None]


@cache
def _bomb() -> bytes:
    return gzip.compress(b" " * (1 << 24), 9)


class HostileHub:
    """Context manager; `url` is the endpoint, `asked` the first lines of all requests, `sent_bytes` what went out."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.sent_bytes = 0
        self._stop = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> HostileHub:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._socket.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                request = b""
                while b"\r\n\r\n" not in request:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    request += piece
                line = request.split(b"\r\n", 1)[0].decode("latin-1")
                self.asked.append(line)
                method, path = line.split(" ")[:2]
                behaved, _, way = path.lstrip("/").partition("/")
                way = way.partition("/")[0]

                def send(data: bytes) -> None:
                    connection.sendall(data)
                    self.sent_bytes += len(data)

                if behaved == "good" and method == "HEAD":
                    send(
                        f"HTTP/1.1 200 OK\r\n{FACTS}Content-Length: 20\r\nConnection: close\r\n\r\n".encode()
                    )
                else:
                    getattr(self, way)(send, path)
            except (OSError, AttributeError):
                return

    # -- ways to misbehave ----------------------------------------------------------------------------------------
    def trickled_head(self, send: Send, path: str) -> None:
        """A byte of the status line now and then, for as long as the reader has patience."""
        for byte in b"HTTP/1.1 200 OK\r\nX-Padding: " + b"x" * 10_000:
            if self._stop.is_set():
                return
            send(bytes([byte]))
            time.sleep(0.2)

    def trickled_body(self, send: Send, path: str) -> None:
        send(f"HTTP/1.1 200 OK\r\n{FACTS}Content-Length: 100000\r\n\r\n".encode())
        for _ in range(10_000):
            if self._stop.is_set():
                return
            send(b" ")
            time.sleep(0.2)

    def silent(self, send: Send, path: str) -> None:
        self._stop.wait(60)

    def redirected_in_a_circle(self, send: Send, path: str) -> None:
        send(
            f"HTTP/1.1 302 Found\r\nLocation: {path}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )

    def redirected_to_a_file(self, send: Send, path: str) -> None:
        send(
            b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )

    def too_short(self, send: Send, path: str) -> None:
        send(f"HTTP/1.1 200 OK\r\n{FACTS}Content-Length: 5000\r\nConnection: close\r\n\r\n{{".encode())

    def too_long(self, send: Send, path: str) -> None:
        """Promised 20 bytes, sends many times the limit of a config."""
        send(f"HTTP/1.1 200 OK\r\n{FACTS}Connection: close\r\n\r\n".encode())
        for _ in range(400):
            send(b" " * 100_000)

    def gzip_bomb(self, send: Send, path: str) -> None:
        body = _bomb()
        head = f"HTTP/1.1 200 OK\r\n{FACTS}Content-Encoding: gzip\r\nConnection: close\r\n\r\n".encode()
        send(head)
        for _ in range(BOMB_BYTES >> 24):
            send(body)

    def html(self, send: Send, path: str) -> None:
        body = b"<html><body>captive portal</body></html>"
        send(
            f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body
        )

    def no_http(self, send: Send, path: str) -> None:
        send(b"\x16\x03\x01 SSH-2.0-OpenSSH_9.9\r\n")

    def closed_at_once(self, send: Send, path: str) -> None:
        return

    def endless_headers(self, send: Send, path: str) -> None:
        send(b"HTTP/1.1 200 OK\r\n")
        for number in range(1_000_000):
            send(f"X-Header-{number}: {'x' * 1000}\r\n".encode())

    def teapot(self, send: Send, path: str) -> None:
        send(b"HTTP/1.1 418 I'm a teapot\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
