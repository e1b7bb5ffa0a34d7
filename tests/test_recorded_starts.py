"""Whole plans against recorded starts: what vLLM printed, from flags to tokens.

Data: tests/data/runs (public H100 runs on 0.19.0 with URL, own H200 runs on 0.26.0). Weights agree within 0.2 % (and the
two printed digits); blocks lie between those of the printed GiB less and plus half a digit; tokens and concurrency follow
exactly from the logged blocks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from recorded import Run, runs
from vllm_capacity.answer import Plan
from vllm_capacity.budget import Account
from vllm_capacity.engine import EngineArgs
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.inputs.engine_args import parse_engine_args
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.planner import make_plan
from vllm_capacity.releases import get_release
from vllm_capacity.units import GIB

HALF_A_DIGIT = 0.005 * GIB
RUNS: list[Run] = list(runs())

PUBLIC_VALUES: dict[str, dict[str, Any]] = {
    "gemma-3-": {"text_config": {"max_position_embeddings": 131072, "vocab_size": 262208}},
    "llama-4-scout": {
        "vision_config": {
            "hidden_size": 1408, "image_size": 336, "intermediate_size": 5632, "num_attention_heads": 16,
            "num_hidden_layers": 34, "patch_size": 14, "pixel_shuffle_ratio": 0.5, "projector_input_dim": 4096,
            "projector_output_dim": 4096, "vision_output_dim": 4096,
        }
    },
}  # fmt: skip
"""What the public config.json says where the catalogue's copy was trimmed or edited, by part of the run's name."""


def arguments(run: Run) -> EngineArgs:
    return parse_engine_args(
        {
            **run.args,
            "usage": run.facts.get("usage", "server"),
            "environment": run.facts.get("environment") or {},
        },
        release=get_release(run.facts["release"]),
    )


@cache
def planned(index: int, **changes: Any) -> Plan:
    run = RUNS[index]
    config = run.config()
    for part, values in PUBLIC_VALUES.items():
        if part in run.name:
            nested = {key: {**(config.root.get(key) or {}), **value} for key, value in values.items()}
            config = normalise(config.name, {**config.root, **nested}, source=config.source)
    plan = make_plan(
        config, replace(arguments(run), **changes), find_device(run.facts["device"]),
        get_release(run.facts["release"]), suggestions=False,
    )  # fmt: skip
    assert isinstance(plan, Plan), plan.verdict.message
    return plan


def cases(*needed: str) -> list[Any]:
    complete = (
        (index, run)
        for index, run in enumerate(RUNS)
        if all(run.measured.get(key) is not None for key in needed)
    )
    return [pytest.param(index, id=run.name) for index, run in complete]


@pytest.mark.parametrize("index", cases("model_loading_gib"))
def test_weights_are_what_model_loading_took(index: int):
    run = RUNS[index]
    weights = planned(index).ranks[0].budget.totals[Account.WEIGHTS]
    printed = run.measured["model_loading_gib"] * GIB
    assert abs(weights - printed) <= max(0.002 * printed, HALF_A_DIGIT)


@pytest.mark.parametrize("index", cases("available_kv_gib", "gpu_blocks"))
def test_logged_blocks_lie_between_those_of_the_printed_memory(index: int):
    run = RUNS[index]
    printed = run.measured["available_kv_gib"] * GIB

    def blocks(n_bytes: float) -> int:
        # on several stages the printed figure is the first rank's, while the smallest decides
        return planned(index, kv_cache_memory_bytes=int(n_bytes)).kv_cache.num_blocks

    if run.pp > 1:
        assert run.measured["gpu_blocks"] <= blocks(printed + HALF_A_DIGIT)
        return
    assert blocks(printed - HALF_A_DIGIT) <= run.measured["gpu_blocks"] <= blocks(printed + HALF_A_DIGIT)


@pytest.mark.parametrize("index", cases("gpu_blocks", "kv_tokens"))
def test_tokens_and_concurrency_follow_from_the_logged_blocks(index: int):
    run = RUNS[index]
    kv = planned(index, num_gpu_blocks_override=run.measured["gpu_blocks"]).kv_cache
    assert kv.size_tokens == run.measured["kv_tokens"]
    assert f"{kv.max_concurrency:.2f}" == f"{run.measured['max_concurrency']:.2f}"


@pytest.mark.parametrize(
    "index", [i for i, run in enumerate(RUNS) if "ranks" in run.measured], ids=lambda i: RUNS[i].name
)
def test_blocks_are_equal_where_the_bytes_are_known(index: int):
    for rank in RUNS[index].measured["ranks"]:
        assert (
            planned(index, kv_cache_memory_bytes=rank["available_kv"]).kv_cache.num_blocks
            == rank["num_blocks"]
        )


def test_gemma_3_27b_on_0_19_prints_36_560_tokens_from_15_998_blocks():
    from vllm_capacity.inputs.models import load_model

    args = EngineArgs(
        num_gpu_blocks_override=15998, max_model_len=8192, gpu_memory_utilization=0.95, dtype="bfloat16"
    )
    plan = make_plan(
        load_model("x/gemma-3-27b-text"),
        args,
        find_device("H100-80GB"),
        get_release("0.19.0"),
        suggestions=False,
    )
    assert isinstance(plan, Plan)
    assert plan.kv_cache.size_tokens == 36_560
    assert f"{plan.kv_cache.max_concurrency:.2f}" == "4.46"
