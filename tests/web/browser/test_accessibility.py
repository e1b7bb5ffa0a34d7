"""axe-core in light and dark, the keyboard alone, and what a screen reader is told."""

from __future__ import annotations

from typing import Any

import axe_playwright_python
import pytest

from web.browser.test_log import FAILED, drop
from web.browser.visiting import Visitor

AXE = f"{axe_playwright_python.__path__[0]}/axe.min.js"
HEAVY = ("serious", "critical")
PLAN = "?model=Qwen/Qwen3-30B-A3B&gpu=H100-80GB&vllm=0.26.0&pp=2&context=32k&concurrency=8"
WRONG = "?model=Qwen/Qwen3-8B&gpu=H10&vllm=0.26.0&tp=x&flags=--max-num-sqs&colour=red"
REFUSED = "?model=Qwen/Qwen3-8B&gpu=H100-80GB&vllm=0.26.0&tp=3"
LAYOUTS = "?model=Qwen/Qwen3-8B&gpu=L40S&vllm=0.26.0&context=8k&concurrency=4&tab=layouts"
NAME = "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText"


def violations(page: Any, rules: str = "") -> list[str]:
    """What axe finds, the heavy ones; `rules` limits it to one rule."""
    if not page.evaluate("'axe' in window"):
        page.add_script_tag(path=AXE)
    options = {"runOnly": [rules]} if rules else {}
    found = page.evaluate("async (options) => (await axe.run(options)).violations", options)
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:160]} {node['failureSummary'][:200]}"
        for one in found
        if one["impact"] in HEAVY
        for node in one["nodes"]
    ]


def heavy_in_both_themes(page: Any) -> list[str]:
    """Every rule in one theme, those that a theme can break in the other."""
    page.emulate_media(color_scheme="light")
    page.wait_for_function("document.body.classList.contains('body--light')")
    found = violations(page)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.body.classList.contains('body--dark')")
    return found + [f"dark: {one}" for one in violations(page, "color-contrast")]


@pytest.mark.parametrize("query", [PLAN, WRONG, REFUSED], ids=["plan", "wrong", "refused"])
def test_axe_finds_nothing_heavy_on_a_plan(visit: Visitor, query: str):
    page = visit.open(query)
    page.locator("#verdict .vc-word").wait_for()
    for summary in page.locator("summary:visible").all()[:4]:
        summary.click()
    assert heavy_in_both_themes(page) == []


def test_axe_finds_nothing_heavy_on_the_other_tabs(visit: Visitor):
    page = visit.open(LAYOUTS)
    page.locator(".vc-cards tbody tr").first.wait_for()
    assert heavy_in_both_themes(page) == []
    page.get_by_role("button", name="Read a log").click()
    drop(visit, FAILED)
    page.locator(".vc-log .vc-verdict").wait_for()
    assert heavy_in_both_themes(page) == []


def test_axe_finds_nothing_heavy_in_an_open_list_and_on_a_phone(visit: Visitor):
    page = visit.open(PLAN, width=390, height=844)
    page.locator("#verdict .vc-word").wait_for()
    visit.field("gpu").click()
    page.locator(".q-menu .q-item").first.wait_for()
    page.wait_for_function("!document.querySelector('.q-menu [class^=q-virtual-scroll][tabindex]')")
    assert violations(page) == []


def test_the_keyboard_alone_does_the_job(visit: Visitor):
    page = visit.open()
    visit.verdict("It starts")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answer"
    order = []
    for _ in range(20):
        page.keyboard.press("Tab")
        order.append(page.evaluate(NAME))
    assert order == [
        "Plan", "Compare layouts", "Read a log", "Copy link", "Save as page", "Theme: system", "By name", "Paste config.json",
        "Model", "GPU", "Tensor (tp)", "Pipeline (pp)", "Data (dp)", "max_model_len, tokens", "Requests at once",
        "KV cache dtype", "Utilisation", "vLLM release", "Engine flags", "Apply --tensor-parallel-size 2: twice the GPUs",
    ]  # fmt: skip
    page.keyboard.press("Enter")
    visit.verdict("It starts")
    visit.wait_for_address("tp=2")
    assert page.evaluate("document.activeElement.id") == "verdict"

    visit.field("model").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("qwen3-32b")
    page.locator(".q-menu .q-item", has_text="Qwen/Qwen3-32B").first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    visit.verdict("Qwen/Qwen3-32B")


def test_the_verdict_is_read_out_when_it_changes_and_every_picture_has_words(visit: Visitor):
    page = visit.open(PLAN)
    spoken = page.locator("[role=status][aria-live=polite]").first
    assert spoken.inner_text().startswith("It starts. vLLM 0.26.0 starts Qwen/Qwen3-30B-A3B")
    visit.type("tp", "3")
    visit.verdict("It does not start")
    assert spoken.inner_text().startswith("It does not start.")
    visit.type("tp", "2")
    visit.verdict("It starts")
    for picture in page.locator("[role=img]").all():
        assert len(picture.get_attribute("aria-label")) > 40


def test_the_theme_follows_the_system_until_it_is_chosen(visit: Visitor):
    page = visit.open(dark=True)
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: dark").click()
    page.get_by_role("button", name="Theme: light").wait_for()
    page.wait_for_function(f"{background} !== '{dark}'")
    page.get_by_role("button", name="Theme: light").click()
    page.wait_for_function(f"{background} === '{dark}'")
