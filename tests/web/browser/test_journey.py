"""What people come for: from a model and a GPU to a command that starts."""

from __future__ import annotations

import json
from typing import Any

from vllm_capacity import plan
from vllm_capacity.answer import Plan

from web.browser.visiting import Visitor
from web.running import running


def test_from_a_name_to_a_command_that_starts(visit: Visitor):
    page = visit.open()
    visit.verdict("It starts")
    visit.choose("model", "30b-a3", "Qwen/Qwen3-30B-A3B")
    visit.verdict("Qwen/Qwen3-30B-A3B on 1 × H100-80GB")
    visit.type("tp", "2")
    visit.type("context", "32k")
    visit.type("concurrency", "40")
    visit.verdict("40 requests of 32,000 tokens do not fit at once")

    expected = plan("Qwen/Qwen3-30B-A3B", gpu="H100-80GB", tensor_parallel_size=2, max_model_len="32k")
    assert isinstance(expected, Plan)
    assert visit.figures() == {
        "tokens": expected.kv_cache.size_tokens,
        "concurrency": expected.kv_cache.max_concurrency,
        "longest": expected.verdict.max_model_len_that_fits,
        "used": expected.tightest.device_used_bytes,
    }

    suggestion = next(s for s in expected.verdict.suggestions if "--kv-cache-dtype" in s.flags)
    page.get_by_role("button", name="Apply --kv-cache-dtype fp8").click()
    visit.verdict("40 requests of 32,000 tokens fit at once")
    assert (
        visit.figure("tokens") == expected.kv_cache.size_tokens + suggestion.effect.kv_cache_size_tokens_delta
    )
    assert "--kv-cache-dtype fp8" in page.locator(".vc-serve").inner_text()
    visit.wait_for_address("kv=fp8")

    page.get_by_role("button", name="Copy command").click()
    page.get_by_text("Copied", exact=True).wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator(".vc-serve").inner_text()
    assert copied.startswith("vllm serve Qwen/Qwen3-30B-A3B")
    assert visit.errors == []


def test_the_ledger_shows_formula_and_source_on_a_click_and_keeps_it_open(visit: Visitor):
    page = visit.open("?model=meta-llama/Llama-3.1-8B-Instruct&gpu=H100-80GB&vllm=0.26.0")
    term = page.locator(".vc-ledger details:has(summary[data-term^='weights/mlp'])")
    assert not term.locator("dl").is_visible()
    term.locator("summary").click()
    facts = term.locator("dl").inner_text()
    assert "Formula" in facts
    assert "4096" in facts
    assert "vllm/" in facts or ".py" in facts
    visit.type("context", "8k")
    visit.verdict("8,000 tokens at once")
    assert term.locator("dl").is_visible()


