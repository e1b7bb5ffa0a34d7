"""Pages to hand on in a real browser: on a phone, in the dark, in print, and for assistive technology."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from making_pages import page, page_of_many, page_of_several, refused_page
from sizing_pages import no_gpu_page, sized_page

from browser.pictures import PICTURES

A4_MINUS_MARGINS = 695
"""CSS pixels: 210 mm less 13 mm on each side, at 96 to the inch."""


PAGES = {
    "starts": lambda: page("starts"),
    "does not fit": lambda: page("one request too long"),
    "pipeline": lambda: page("pipeline"),
    "several": page_of_several,
    "many": page_of_many,
    "refused": refused_page,
    "size": sized_page,
    "size, nothing found": no_gpu_page,
}
EVERY = pytest.mark.parametrize("name", PAGES)

WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@EVERY
def test_nothing_sticks_out_on_a_phone(opened: Any, name: str):
    tab = opened(PAGES[name](), width=360, height=740)
    assert tab.evaluate(WIDER) <= 0
    for figure in tab.locator("svg[role=img]").all():
        box = figure.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360


@EVERY
def test_nothing_is_lost_or_cut_in_print(opened: Any, name: str):
    """Closed details are open, every table is as wide as the sheet at most, and colours are the light ones."""
    tab = opened(PAGES[name](), width=A4_MINUS_MARGINS, dark=True, media="print")
    assert tab.evaluate(WIDER) <= 0
    too_wide = tab.evaluate(
        "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        ".map(e => [e.getAttribute('aria-label'), e.scrollWidth, e.clientWidth])"
    )
    assert too_wide == []
    hidden = tab.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('nav') && !e.closest('svg')"
        " && !e.classList.contains('print-only') && e.textContent.trim()"
        " && !e.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true}))"
        ".map(e => e.tagName + ' ' + e.className + ' ' + e.textContent.trim().slice(0, 60))"
    )
    assert hidden == []
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    heights = tab.evaluate(
        "[...document.querySelectorAll('.terms li')].map(e => e.getBoundingClientRect().height)"
    )
    assert all(height > 5 for height in heights)


def test_a_printed_plan_has_all_its_pages(opened: Any):
    """The ledger takes the most paper: without it fewer sheets come out."""
    tab = opened(page("starts"))
    printed = tab.pdf(format="A4", print_background=True, prefer_css_page_size=True)
    tab.evaluate("document.querySelectorAll('details').forEach(e => e.remove())")
    without = tab.pdf(format="A4", print_background=True, prefer_css_page_size=True)
    assert _sheets(without) < _sheets(printed) <= 12


def _sheets(pdf: bytes) -> int:
    (count,) = set(map(int, re.findall(rb"/Type /Pages\s*/Count (\d+)", pdf)))
    return count


def test_the_dark_page_is_dark(opened: Any):
    for dark, paper in ((False, "rgb(255, 255, 255)"), (True, "rgb(20, 24, 29)")):
        tab = opened(page("starts"), dark=dark)
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == paper


@pytest.mark.parametrize("name", ["starts", "several", "refused", "size"])
def test_axe_finds_nothing(browser: Any, name: str, tmp_path: Path):
    """axe-core, all its rules in the light, contrast again in the dark; the ledger of one page open."""
    import axe_playwright_python

    file = tmp_path / "axe.html"
    file.write_text(PAGES[name]().source, encoding="utf-8")
    context = browser.new_context(bypass_csp=True, color_scheme="light")
    try:
        tab = context.new_page()
        tab.goto(file.as_uri())
        if name == "starts":
            tab.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
        tab.add_script_tag(path=f"{axe_playwright_python.__path__[0]}/axe.min.js")
        found = tab.evaluate("async () => (await axe.run()).violations")
        tab.emulate_media(color_scheme="dark")
        found += tab.evaluate("async () => (await axe.run({runOnly: ['color-contrast']})).violations")
    finally:
        context.close()
    said = [
        f"{one['id']} ({one['impact']}): {node['html'][:120]}: {node['failureSummary'][:160]}"
        for one in found
        for node in one["nodes"]
    ]
    assert said == []


def test_the_keyboard_reaches_the_ledger(opened: Any):
    tab = opened(page("starts"))
    first = tab.locator("details").first
    first.locator("summary").focus()
    assert not first.evaluate("e => e.open")
    tab.keyboard.press("Enter")
    assert first.evaluate("e => e.open")
    assert first.locator("li").first.is_visible()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_pictures_of_the_documentation_are_of_these_pages(
    opened: Any, picture: Any, request: pytest.FixtureRequest
):
    """`pytest tests/report/browser --update-screenshots` writes them."""
    tab = opened(picture.page(), width=picture.width, height=picture.height, dark=picture.dark)
    shot = tab.screenshot(clip={"x": 0, "y": picture.top, "width": picture.width, "height": picture.height})
    target = Path(__file__).parents[3] / "docs" / "pictures" / picture.name
    if request.config.getoption("--update-screenshots"):
        target.write_bytes(shot)
    assert target.is_file()
    assert shot[16:24] == target.read_bytes()[16:24]  # width and height of a PNG
