"""The sections of the answer: what they hold, and what they leave out."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from vllm_capacity.answer import Plan
from vllm_capacity.web.page.answers import Answer, plan_answer
from vllm_capacity.web.page.sections import PLAN_SECTIONS, palette_css, plan_sections, short, spoken
from vllm_capacity.web.page.state import PageState
from vllm_capacity.web.settings import WebSettings

BASE = PageState(release="0.26.0")
STARTS = replace(BASE, model="Qwen/Qwen3-30B-A3B", tp="2", context="32k", concurrency="8")
STAGES = replace(BASE, model="deepseek-ai/DeepSeek-V3", gpu="H200-141GB", tp="4", pp="2")
FAILS = replace(BASE, gpu="RTX-4060-TI-16GB")
REFUSED = replace(BASE, model="Qwen/Qwen3-8B", tp="3")
NO_CACHE = replace(BASE, model="BAAI/bge-m3", gpu="L4")


def answered(state: PageState) -> Answer:
    found = plan_answer(state, WebSettings())
    assert isinstance(found, Answer)
    return found


def values(html: str) -> set[float]:
    return {float(text) for text in re.findall(r'<data value="(-?[0-9.e+]+)"', html)}


@pytest.mark.parametrize("state", [STARTS, STAGES, FAILS], ids=["starts", "stages", "fails"])
def test_every_byte_of_every_term_is_in_the_ledger(state: PageState):
    answer = answered(state)
    assert isinstance(answer.plan, Plan)
    shown = values(plan_sections(answer)["ledger"])
    for rank in answer.plan.ranks:
        for term in rank.terms:
            if term.n_bytes:
                assert term.n_bytes in shown, term.name


def test_a_term_that_is_open_stays_open():
    answer = answered(STARTS)
    key = re.findall(r'data-term="([^"]+)"', plan_sections(answer)["ledger"])[3]
    opened = plan_sections(answer, {key})["ledger"]
    assert opened.count("<details open>") == 1
    assert f'<details open><summary class="vc-line" data-term="{key}">' in opened


def test_a_refused_layout_has_a_verdict_and_nothing_else():
    sections = plan_sections(answered(REFUSED))
    assert "must be divisible by tensor parallel size (3)" in sections["verdict"]
    assert [name for name in PLAN_SECTIONS if sections[name]] == ["verdict"]


def test_a_model_without_a_cache_speaks_of_none():
    answer = answered(NO_CACHE)
    sections = plan_sections(answer)
    assert "This model keeps no KV cache" in sections["verdict"]
    assert "tokens" not in sections["figures"] + sections["advice"]
    assert sections["curve"] == ""
    assert short(answer) == ""


def test_what_is_spoken_is_the_verdict_and_the_answer_to_what_was_asked():
    assert spoken(answered(STARTS)).startswith(
        "It starts. vLLM 0.26.0 starts Qwen/Qwen3-30B-A3B on 2 × H100-80GB"
    )
    assert "8 requests of 32,000 tokens fit at once" in spoken(answered(STARTS))
    assert spoken(answered(FAILS)).startswith("It does not start. ")


def test_every_component_of_a_bar_has_its_look():
    css = palette_css()
    for state in (STARTS, STAGES, FAILS):
        for name in set(re.findall(r"vc-c-[a-z-]+", plan_sections(answered(state))["bars"])):
            assert f".{name}{{" in css
