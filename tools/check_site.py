"""Checks a built site: nothing is loaded from elsewhere. usage: python tools/check_site.py SITE

Links that a reader may follow are fine; scripts, styles, fonts, pictures and frames have to be the site's own files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src", "embed": "src",
          "object": "data"}  # fmt: skip
LOADING_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "manifest",
    "modulepreload",
}
ELSEWHERE = re.compile(r"^(?:[a-z]+:)?//", re.IGNORECASE)
IN_CSS = re.compile(r"(?:url\(\s*|@import\s+)[\"']?((?:[a-z]+:)?//[^\"')\s]+)", re.IGNORECASE)


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        address = values.get(LOADED.get(tag, ""), "")
        if tag == "link" and LOADING_LINKS & set(values.get("rel", "").split()):
            address = values.get("href", "")
        if ELSEWHERE.match(address):
            self.found.append(address)


def loads_elsewhere(site: Path) -> Iterator[str]:
    """'FILE: ADDRESS' of everything that a browser would fetch from another place."""
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            parser = _Loads()
            parser.feed(path.read_text(encoding="utf-8"))
            found = parser.found
        elif path.suffix == ".css":
            found = IN_CSS.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        yield from (f"{path.relative_to(site)}: {address}" for address in found)


def main() -> int:
    found = list(loads_elsewhere(Path(sys.argv[1])))
    print("\n".join(found) or "the site loads nothing from elsewhere")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
