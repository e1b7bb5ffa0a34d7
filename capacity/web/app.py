"""The application: API, problems, limits, workers, and the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from vllm_capacity._version import __version__
from vllm_capacity.web.api import fallback, router
from vllm_capacity.web.hosts import Hosts
from vllm_capacity.web.limits import BodyLimits
from vllm_capacity.web.openapi import publish
from vllm_capacity.web.pool import Pool
from vllm_capacity.web.prefix import Prefix
from vllm_capacity.web.problems import KINDS, MEDIA_TYPE, ProblemError, invalid, problem_of
from vllm_capacity.web.settings import WebSettings


def create_app(settings: WebSettings | None = None) -> FastAPI:
    """The server's application. `app.state` holds `settings` and the `pool` of workers, which live as long as it runs."""
    settings = settings or WebSettings()
    pool = Pool(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        pool.start()
        try:
            yield
        finally:
            await pool.close()

    app = FastAPI(
        title="vllm-capacity",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # its page loads its scripts from a CDN
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.settings = settings
    app.state.pool = pool
    app.state.catalogues = {}
    app.add_middleware(BodyLimits, settings=settings)
    if settings.root_path:
        app.add_middleware(Prefix, root_path=settings.root_path)
    app.add_middleware(Hosts, settings=settings)  # added last: the outermost
    app.add_exception_handler(ProblemError, _answer)
    app.add_exception_handler(RequestValidationError, _answer)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(Exception, _answer)
    app.include_router(router)
    app.include_router(fallback)
    publish(app)
    if settings.page:
        from vllm_capacity.web.page import mount_page  # NiceGUI takes its time

        mount_page(app, settings)
    return app


async def _answer(request: Request, error: Exception) -> Response:
    """Any exception as a problem."""
    problem = _problem(error)
    members = problem.document(request.app.state.settings.root_path, request.url.path)
    return JSONResponse(
        members, status_code=problem.kind.status, headers=problem.headers, media_type=MEDIA_TYPE
    )


def _problem(error: Exception) -> ProblemError:
    if isinstance(error, RequestValidationError):
        rows: list[dict[str, Any]] = [{**item, "loc": item["loc"][1:]} for item in error.errors()]
        return invalid(rows)
    if isinstance(error, HTTPException):
        kind = next(
            (kind for kind in KINDS.values() if kind.status == error.status_code), KINDS["unexpected"]
        )
        return ProblemError(kind.name, str(error.detail), headers=error.headers)
    return problem_of(error)
