"""From texts to the planner's inputs: an error stands at the field it was made in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_capacity import plan
from vllm_capacity.answer import Plan
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.catalogue import find_entry
from vllm_capacity.web.page.answers import Answer, model_loader, plan_answer
from vllm_capacity.web.page.resolve import Inputs, Problem, resolve
from vllm_capacity.web.page.state import TEXTS, PageState
from vllm_capacity.web.settings import WebSettings

SETTINGS = WebSettings()
BASE = PageState(release="0.26.0")


def problems(state: PageState) -> dict[str, str]:
    found = resolve(state, model_loader(SETTINGS))
    assert not isinstance(found, Inputs)
    return {problem.field: problem.message for problem in found}


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("model", "", "Choose a model"),
        ("model", "Qwen/Qwen3-9", "Did you mean Qwen/"),
        ("model", "/etc/passwd", "reads no paths"),
        ("model", "../x", "reads no paths"),
        ("config", "{", "JSON"),
        ("config", "[]", "object"),
        ("gpu", "", "Choose a GPU"),
        ("gpu", "H10", "did you mean"),
        ("tp", "0", "at least 1"),
        ("pp", "many", "integer"),
        ("dp", "-1", "at least 1"),
        ("context", "32x", "not a number"),
        ("concurrency", "lots", "1 to"),
        ("concurrency", "0", "1 to"),
        ("concurrency", "9" * 400, "1 to"),
        ("kv_dtype", "fp7", ""),
        ("utilisation", "1.4", "at most 1"),
        ("release", "0.1.0", "0.1.0"),
        ("flags", "--max-num-sqs 3", "did you mean --max-num-seqs"),
        ("flags", "--max-num-seqs", "expected a value"),
        ("flags", "'", "quot"),
        ("flags", "--config /etc/passwd", "config"),
        ("flags", "vllm serve", ""),
        ("flags", "rm -rf /", "vllm serve"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_at_its_field(field: str, text: str, words: str):
    state = replace(BASE, **{field: text})
    found = plan_answer(state, SETTINGS)
    if isinstance(found, Answer):
        assert (field, text) == ("flags", "vllm serve")  # vLLM's own default model
        return
    messages = {problem.field: problem.message for problem in found}
    assert list(messages) == [field]
    assert words in messages[field]
    assert "\n" not in messages[field]
    assert "Traceback" not in messages[field]


def test_several_wrong_fields_are_all_named():
    state = replace(BASE, tp="x", context="y", gpu="z", model="")
    assert problems(state).keys() >= {"tp", "context", "gpu"}


def test_the_fields_are_the_flags_that_they_are_named_after():
    state = replace(
        BASE, model="Qwen/Qwen3-30B-A3B", tp="2", context="32k", concurrency="8", kv_dtype="fp8", utilisation="0.9",
        flags="VLLM_LOGGING_LEVEL=DEBUG --max-num-seqs 64 --enforce-eager",
    )  # fmt: skip
    answer = plan_answer(state, SETTINGS)
    assert isinstance(answer, Answer)
    same = plan(
        "Qwen/Qwen3-30B-A3B", gpu="H100-80GB", vllm_version="0.26.0", concurrency=8, tensor_parallel_size=2,
        max_model_len="32k", kv_cache_dtype="fp8", gpu_memory_utilization=0.9, max_num_seqs=64, enforce_eager=True,
        environment={"VLLM_LOGGING_LEVEL": "DEBUG"},
    )  # fmt: skip
    assert isinstance(answer.plan, Plan)
    assert isinstance(same, Plan)
    assert answer.plan.kv_cache == same.kv_cache
    assert answer.plan.verdict == same.verdict


def test_flags_win_over_fields_until_they_have_moved_there():
    found = resolve(replace(BASE, context="8k", flags="--max-model-len 4k"), model_loader(SETTINGS))
    assert isinstance(found, Inputs)
    assert found.args.max_model_len == 4000


def test_a_pasted_config_is_planned_as_the_model_itself():
    entry = find_entry("Qwen/Qwen3-8B")
    assert entry is not None
    pasted = plan_answer(replace(BASE, model="", config=json.dumps(entry.config)), SETTINGS)
    named = plan_answer(replace(BASE, model="Qwen/Qwen3-8B"), SETTINGS)
    assert isinstance(pasted, Answer)
    assert isinstance(named, Answer)
    assert isinstance(pasted.plan, Plan)
    assert isinstance(named.plan, Plan)
    assert pasted.plan.kv_cache == named.plan.kv_cache
    assert pasted.plan.parameters == named.plan.parameters


@given(st.fixed_dictionaries({}, optional={name: st.text(max_size=30) for name in TEXTS}))
@settings(max_examples=150, deadline=None)
def test_whatever_is_typed_gives_an_answer_or_a_line_at_a_field(fields: dict[str, str]):
    found = plan_answer(replace(BASE, **fields), SETTINGS)
    if not isinstance(found, Answer):
        assert found
        for problem in found:
            assert isinstance(problem, Problem)
            assert problem.field in TEXTS
            assert problem.message
            assert "\n" not in problem.message


def test_the_loader_is_given_the_overrides():
    seen: list[Any] = []

    def load(name: str, overrides: Mapping[str, Any]) -> Any:
        seen.append((name, dict(overrides)))
        raise InputError("no")

    resolve(replace(BASE, model="a/b", flags="--hf-overrides '{\"num_hidden_layers\": 2}'"), load)
    assert seen == [("a/b", {"num_hidden_layers": 2})]
