"""Suggestions and pasted commands become fields: what the page then plans is what was promised."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm_capacity.answer import Plan
from vllm_capacity.releases import get_release
from vllm_capacity.web.page.answers import Answer, plan_answer
from vllm_capacity.web.page.apply import absorb, apply_flags, use_layout
from vllm_capacity.web.page.layouts import Layouts, layouts_answer
from vllm_capacity.web.page.state import PageState, Tab
from vllm_capacity.web.settings import WebSettings

SETTINGS = WebSettings()
RELEASE = get_release("0.26.0")


@pytest.mark.parametrize(
    "state",
    [
        PageState(release="0.26.0"),
        PageState(release="0.26.0", model="Qwen/Qwen3-32B", gpu="L40S", flags="--max-num-batched-tokens 4096"),
        PageState(release="0.26.0", model="deepseek-ai/DeepSeek-V3", gpu="H200-141GB", tp="8", context="64k",
                  concurrency="4", flags="NCCL_DEBUG=INFO --max-num-seqs 512"),
    ],
)  # fmt: skip
def test_applying_a_suggestion_gives_the_effect_that_was_computed(state: PageState):
    before = plan_answer(state, SETTINGS)
    assert isinstance(before, Answer)
    assert isinstance(before.plan, Plan)
    assert before.plan.verdict.suggestions
    for suggestion in before.plan.verdict.suggestions:
        after = plan_answer(apply_flags(state, suggestion.flags, RELEASE), SETTINGS)
        assert isinstance(after, Answer)
        assert isinstance(after.plan, Plan)
        assert after.plan.starts is suggestion.effect.starts
        gained = after.plan.kv_cache.size_tokens - before.plan.kv_cache.size_tokens
        assert gained == suggestion.effect.kv_cache_size_tokens_delta


def test_a_suggestion_changes_only_what_it_names():
    state = PageState(release="0.26.0", context="8k", flags="--enforce-eager --max-num-seqs 512 --seed 3")
    assert apply_flags(state, ("--max-num-seqs", "64"), RELEASE) == replace(
        state, flags="--max-num-seqs 64 --enforce-eager --seed 3"
    )
    assert apply_flags(state, ("--kv-cache-dtype", "fp8"), RELEASE).kv_dtype == "fp8"
    assert apply_flags(state, ("--tensor-parallel-size", "2"), RELEASE).tp == "2"


def test_a_pasted_command_fills_the_form():
    state = PageState(
        release="0.33.0", config="{}", flags="docker run --gpus all -e VLLM_LOGGING_LEVEL=DEBUG "
        "vllm/vllm-openai:v0.26.0 --model Qwen/Qwen3-8B -tp 2 --max-model-len 32K --max-num-seqs 3 "
        "--gpu-memory-utilization .95",
    )  # fmt: skip
    assert absorb(state, RELEASE, only_commands=True) == PageState(
        release="0.26.0", model="Qwen/Qwen3-8B", tp="2", context="32768", utilisation="0.95",
        flags="VLLM_LOGGING_LEVEL=DEBUG --max-num-seqs 3",
    )  # fmt: skip


def test_flags_with_a_field_of_their_own_move_there_once_the_box_is_left():
    state = PageState(release="0.26.0", flags="--max-model-len auto --max-num-seqs 3 --allow-unmodelled")
    assert absorb(state, RELEASE, only_commands=True) == state
    moved = absorb(state, RELEASE)
    assert moved == replace(state, context="auto", flags="--max-num-seqs 3 --allow-unmodelled")


@pytest.mark.parametrize("flags", ["", "--max-num-seqs", "--nonsense 3", "vllm serv", "'"])
def test_what_does_not_parse_yet_stays_as_it_is_typed(flags: str):
    state = PageState(release="0.26.0", flags=flags)
    assert absorb(state, RELEASE) == state


def test_a_row_of_the_comparison_becomes_the_plan_it_stands_for():
    state = PageState(
        release="0.26.0", gpu="L40S", model="Qwen/Qwen3-32B", context="8k", concurrency="4", tp="8",
        flags="--max-num-seqs 64 --allow-unmodelled", tab=Tab.LAYOUTS,
    )  # fmt: skip
    found = layouts_answer(state, SETTINGS)
    assert isinstance(found, Layouts)
    for row in found.document["rows"][:6]:
        planned = plan_answer(use_layout(state, row["gpu"], row["command"], RELEASE), SETTINGS)
        assert isinstance(planned, Answer)
        assert isinstance(planned.plan, Plan)
        assert planned.plan.kv_cache.size_tokens == row["kv_cache_size_tokens"]
        assert planned.plan.engine.parallel.tp == row["tensor_parallel_size"]
        assert planned.plan.engine.max_num_seqs == 64


def test_a_row_for_a_pasted_config_keeps_the_config():
    state = PageState(release="0.26.0", config="{}", model="Qwen/Qwen3-8B")
    command = "vllm serve pasted-config --tensor-parallel-size 2"
    taken = use_layout(state, "L40S", command, RELEASE)
    assert (taken.config, taken.model, taken.tp, taken.gpu) == ("{}", "Qwen/Qwen3-8B", "2", "L40S")
