"""Starts on a GPU, release and PyTorch that no constant was taken from: L40S, vLLM 0.29.0."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from recorded import RUNS
from vllm_capacity.activations.peak import activation_peak
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.budget import rank_budget
from vllm_capacity.context import RankContext
from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults import resolve_engine
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.models import load_model
from vllm_capacity.ledger import Component, Lifetime, term
from vllm_capacity.overheads import graph_estimate, overhead_terms
from vllm_capacity.releases import get_release
from vllm_capacity.units import GIB

CASES: list[dict[str, Any]] = json.loads((RUNS / "l40s_vllm_0.29.0.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_available_kv_cache_with_the_weights_as_printed(case: dict[str, Any]) -> None:
    """Everything but the weights is predicted; the checkpoint's layers are Qwen3-14B's."""
    config = replace(load_model("Qwen/Qwen3-14B"), quantization=case["quantization"])
    release, device = get_release(case["release"]), find_device("L40S")
    architecture = build_architecture(config, release)
    engine = resolve_engine(EngineArgs(**case["args"]), config, architecture, device, release)
    ctx = RankContext(
        config=config,
        architecture=architecture,
        engine=replace(engine, quantization="awq_marlin"),
        release=release,
        device=device,
        tp_rank=0,
        pp_rank=0,
        layers=tuple((group, len(group.indices)) for group in architecture.layers),
    )
    weights = term(
        "weights",
        Component.WEIGHTS,
        "printed",
        lifetime=Lifetime.LOAD,
        source="Model loading took",
        printed=int(case["measured"]["model_loading_gib"] * GIB),
    )
    budget = rank_budget(
        (weights, *overhead_terms(ctx), *activation_peak(ctx).terms),
        release,
        cuda_total_bytes=device.cuda_total_bytes,
        used_by_others_bytes=0,
        utilization=engine.gpu_memory_utilization,
        kv_cache_memory_bytes=None,
        graph_estimate=graph_estimate(ctx),
        graph_estimate_enabled=True,
    )
    measured = case["measured"]["available_kv_gib"]
    assert budget.available_kv_bytes / GIB == pytest.approx(
        measured, abs=0.005 * device.cuda_total_bytes / GIB
    )
    assert budget.available_kv_low_bytes / GIB <= measured <= budget.available_kv_high_bytes / GIB
