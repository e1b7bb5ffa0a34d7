"""A real Chromium (Debian's) on a real server. Without a browser the tests are skipped, but not in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from web.browser.visiting import Visitor
from web.running import running

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One for all tests of this folder, and gone after them: its event loop would be in the way of others' tests."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        missing("no Chromium is installed (Debian: apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed (pip install '.[test]')")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield opened
        opened.close()


def missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what}; CI must run these tests", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="package")
def site(browser: Any) -> Iterator[str]:
    """The address of a server of its own, started as a user starts it."""
    with running() as program:
        yield program.url
        assert "Traceback" not in program.said(), program.said()


@pytest.fixture(scope="package")
def profile(browser: Any) -> Iterator[Any]:
    """A browser profile: tabs share its cache, as they do for a user."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    yield context
    context.close()


@pytest.fixture
def visit(profile: Any, site: str) -> Iterator[Visitor]:
    """A visitor with a tab of their own, which notes everything that goes wrong or out."""
    visitor = Visitor(profile, site)
    yield visitor
    visitor.leave()


@pytest.fixture(scope="module")
def staying(profile: Any, site: str) -> Iterator[Visitor]:
    """One visitor for all tests of a module, on the page from the start."""
    visitor = Visitor(profile, site)
    visitor.open()
    yield visitor
    visitor.leave()


@pytest.fixture
def pictures(request: pytest.FixtureRequest) -> Path | None:
    """Where screenshots go, if they are wanted."""
    folder = Path(__file__).parents[3] / "docs" / "pictures"
    return folder if request.config.getoption("--update-screenshots") else None
