"""The pictures of pages in docs/report.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from making_pages import page
from reading_pages import Page
from sizing_pages import sized_page


@dataclass(frozen=True)
class Picture:
    """A part of a page: from `top`, in CSS pixels."""

    name: str
    page: Callable[[], Page]
    width: int
    height: int
    top: int = 0
    dark: bool = False


PICTURES = (
    Picture("report-plan.png", lambda: page("experts on two GPUs"), 800, 1060),
    Picture("report-size.png", sized_page, 900, 900),
)
