"""What cannot be planned: one line at the field, and a page that goes on."""

from __future__ import annotations

import pytest

from web.browser.visiting import Visitor


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("tp", "x", "must be an integer"),
        ("context", "32x", "is not a number"),
        ("concurrency", "lots", "no number of requests"),
        ("utilisation", "1.4", "at most 1"),
        ("flags", "--max-num-sqs 3", "did you mean --max-num-seqs?"),
    ],
)
def test_one_line_at_the_field_and_the_page_goes_on(staying: Visitor, field: str, text: str, words: str):
    page = staying.page
    staying.verdict("It starts")
    before = staying.field(field).input_value()
    staying.type(field, text)
    staying.verdict("No answer yet")
    assert words in staying.problem(field)
    assert staying.field(field).get_attribute("aria-invalid") == "true"
    assert "Traceback" not in page.content()
    staying.field(field).fill(before)
    staying.verdict("It starts")
    assert staying.field(field).get_attribute("aria-invalid") == "false"
    assert page.locator(".q-field--error").count() == 0


@pytest.mark.parametrize("config", ["{", "[1, 2]", '{"architectures": ["NoSuchModel"]}', "{}", "x" * 3000])
def test_a_bad_config_gives_one_line_and_the_page_goes_on(staying: Visitor, config: str):
    page = staying.page
    page.get_by_role("button", name="Paste config.json").click()
    staying.field("config").fill(config)
    page.locator(".q-field:has([data-field=config]) [role=alert]").wait_for()
    staying.verdict("No answer yet")
    assert "\n" not in staying.problem("config").strip()
    assert "Traceback" not in page.content()
    staying.field("config").fill("")
    page.get_by_role("button", name="By name").click()
    staying.verdict("It starts")


def test_a_model_that_nobody_knows_is_named_with_those_that_are_close(visit: Visitor):
    visit.open()
    visit.field("model").click()
    visit.field("model").press("Control+a")
    visit.field("model").press_sequentially("Qwen/Qwen3-9")
    visit.page.locator(".q-menu .q-item").first.wait_for(
        state="hidden"
    )  # Enter would take what the list still offers
    visit.field("model").press("Enter")
    visit.verdict("No answer yet")
    assert "Did you mean" in visit.problem("model")
    visit.choose("model", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B")
    visit.verdict("Qwen/Qwen3-8B on 1 ×")


def test_an_address_from_elsewhere_is_read_as_far_as_it_goes(visit: Visitor):
    page = visit.open("?model=Qwen/Qwen3-8B&gpu=NoSuchGPU&vllm=0.26.0&colour=red&tab=prices&config=%25")
    visit.verdict("No answer yet")
    assert "colour" in page.locator(".vc-notice").first.inner_text()
    assert "unknown GPU" in visit.problem("gpu")
    visit.choose("gpu", "H100", "H100-80GB")
    visit.verdict("Qwen/Qwen3-8B on 1 × H100-80GB")


def test_what_vllm_refuses_is_an_answer(visit: Visitor):
    visit.open("?model=Qwen/Qwen3-8B&gpu=H100-80GB&vllm=0.26.0&tp=3")
    visit.verdict("It does not start")
    visit.verdict("must be divisible by tensor parallel size (3)")
    visit.type("tp", "2")
    visit.verdict("It starts")
