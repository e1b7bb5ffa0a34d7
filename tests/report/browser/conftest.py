"""The browser of `tests/web/browser`, without a server: pages to hand on are files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reading_pages import Page
from web.browser.conftest import browser

__all__ = ["browser"]

Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a page from disk, offline; fails where it asked for anything else or the browser complained."""
    contexts = []
    problems: list[str] = []

    def open_page(
        page: Page, *, width: int = 1000, height: int = 1200, dark: bool = False, media: str | None = None
    ) -> Any:
        file = tmp_path / "page.html"
        file.write_text(page.source, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", offline=True,
        )  # fmt: skip
        contexts.append(context)
        tab = context.new_page()
        tab.on(
            "request",
            lambda request: (
                problems.append(f"asked for {request.url}") if request.url != file.as_uri() else None
            ),
        )
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.goto(file.as_uri())
        if media:
            tab.emulate_media(media=media)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
