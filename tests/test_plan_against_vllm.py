"""Whole plans against vLLM's own classes: `tests/data/vllm_exact/cases.jsonl`.

Each case was computed with vLLM 0.26.0's configuration, model classes and KV planner on fake tensors, device taken for an
H200, 20 GiB of KV memory per rank. KV figures are equal to the unit; weights without `allocator_rounding` are equal up to
the 512 bytes by which the data rounds up each tensor.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.answer import Plan, RankPlan
from vllm_capacity.engine import EngineArgs
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.models import load_model
from vllm_capacity.planner import make_plan
from vllm_capacity.releases import get_release
from vllm_capacity.weights.rank import rank_weights

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "vllm_exact" / "cases.jsonl").read_text().splitlines()
]


@cache
def plan_of(index: int) -> Plan:
    case = CASES[index]
    args = EngineArgs(
        tensor_parallel_size=case["tp"],
        pipeline_parallel_size=case["pp"],
        enable_expert_parallel=case["ep"],
        kv_cache_dtype=case["kv_cache_dtype"],
        max_model_len=case["max_model_len"],
        kv_cache_memory_bytes=case["available_kv_bytes"],
    )
    plan = make_plan(
        load_model(case["model"]), args, find_device("H200"), get_release("0.26.0"), suggestions=False
    )
    assert isinstance(plan, Plan), plan.verdict.message
    return plan


def rank_of(plan: Plan, rank: int, tp: int) -> RankPlan:
    return next(kind for kind in plan.ranks if (rank % tp, rank // tp, 0) in kind.ranks)


EACH = pytest.mark.parametrize("index", range(len(CASES)), ids=[case["name"] for case in CASES])


@EACH
def test_blocks_tokens_and_concurrency_are_vllms(index: int):
    case, kv = CASES[index], plan_of(index).kv_cache
    found = {
        "num_blocks": kv.num_blocks,
        "tokens": kv.size_tokens,
        "block_size": kv.block_size,
        "max_concurrency": kv.max_concurrency,
    }
    assert found == {key: case[key] for key in found}


@EACH
def test_groups_are_vllms(index: int):
    case, plan = CASES[index], plan_of(index)
    first_stage = plan.kv_cache.stages[0].groups

    def page(group: Any) -> int:
        # a group of several specs is listed with the page of its first one
        return (
            group.spec.runs[0].spec.page_size_bytes
            if hasattr(group.spec, "runs")
            else group.spec.page_size_bytes
        )

    found = [(len(group.layers), group.spec.block_size, page(group)) for group in first_stage]
    assert found == [(g["layers"], g["block_size"], g["page_size_bytes"]) for g in case["groups"]]


@EACH
def test_defaults_are_vllms(index: int):
    case, engine = CASES[index], plan_of(index).engine
    found = {
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "runner": engine.model_runner,
    }
    assert found == {key: case[key] for key in found}
    assert set(case["backends"]) <= set(engine.attention_backends)


@EACH
def test_weights_are_vllms_up_to_512_bytes_a_tensor(index: int):
    case, plan = CASES[index], plan_of(index)
    for expected in case["ranks"]:
        kind = rank_of(plan, expected["rank"], case["tp"])
        rounding = next(t.n_bytes for t in kind.terms if t.name == "allocator_rounding")
        weights = kind.budget.totals["weights"] - rounding  # type: ignore[index]
        here = _context_layers(plan, kind)
        tensors = sum(group.count for group in here)
        assert 0 <= expected["weights_bytes"] - weights < 512 * tensors


def _context_layers(plan: Plan, kind: RankPlan) -> Any:
    from vllm_capacity.context import RankContext
    from vllm_capacity.parallel import stage_bounds

    pp_rank = kind.ranks[0][1]
    first, last = stage_bounds(plan.architecture.num_hidden_layers, plan.engine.parallel)[pp_rank]
    layers = tuple(
        (group, count)
        for group in plan.architecture.layers
        if (count := sum(first <= i < last for i in group.indices))
    )
    context = RankContext(
        config=plan.config, architecture=plan.architecture, engine=plan.engine, release=plan.release, device=plan.device,
        tp_rank=0, pp_rank=pp_rank, layers=layers,
    )  # fmt: skip
    return rank_weights(context).groups
