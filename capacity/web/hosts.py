"""Requests are answered under names that lead here alone.

A page of another site can give its own name this server's address (DNS rebinding) and would then be of the same origin; its
requests carry that name. An address is no name that it could have, so addresses are answered whatever they are.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from vllm_capacity.errors import InputError
from vllm_capacity.web.limits import answer_problem
from vllm_capacity.web.problems import ProblemError
from vllm_capacity.web.settings import WebSettings

ANY = "*"
EVERYWHERE = ("0.0.0.0", "::", "")
_NAME = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?", re.ASCII)
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<four>[0-9.]+))(?::\d*)?")


class Hosts:
    """ASGI middleware: Starlette's own check of the Host header, answered as a problem."""

    def __init__(self, app: ASGIApp, settings: WebSettings) -> None:
        self.app = app
        self.settings = settings
        self._check = TrustedHostMiddleware(_let_through, list(settings.allowed_hosts), www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or await self._trusted(scope, receive):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            name = Headers(scope=scope).get("host", "")
            refused = ProblemError(
                "host-not-allowed",
                f"this server is not known as {name!r:.120}: start it with --allow-host NAME to have it answer",
            )
            await answer_problem(scope, send, self.settings, refused, receive)

    async def _trusted(self, scope: Scope, receive: Receive) -> bool:
        if is_address(Headers(scope=scope).get("host", "")):
            return True
        asked: Scope = {**scope, "trusted": False}
        await self._check(asked, receive, _drop)
        return bool(asked["trusted"])


async def _let_through(scope: Scope, _receive: Receive, _send: Send) -> None:
    scope["trusted"] = True


async def _drop(_message: object) -> None:
    """The check's own refusal, which is answered in this server's form instead."""


def is_address(host: str) -> bool:
    """Whether a Host header is an address, with or without a port."""
    match = _ADDRESS.fullmatch(host)
    if match is None:
        return False
    try:
        ipaddress.IPv6Address(match["six"]) if match["six"] else ipaddress.IPv4Address(match["four"])
    except ValueError:
        return False
    return True


def names_of(host: str) -> tuple[str, ...]:
    """Names under which a server that listens on `host` is reached: that one, or this machine's where it listens everywhere."""
    return (socket.gethostname().lower(),) if host in EVERYWHERE else (host.lower(),)


def checked(name: str) -> str:
    """A name of `--allow-host`. Raises InputError."""
    if name == ANY or _NAME.fullmatch(name.lower()):
        return name.lower()
    raise InputError(
        f"--allow-host {name!r:.80}: give a name such as capacity.example.org, *.example.org for all below it, "
        "or * for any; without a port"
    )
