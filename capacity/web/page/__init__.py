"""The page: NiceGUI on the application's FastAPI, its assets from installed packages.

This module and those that run in workers (`jobs` and what it imports) do without NiceGUI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI
    from vllm_capacity.web.settings import WebSettings


def mount_page(app: FastAPI, settings: WebSettings) -> None:
    """Serves the page at the application's root. Raises ImportError where NiceGUI is not installed."""
    from vllm_capacity.web.page.mount import mount

    mount(app, settings)
