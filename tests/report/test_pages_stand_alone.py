"""What holds for every page: it loads nothing, it is well formed, it is small, and it can be read by everyone."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest
from making_pages import CASES, every_plan_page
from reading_pages import Page, local, text
from sizing_pages import no_gpu_page, sized_page
from vllm_capacity.report.html.bars import OTHERS
from vllm_capacity.report.html.environment import HATCHES, TEMPLATES
from vllm_capacity.report.palette import LOOKS

NAMES = [*CASES, "several", "many", "refused", "size", "size, nothing found"]
EVERY = pytest.mark.parametrize("name", NAMES)
MOST_BYTES = 150_000


@cache
def pages() -> dict[str, Page]:
    return {**every_plan_page(), "size": sized_page(), "size, nothing found": no_gpu_page()}


LOADING = {
    "src",
    "srcset",
    "data",
    "poster",
    "action",
    "formaction",
    "background",
    "cite",
    "ping",
    "manifest",
    "srcdoc",
}
LOADERS = {
    "script",
    "link",
    "img",
    "iframe",
    "object",
    "embed",
    "base",
    "form",
    "video",
    "audio",
    "source",
    "image",
    "use",
}


@EVERY
def test_a_page_refers_to_nothing_but_itself(name: str):
    for element in pages()[name].root.iter():
        assert local(element) not in LOADERS
        for attribute, value in element.attrib.items():
            bare = attribute.rpartition("}")[2].lower()
            assert bare not in LOADING, (local(element), attribute)
            assert not bare.startswith("on"), (local(element), attribute)
            if bare == "href":
                assert value.startswith("#"), value
            for address in re.findall(r"url\(([^)]*)\)", value):
                assert address.startswith("#"), value
    (style,) = pages()[name].all("style")
    sheet = "".join(style.itertext())
    assert "url(" not in sheet
    assert "@import" not in sheet
    assert "expression(" not in sheet


@EVERY
def test_a_page_forbids_everything_but_its_own_style(name: str):
    (policy,) = [
        e.get("content") or ""
        for e in pages()[name].all("meta")
        if e.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert pages()[name].source.index("Content-Security-Policy") < pages()[name].source.index("<style>")


@EVERY
def test_a_page_is_small(name: str):
    assert len(pages()[name].source.encode()) < MOST_BYTES


@EVERY
def test_a_page_is_well_formed_and_its_references_resolve(name: str):
    """html5lib in strict mode raises at the first parse error."""
    root = pages()[name].root
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        wanted = {
            (element.get("href") or "").removeprefix("#"),
            *(element.get("aria-labelledby") or "").split(),
        }
        wanted |= set(re.findall(r"url\(#([^)]*)\)", element.get("fill") or ""))
        assert wanted - {""} <= set(ids)


@EVERY
def test_headings_are_a_tree(name: str):
    levels = [int(local(e)[1]) for e in pages()[name].root.iter() if re.fullmatch(r"h[1-6]", local(e))]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@EVERY
def test_tables_have_names_and_headers_with_a_scope(name: str):
    seen = pages()[name]
    for table in seen.all("table"):
        head = table.find("thead")
        for cell in table.iter():
            if local(cell) == "th":
                inside = head is not None and cell in list(head.iter())
                assert cell.get("scope") == ("col" if inside else "row")
        widths = {len([c for c in row if local(c) in ("td", "th")]) for row in table.iter("tr")}
        assert len(widths) == 1, text(table)[:80]
    regions = [e for e in seen.all("div") if e.get("role") == "region"]
    assert len(regions) == len(seen.all("table"))
    assert all(e.get("aria-label") and e.get("tabindex") == "0" for e in regions)
    labels = [e.get("aria-label") for e in regions]
    assert len(labels) == len(set(labels))


@EVERY
def test_pictures_have_words(name: str):
    parents = {child: parent for parent in pages()[name].root.iter() for child in parent}

    def inside_of_a_picture(element: Element) -> bool:
        above = parents.get(element)
        return above is not None and (local(above) == "svg" or inside_of_a_picture(above))

    for picture in pages()[name].all("svg"):
        if inside_of_a_picture(picture) or picture.get("aria-hidden") == "true":
            continue
        assert picture.get("role") == "img"
        assert len(picture.get("aria-label") or "") > 20
    for figure in pages()[name].all("figure"):
        assert figure.find("figcaption") is not None


@EVERY
def test_a_page_names_its_language_tool_and_release(name: str):
    seen = pages()[name]
    assert seen.root.get("lang") == "en"
    (title,) = [e for e in seen.all("title") if len(text(e)) > 25][:1]
    assert text(title)
    words = text(seen.root)
    assert re.search(r"vllm-capacity \d+\.\d+\.\d+", words)
    assert re.search(r"vLLM 0\.\d+\.\d+", words)


_UNITS = {"GiB": 2**30, "MiB": 2**20, "B": 1, "%": 0.01, "": 1}


@EVERY
def test_what_people_read_is_what_programs_read(name: str):
    """The text of every <data> is its value, rounded to the digits shown."""
    found = pages()[name].all("data")
    assert found
    for element in found:
        shown, value = text(element).replace("−", "-").replace(",", ""), float(element.get("value") or "nan")
        match = re.fullmatch(r"([+-]?\d+(?:\.(\d+))?)\s?(GiB|MiB|B|%|)", shown)
        assert match, shown
        if shown == "0":
            assert abs(value) < 1
            continue
        unit = _UNITS[match[3]]
        if value and abs(float(match[1]) / value - 0.001) < 0.0005:
            unit = 1000  # watts as kilowatts
        half = 0.5 * 10 ** -len(match[2] or "") * unit
        assert abs(float(match[1]) * unit - value) <= half * (1 + 1e-9), (shown, value)


# -- colours


def _sheet() -> str:
    return (TEMPLATES / "style.css.j2").read_text(encoding="utf-8")


def _variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-fA-F]{3,6})", block))


def _schemes() -> dict[str, dict[str, str]]:
    sheet = _sheet()
    light = _variables(sheet[: sheet.index("@media (prefers-color-scheme: dark)")])
    dark = sheet[sheet.index("@media (prefers-color-scheme: dark)") : sheet.index("* { box-sizing")]
    printed = sheet[sheet.index("@media print") :]
    return {"light": light, "dark": light | _variables(dark), "print": light | _variables(printed)}


def contrast(first: str, second: str) -> float:
    """WCAG 2.2, relative luminance."""

    def luminance(colour: str) -> float:
        code = {"black": "#000000", "white": "#ffffff"}.get(colour, colour).lstrip("#")
        code = "".join(digit * 2 for digit in code) if len(code) == 3 else code
        parts = [int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_measure_of_contrast_is_the_published_one():
    assert contrast("#000", "#fff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # WCAG's well-known near miss


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
@pytest.mark.parametrize(
    ("ink", "paper"),
    [
        ("ink", "page"), ("muted", "page"), ("accent", "page"), ("ink", "soft"), ("good", "page"), ("bad", "page"),
        ("open", "page"), ("good", "good-back"), ("bad", "bad-back"), ("open", "open-back"), ("ink", "good-back"),
        ("ink", "bad-back"), ("ink", "open-back"), ("muted", "good-back"),
    ],
)  # fmt: skip
def test_text_stands_out(scheme: str, ink: str, paper: str):
    colours = _schemes()[scheme]
    assert contrast(colours[ink], colours[paper]) >= 4.5


def test_figures_in_bars_stand_out():
    for look in (*LOOKS.values(), OTHERS):
        assert contrast(look.text, look.colour) >= 4.5


def test_components_of_one_colour_have_hatches_that_the_page_can_draw():
    assert len({(look.colour, look.hatch) for look in LOOKS.values()}) == len(LOOKS)
    patterns = set(
        re.findall(r'pattern id="([^"]+)"', (TEMPLATES / "parts.html.j2").read_text(encoding="utf-8"))
    )
    assert patterns == set(HATCHES.values())
    assert {look.hatch for look in LOOKS.values()} - {""} <= set(HATCHES)


def test_templates_are_all_part_of_the_package():
    assert {path.suffix for path in Path(TEMPLATES).iterdir()} == {".j2"}
