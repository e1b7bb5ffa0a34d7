"""Puts the page into an application. NiceGUI is one per process: a second application of a process shares its routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from nicegui import core, ui
from starlette.requests import Request
from vllm_capacity.web.page import choices
from vllm_capacity.web.page.codec import from_query
from vllm_capacity.web.page.sections import palette_css
from vllm_capacity.web.page.state import DEFAULT
from vllm_capacity.web.page.view import View
from vllm_capacity.web.page.work import Work, WorkError
from vllm_capacity.web.pool import Pool
from vllm_capacity.web.problems import ProblemError
from vllm_capacity.web.settings import WebSettings

TITLE = "vLLM capacity"
LANES = {
    "page_plan": "page",
    "page_report": "page",
    "page_layouts": "size",
    "page_layouts_report": "size",
    "page_log": "explain",
}
"""What each job of the page is held to (`pool.py`)."""
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0072B2"/>'
    '<path d="M7 21h18M7 16h12M7 11h7" stroke="#fff" stroke-width="3" stroke-linecap="round"/></svg>'
)

_mounted = False


def mount(app: FastAPI, settings: WebSettings) -> None:
    """The page at the root of `app`, whose `app.state.pool` does its work."""
    global _mounted
    core.app.state.capacity = (app, settings)
    if _mounted:
        app.mount("/", core.app)
        _share_life(app)
        return
    _mounted = True
    ui.run_with(
        app, title=TITLE, favicon=ICON, dark=None, language="en-US", tailwind=False, show_welcome_message=False,
        reconnect_timeout=30.0, binding_refresh_interval=None,
    )  # fmt: skip
    core.app.config.quasar_config["loadingBar"]["skipHijack"] = True  # it has no name for screen readers
    # the first answer may wait for a worker on a busy server: NiceGUI's own 3 s would make that an error
    ui.page("/", response_timeout=settings.wait_seconds + settings.plan_seconds)(_page)


def _share_life(app: FastAPI) -> None:
    """NiceGUI starts and stops with `app`, as `ui.run_with` arranges it for the first one."""
    own = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: FastAPI) -> AsyncIterator[Any]:
        async with core.app.router.lifespan_context(core.app), own(running) as state:
            yield state

    app.router.lifespan_context = lifespan


async def _page(request: Request) -> None:
    app, settings = core.app.state.capacity
    ui.add_css(_css())
    ui.colors(primary="#0b5cad", negative="#a8231a", dark_page="#0e1116", dark="#171b22")
    decoded = from_query(request.url.query, replace(DEFAULT, release=choices.default_release()))
    view = View(decoded, work_of(app.state.pool), settings)
    await view.first_answer()


def work_of(pool: Pool) -> Work:
    """The pool as the page asks it."""

    async def work(job: str, head: Mapping[str, Any], body: bytes) -> bytes:
        try:
            return await pool.run(job, head, body, lane=LANES[job])
        except ProblemError as problem:
            raise WorkError(problem.detail) from None

    return work


@cache
def _css() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8") + palette_css()
