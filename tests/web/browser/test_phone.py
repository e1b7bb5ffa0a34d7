"""390 pixels: everything is there, and nothing has to be scrolled sideways."""

from __future__ import annotations

import pytest

from web.browser.test_log import FAILED, drop
from web.browser.visiting import Visitor

WIDTH = 390
TOO_WIDE = """() => [...document.querySelectorAll('main *, header *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width > 0 && box.right > innerWidth + 1 && !e.closest('.vc-hidden, .vc-tip');
}).map(e => e.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize(
    "query",
    [
        "?model=meta-llama/Llama-3.1-8B-Instruct&gpu=H100-80GB&vllm=0.26.0",
        "?model=deepseek-ai/DeepSeek-V3&gpu=H100-80GB&vllm=0.26.0&tp=4&pp=2&concurrency=8",
        "?model=Qwen/Qwen3-8B&gpu=H100-80GB&vllm=0.26.0&tp=3&flags=--max-num-sqs",
    ],
)
def test_the_plan_fits(visit: Visitor, query: str):
    page = visit.open(query, width=WIDTH, height=844)
    page.locator("#verdict .vc-word").wait_for()
    assert visit.width() <= WIDTH
    assert page.evaluate(TOO_WIDE) == []
    for summary in page.locator("summary:visible").all()[:6]:
        summary.click()
    assert visit.width() <= WIDTH
    assert page.evaluate(TOO_WIDE) == []


def test_the_layouts_fit(visit: Visitor):
    query = "?model=Qwen/Qwen3-8B&gpu=L40S&vllm=0.26.0&context=8k&concurrency=4&tab=layouts"
    page = visit.open(query, width=WIDTH, height=844)
    page.locator(".vc-cards tbody tr").first.wait_for()
    assert visit.width() <= WIDTH
    assert page.evaluate(TOO_WIDE) == []


def test_a_log_fits(visit: Visitor):
    page = visit.open("?tab=log", width=WIDTH, height=844)
    drop(visit, FAILED)
    page.locator(".vc-log .vc-verdict").wait_for()
    assert visit.width() <= WIDTH
    assert page.evaluate(TOO_WIDE) == []


def test_the_answer_is_one_tap_away_and_always_in_sight(visit: Visitor):
    page = visit.open("?model=Qwen/Qwen3-8B&gpu=L40S&vllm=0.26.0", width=WIDTH, height=844)
    jump = page.locator(".vc-jump")
    jump.get_by_text("It starts").wait_for()
    assert jump.bounding_box()["y"] > 700
    jump.click()
    page.wait_for_function("document.querySelector('#answer').getBoundingClientRect().top < 200")
    visit.type("tp", "3")
    jump.get_by_text("It does not start").wait_for()
