"""The application: API routes, problems, limits, and the page where it is installed."""

from __future__ import annotations

from fastapi import FastAPI
from vllm_capacity._version import __version__
from vllm_capacity.web.settings import WebSettings


def create_app(settings: WebSettings | None = None) -> FastAPI:
    """The server's application; `app.state.settings` holds the settings."""
    settings = settings or WebSettings()
    app = FastAPI(
        title="vllm-capacity",
        version=__version__,
        root_path=settings.root_path,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    if settings.page:
        mount(app, settings)
    return app


def mount(app: FastAPI, settings: WebSettings) -> None:
    """The page, where this installation has it."""
    try:
        from vllm_capacity.web.page import mount_page
    except ImportError:
        return
    mount_page(app, settings)
