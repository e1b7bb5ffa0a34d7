"""What tests do on the page, in the words of who uses it."""

from __future__ import annotations

import re
from typing import Any

ANSWER_MS = 15_000
"""How long a test waits for the page; how quick it must be is another test's matter."""


class Visitor:
    """One tab of a browser profile. `outbound` are requests to elsewhere, `errors` what the browser complained about."""

    def __init__(self, profile: Any, site: str) -> None:
        self.site = site
        self.outbound: list[str] = []
        self.errors: list[str] = []
        self.page: Any = self._watched(profile.new_page())
        self._apart: Any = None

    def open(self, query: str = "", *, width: int = 1280, height: int = 900, dark: bool = False) -> Any:
        """The page at an address."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme="dark" if dark else "light", reduced_motion="reduce")
        self.page.goto(f"{self.site}/{query}")
        self.page.locator(".vc-header").wait_for()
        return self.page

    def open_file(self, path: str, *, for_axe: bool = False) -> Any:
        """A file on disk in a profile of its own, with every way to the network closed.

        `for_axe` lets a script be added to a page that allows none.
        """
        if self._apart is not None:
            self._apart.close()
        self._apart = self.page.context.browser.new_context(bypass_csp=for_axe, offline=True)
        self._apart.route(re.compile("^https?:"), lambda route: route.abort())
        page = self._watched(self._apart.new_page())
        page.goto(f"file://{path}")
        return page

    def _watched(self, page: Any) -> Any:
        page.set_default_timeout(ANSWER_MS)
        page.on("request", self._note_request)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        return page

    def _note_request(self, request: Any) -> None:
        own = (f"{self.site}/", "data:", "blob:", "file:", self.site.replace("http", "ws"))
        if not request.url.startswith(own):
            self.outbound.append(request.url)

    def leave(self) -> None:
        self.page.close()
        if self._apart is not None:
            self._apart.close()

    # -- the form -----------------------------------------------------------------------------------------------

    def field(self, name: str) -> Any:
        """The input of a field."""
        return self.page.locator(f"[data-field={name}] input, [data-field={name}] textarea, input[data-field={name}], "
                                 f"textarea[data-field={name}]").first  # fmt: skip

    def type(self, name: str, text: str) -> None:
        """Replaces a field's text, key by key."""
        field = self.field(name)
        field.click()
        field.press("Control+a")
        field.press("Delete")
        field.press_sequentially(text)

    def choose(self, name: str, text: str, option: str) -> None:
        """Types into a field that offers a list, and takes an option."""
        self.field(name).click()
        self.field(name).press("Control+a")
        self.field(name).press_sequentially(text)
        self.page.locator(".q-menu .q-item", has_text=re.compile(rf"^\s*{re.escape(option)}")).first.click()

    def problem(self, name: str) -> str:
        """The line under a field."""
        return str(self.page.locator(f".q-field:has([data-field={name}]) [role=alert]").inner_text())

    # -- the answer -----------------------------------------------------------------------------------------------

    def verdict(self, words: str) -> None:
        """Waits for the verdict to hold these words."""
        self.page.locator("#verdict", has_text=words).wait_for()

    def figure(self, name: str) -> float:
        """A figure of the tiles, as the value behind the text."""
        return float(self.page.locator(f"[data-figure={name}] data").first.get_attribute("value"))

    def figures(self) -> dict[str, float]:
        """All of them."""
        return {name: self.figure(name) for name in ("tokens", "concurrency", "longest", "used")}

    def wait_for_address(self, part: str) -> None:
        self.page.wait_for_function("part => decodeURIComponent(location.search).includes(part)", arg=part)

    def width(self) -> int:
        """How wide the page wants to be."""
        return int(self.page.evaluate("document.documentElement.scrollWidth"))