def test_a_link_reproduces_the_page(visit: Visitor):
    page = visit.open("?model=google/gemma-3-27b-it&gpu=H200-141GB&vllm=0.26.0")
    visit.type("tp", "2")
    visit.type("context", "16k")
    visit.type("flags", "--max-num-seqs 64")
    visit.verdict("16,000 tokens")
    visit.wait_for_address("flags=--max-num-seqs+64")
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("The link is copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    figures, serve = visit.figures(), page.locator(".vc-serve").inner_text()

    page = visit.open(link.removeprefix(visit.site + "/"))
    visit.verdict("16,000 tokens")
    assert visit.figures() == figures
    assert page.locator(".vc-serve").inner_text() == serve
    assert visit.field("model").input_value() == "google/gemma-3-27b-it"
    assert visit.field("gpu").input_value().startswith("H200-141GB")
    assert visit.field("tp").input_value() == "2"
    assert visit.field("context").input_value() == "16k"
    assert visit.field("flags").input_value() == "--max-num-seqs 64"


def test_a_pasted_config_is_in_the_link_too(visit: Visitor):
    from vllm_capacity.inputs.catalogue import find_entry

    entry = find_entry("Qwen/Qwen3-8B")
    assert entry is not None
    page = visit.open("?vllm=0.26.0")
    page.get_by_role("button", name="Paste config.json").click()
    visit.field("config").fill(json.dumps(dict(entry.config)))
    visit.verdict("pasted-config on 1 ×")
    expected = plan("Qwen/Qwen3-8B", gpu="H100-80GB", vllm_version="0.26.0")
    assert isinstance(expected, Plan)
    assert visit.figure("tokens") == expected.kv_cache.size_tokens
    visit.wait_for_address("config=")
    page.reload()
    visit.verdict("It starts")
    assert visit.figure("tokens") == expected.kv_cache.size_tokens
    assert json.loads(visit.field("config").input_value()) == entry.config


def test_a_pasted_command_fills_the_form(visit: Visitor):
    visit.open()
    command = (
        "docker run vllm/vllm-openai:v0.26.0 --model Qwen/Qwen3-8B -tp 2 --max-model-len 16k --enforce-eager"
    )
    visit.field("flags").fill(command)
    visit.verdict("vLLM 0.26.0 starts Qwen/Qwen3-8B on 2 ×")
    assert visit.field("model").input_value() == "Qwen/Qwen3-8B"
    assert visit.field("tp").input_value() == "2"
    assert visit.field("flags").input_value() == "--enforce-eager"


def test_a_flag_that_has_a_field_moves_there_when_its_box_is_left(visit: Visitor):
    visit.open("?model=Qwen/Qwen3-8B&gpu=H100-80GB&vllm=0.26.0")
    visit.type("flags", "--max-model-len 4k --max-num-seqs 64")
    visit.verdict("4,000 tokens at once")
    visit.field("tp").click()
    visit.page.wait_for_function("document.querySelector('[data-field=context]').value === '4000'")
    assert visit.field("flags").input_value() == "--max-num-seqs 64"
    visit.wait_for_address("context=4000")


def test_the_cache_dtypes_are_those_of_the_release(visit: Visitor):
    page = visit.open("?model=Qwen/Qwen3-8B&gpu=H100-80GB&vllm=0.26.0")
    for release, known in (("0.33.0", True), ("0.19.0", False)):
        page.get_by_role("combobox", name="vLLM release").click()
        page.get_by_role("option", name=release, exact=True).click()
        visit.verdict(f"vLLM {release} starts")
        page.get_by_role("combobox", name="KV cache dtype").click()
        page.get_by_role("option", name="fp8_e5m2").wait_for()
        assert (page.get_by_role("option", name="nvfp4", exact=True).count() > 0) is known
        page.keyboard.press("Escape")


def test_behind_a_prefix_everything_is_under_it(profile: Any):
    with running("--root-path", "/capacity") as program:
        visit = Visitor(profile, f"{program.url}/capacity")
        visit.open("?model=Qwen/Qwen3-8B&gpu=H100-80GB&vllm=0.26.0")
        visit.type("context", "8k")
        visit.verdict("8,000 tokens at once")
        assert "/capacity/?model=" in visit.page.url
        assert visit.outbound == []
        assert visit.errors == []
        visit.leave()


def test_layouts_are_compared_and_one_of_them_is_planned(visit: Visitor):
    page = visit.open("?model=meta-llama/Llama-3.1-70B-Instruct&gpu=H100-80GB&vllm=0.26.0")
    page.get_by_role("button", name="Compare layouts").click()
    page.get_by_text("How many requests at once?").first.wait_for()
    page.get_by_role("button", name="Try 16 requests of 8K tokens").click()
    row = page.locator(".vc-cards tbody tr", has_text="tp 4").first
    row.wait_for()
    tokens = float(row.locator("td[data-label='KV cache tokens'] data").get_attribute("value"))
    row.get_by_role("button").click()
    visit.verdict("70B-Instruct on 4 × H100-80GB")
    assert visit.figure("tokens") == tokens
    assert visit.field("tp").input_value() == "4"
    assert visit.errors == []
