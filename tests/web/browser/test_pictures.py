"""The screenshots of docs/web.md, made of the page as it is. Without --update-screenshots they are made and thrown away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from web.browser.test_log import FAILED, drop
from web.browser.visiting import Visitor

PLAN = "?model=Qwen/Qwen3-30B-A3B&gpu=H100-80GB&vllm=0.26.0&tp=2&context=32k&concurrency=40"
LAYOUTS = (
    "?model=meta-llama/Llama-3.1-70B-Instruct&gpu=H100-80GB&vllm=0.26.0&context=8K&concurrency=16&tab=layouts"
)
MOST_BYTES = 300_000


def plan(visit: Visitor) -> None:
    visit.open(PLAN, width=1280, height=1130)
    visit.verdict("40 requests of 32,000 tokens")


def dark(visit: Visitor) -> None:
    query = "?model=deepseek-ai/DeepSeek-V3&gpu=H200-141GB&vllm=0.26.0&tp=4&pp=2"
    visit.open(query, width=1280, height=900, dark=True)
    visit.verdict("DeepSeek-V3")


def ledger(visit: Visitor) -> None:
    page = visit.open(PLAN, width=1280, height=1000)
    visit.verdict("40 requests")
    page.locator("summary[data-term^='weights/attention']").first.click()
    page.evaluate(
        "window.scrollTo(0, document.querySelector('.vc-curve').getBoundingClientRect().top + scrollY - 60)"
    )


def phone(visit: Visitor) -> None:
    page = visit.open(PLAN, width=390, height=844)
    visit.verdict("40 requests")
    page.evaluate(
        "window.scrollTo(0, document.querySelector('#answer').getBoundingClientRect().top + scrollY - 12)"
    )


def layouts(visit: Visitor) -> None:
    visit.open(LAYOUTS, width=1280, height=900)
    visit.page.locator(".vc-cards tbody tr").first.wait_for()


def log(visit: Visitor) -> None:
    visit.open("?tab=log", width=1280, height=1000)
    drop(visit, FAILED)
    visit.page.locator(".vc-log .vc-verdict").wait_for()


@pytest.mark.parametrize("take", [plan, dark, ledger, phone, layouts, log], ids=lambda take: take.__name__)
def test_a_picture_of_the_page(
    visit: Visitor, take: Callable[[Visitor], None], pictures: Path | None, tmp_path: Path
):
    take(visit)
    visit.page.evaluate("document.fonts.ready")
    path = (pictures or tmp_path) / f"web-{take.__name__}.png"
    visit.page.screenshot(path=path)
    assert 10_000 < path.stat().st_size < MOST_BYTES
    assert visit.errors == []
