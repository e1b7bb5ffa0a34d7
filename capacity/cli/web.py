"""`vllm-capacity web`: the calculator as a page and an HTTP API."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec

import click
from vllm_capacity.cli.process import Terminated
from vllm_capacity.errors import InputError

EXTRA = ("fastapi", "uvicorn", "nicegui")
WITH_HUB_SECONDS = 30.0
"""The Hub's own answers count into a plan's time."""


@click.command("web")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Address to listen on; 0.0.0.0 lets the network in.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--root-path",
    default="",
    metavar="PATH",
    help="Prefix under which a proxy publishes it, for example /capacity.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Name under which it is reached, beside localhost, addresses and --host; *.NAME for all below, * for any.",
)
@click.option("--no-browser", is_flag=True, help="Do not open the browser.")
@click.option("--allow-hub", is_flag=True, help="Let requests name models of the Hugging Face Hub.")
def command(
    host: str, port: int, root_path: str, allow_hosts: tuple[str, ...], no_browser: bool, allow_hub: bool
) -> int:
    """Serve the calculator as a page and an HTTP API.

    \b
    vllm-capacity web
    vllm-capacity web --host 0.0.0.0 --port 8080 --no-browser

    Nothing leaves this machine unless --allow-hub is given. Behind a proxy, or under a name of your network, it answers what
    --allow-host names. Needs the extra: pip install 'vllm-capacity[web]'.
    """
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise InputError(f"`web` needs {', '.join(missing)}: pip install 'vllm-capacity[web]'")
    from vllm_capacity.web.hosts import checked
    from vllm_capacity.web.server import serve
    from vllm_capacity.web.settings import WebSettings

    names = tuple(checked(name) for name in allow_hosts)
    settings = WebSettings(allow_hub=allow_hub, root_path=_prefix(root_path))
    settings = replace(settings, allowed_hosts=(*settings.allowed_hosts, *names))
    if allow_hub:
        settings = replace(settings, plan_seconds=WITH_HUB_SECONDS)
    with suppress(Terminated):  # SIGTERM is how a service is told to stop; uvicorn has ended in order by then
        serve(settings, host, port, open_browser=not no_browser)
    return 0


def _prefix(text: str) -> str:
    """With a slash in front and none behind; empty for the root."""
    path = text.strip("/")
    if any(character in path for character in "?#\\ ") or "//" in path:
        raise InputError(f"--root-path {text!r:.60}: give a path such as /capacity")
    return f"/{path}" if path else ""
