"""A page as its readers meet it: parsed by the HTML standard's own rules, every parse error an exception."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from xml.etree.ElementTree import Element

import html5lib

XHTML = "{http://www.w3.org/1999/xhtml}"


@dataclass(frozen=True)
class Page:
    """`source` is the file's text."""

    source: str

    @cached_property
    def root(self) -> Element:
        parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
        root: Element = parser.parse(self.source)
        return root

    def all(self, tag: str) -> list[Element]:
        """Elements of HTML or SVG by local name."""
        return [element for element in self.root.iter() if local(element) == tag]

    @cached_property
    def values(self) -> set[float]:
        """Everything that stands in <data value>."""
        return {float(element.get("value") or "nan") for element in self.all("data")}

    @cached_property
    def key_numbers(self) -> dict[str, float]:
        """Label -> the first value of each tile."""
        found = {}
        for tile in self.all("div"):
            term, figure = tile.find("dt"), tile.find("dd")
            if term is not None and figure is not None:
                data = next((e for e in figure.iter() if local(e) == "data"), None)
                if data is not None:
                    found[text(term)] = float(data.get("value") or "nan")
        return found

    def section(self, heading: str) -> str:
        """All text between an h2 and the next one."""
        body = self.root.find(".//main")
        assert body is not None
        inside, words = False, []
        for child in body:
            if local(child) == "h2":
                inside = text(child) == heading
            elif inside:
                words.append(text(child))
        return " ".join(words)

    def table(self, caption: str) -> list[list[str]]:
        """Rows of the table whose caption starts with these words."""
        for table in self.all("table"):
            title = table.find("caption")
            if title is not None and text(title).startswith(caption):
                return [
                    [text(cell) for cell in row if local(cell) in ("td", "th")] for row in table.iter("tr")
                ]
        raise AssertionError(f"no table {caption!r}")

    @cached_property
    def commands(self) -> list[str]:
        return ["".join(element.itertext()) for element in self.all("pre")]


def local(element: Element) -> str:
    """The tag without its namespace; '' for a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def child(element: Element, tag: str) -> Element | None:
    """The first child of that local name."""
    return next((inner for inner in element if local(inner) == tag), None)


def text(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def texts(page: Page, tag: str) -> Iterator[str]:
    for element in page.all(tag):
        yield text(element)
