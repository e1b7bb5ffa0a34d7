"""Every figure of the sensitivity, applied, gives what it promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asking import GPT_OSS, LLAMA_8B, answered
from vllm_capacity.releases import get_release, supported_releases
from vllm_capacity.sizing.sensitivity import Assumption, Case, Sensitivity, with_context

QUESTIONS = {
    "gpt-oss, 8-bit cache": (
        "--model",
        GPT_OSS,
        "--max-model-len",
        "32K",
        "--concurrency",
        "64",
        "--gpu",
        "H100",
    ),
    "workload with a tail": (
        "--model",
        LLAMA_8B,
        "--prompt-tokens",
        "3000",
        "--prompt-p95",
        "9000",
        "--output-tokens",
        "500",
        "--concurrent-users",
        "200",
        "--gpu",
        "L40S",
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_last_value_holds_and_the_next_does_not(name: str):
    report = answered(*QUESTIONS[name])
    question, row = report.question, report.rows[0]
    case = Case(next(c for c in question.models if c.name == row.model), row, question)
    assert case.holds()
    assert {item.assumption for item in report.sensitivities} >= {
        Assumption.CONTEXT,
        Assumption.CONCURRENCY,
        Assumption.UTILIZATION,
        Assumption.BATCHED_TOKENS,
        Assumption.RELEASE,
    }
    for item in report.sensitivities:
        assert holds(case, item, item.last), item
        if item.flips:
            assert item.beyond
            for value in item.beyond:
                assert not holds(case, item, value), item


def holds(case: Case, item: Sensitivity, value: str) -> bool:
    """The purchase with one assumption set to `value`."""
    args, demand = case.row.args, case.question.demand
    match item.assumption:
        case Assumption.CONTEXT:
            return case.holds(
                args=replace(args, max_model_len=int(value)), demand=with_context(demand, int(value))
            )
        case Assumption.CONCURRENCY:
            return case.holds(demand=replace(demand, sequences=int(value)))
        case Assumption.UTILIZATION:
            return case.holds(args=replace(args, gpu_memory_utilization=float(value)))
        case Assumption.BATCHED_TOKENS:
            return case.holds(args=replace(args, max_num_batched_tokens=int(value)))
        case Assumption.CACHE_DTYPE:
            return case.holds(args=replace(args, kv_cache_dtype=value))
        case Assumption.RELEASE:
            return case.holds(release=get_release(value))


def test_what_flips_first_comes_first():
    report = answered(*QUESTIONS["gpt-oss, 8-bit cache"])
    distances = [item.distance for item in report.sensitivities if item.flips and item.distance is not None]
    assert distances == sorted(distances)


def test_releases_not_named_hold():
    report = answered(*QUESTIONS["gpt-oss, 8-bit cache"])
    case = Case(report.question.models[0], report.rows[0], report.question)
    (item,) = (s for s in report.sensitivities if s.assumption is Assumption.RELEASE)
    for version in supported_releases()[::4]:
        assert case.holds(release=get_release(version)) == (version not in item.beyond)
