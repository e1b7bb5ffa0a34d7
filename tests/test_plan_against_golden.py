"""Whole plans against what vLLM's own classes built: `tests/data/vllm_exact/golden_*.jsonl` (`dry-run --update-golden`).

Equality to the byte and to the unit: weights before the allocator's rounding, block size, blocks, tokens, concurrency, KV
groups, defaults. A case in `differs.yaml` is one that the analytical model is known to get wrong, with what is wrong.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from vllm_capacity.answer import Plan, RankPlan
from vllm_capacity.inputs.engine_args import merge_engine_args
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.models import load_model, with_draft
from vllm_capacity.planner import make_plan
from vllm_capacity.releases import get_release
from vllm_capacity.validate.dry_run.terms import beyond_tensors

DATA = Path(__file__).parent / "data" / "vllm_exact"
CASES = {
    f"{case['vllm_version']}-{case['name']}": case
    for path in sorted(DATA.glob("golden_*.jsonl"))
    for case in map(json.loads, path.read_text().splitlines())
}
DIFFERS: dict[str, str] = yaml.safe_load((DATA / "differs.yaml").read_text()) or {}
NAMES = [
    pytest.param(name, marks=pytest.mark.xfail(reason=DIFFERS[name], strict=True))
    if name in DIFFERS
    else name
    for name in CASES
]


@cache
def plan_of(name: str) -> Plan:
    case = CASES[name]
    release = get_release(case["vllm_version"])
    flags: dict[str, Any] = {
        "tensor_parallel_size": case["tp"],
        "pipeline_parallel_size": case["pp"],
        "data_parallel_size": case["dp"],
        "decode_context_parallel_size": case["dcp"],
        "enable_expert_parallel": case["ep"],
        "kv_cache_memory_bytes": case["available_kv_bytes"],
        "load_format": "dummy",
        **case["flags"],
    }
    args = merge_engine_args(None, flags, release=release)
    config = with_draft(load_model(case["model"], hf_overrides=args.hf_overrides), args)
    plan = make_plan(config, args, find_device(case["gpu"]), release, suggestions=False)
    assert isinstance(plan, Plan), plan.verdict.message
    return plan


def kind_of(plan: Plan, rank: int) -> RankPlan:
    parallel = plan.engine.parallel
    place = (rank % parallel.tp, rank // parallel.tp % parallel.pp, rank // parallel.world_size)
    return next(kind for kind in plan.ranks if place in kind.ranks)


def answer(name: str) -> dict[str, Any]:
    """The plan's figures in the golden case's form."""
    case, plan = CASES[name], plan_of(name)
    kv, engine = plan.kv_cache, plan.engine
    weights = {}
    for expected in case["ranks"]:
        kind = kind_of(plan, expected["rank"])
        rounding = sum(map(beyond_tensors, kind.terms))
        weights[expected["rank"]] = kind.budget.totals["weights"] - rounding  # type: ignore[index]
    return {
        "runner": engine.model_runner,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "block_size": kv.block_size,
        "num_blocks": kv.num_blocks,
        "tokens": kv.size_tokens,
        "max_concurrency": kv.max_concurrency,
        "groups": [(len(g.layers), g.spec.block_size) for g in kv.stages[0].groups] if kv.stages else [],
        "weights": weights,
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_what_vllm_builds(name: str):
    case = CASES[name]
    found = answer(name)
    expected = {key: case[key] for key in found if key in case and key != "groups"}
    expected["groups"] = [(g["layers"], g["block_size"]) for g in case["groups"]]
    expected["weights"] = {rank["rank"]: rank["weights_exact_bytes"] for rank in case["ranks"]}
    assert {key: found[key] for key in expected} == expected
    assert set(case["backends"]) <= set(plan_of(name).engine.attention_backends)


def test_every_known_difference_is_still_a_case():
    assert set(DIFFERS) <= set(CASES)
