"""The pages that tests look into: one of each kind of answer."""

from __future__ import annotations

from functools import cache
from typing import Any

from reading_pages import Page
from vllm_capacity import plan
from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.context_curve import ContextPoint, context_curve
from vllm_capacity.report.html import plan_page, plans_page

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
COMMAND = "vllm-capacity plan --of these tests"

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "starts": (LLAMA, {"gpu": "H100-80GB", "max_model_len": "32K", "concurrency": 8, "vllm_version": "0.26.0"}),
    "does not fit": ("meta-llama/Llama-3.1-70B-Instruct", {"gpu": "H100-80GB"}),
    "one request too long": ("google/gemma-3-27b-it", {"gpu": "H100-80GB"}),
    "experts on two GPUs": ("Qwen/Qwen3-30B-A3B", {"gpu": "H100-80GB", "tensor_parallel_size": 2}),
    "pipeline": (
        "meta-llama/Llama-3.1-70B-Instruct",
        {"gpu": "H100-80GB", "tensor_parallel_size": 2, "pipeline_parallel_size": 4},
    ),
    "hybrid": ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"gpu": "H200", "tensor_parallel_size": 2}),
    "latent attention": (
        "deepseek-ai/DeepSeek-V3",
        {"gpu": "H200", "tensor_parallel_size": 1, "data_parallel_size": 12, "enable_expert_parallel": True},
    ),
    "shared GPU": (LLAMA, {"gpu": "H100-80GB", "used_memory": "10GiB"}),
    "AMD": (LLAMA, {"gpu": "MI300X"}),
    "no KV cache": ("BAAI/bge-m3", {"gpu": "L4"}),
    "given cache": (LLAMA, {"gpu": "H100-80GB", "kv_cache_memory_bytes": 12884901888, "environment": {"NCCL_NVLS_ENABLE": "0"}}),
}  # fmt: skip


@cache
def planned(case: str) -> Plan:
    model, options = CASES[case]
    found = plan(model, **options)
    assert isinstance(found, Plan)
    return found


@cache
def refused() -> RefusedPlan:
    found = plan(LLAMA, gpu="H100-80GB", tensor_parallel_size=3)
    assert isinstance(found, RefusedPlan)
    return found


@cache
def curve(case: str) -> tuple[ContextPoint, ...]:
    return context_curve(planned(case))


@cache
def page(case: str) -> Page:
    return Page(plan_page(planned(case), COMMAND, curve=curve(case)))


@cache
def page_of_several() -> Page:
    """Three degrees that are planned and one that vLLM refuses."""
    plans = [plan("Qwen/Qwen3-30B-A3B", gpu="H100-80GB", tensor_parallel_size=tp) for tp in (1, 2, 4, 3)]
    curves = [context_curve(p) if isinstance(p, Plan) else () for p in plans]
    return Page(plans_page(plans, COMMAND, curves=curves))


@cache
def page_of_many() -> Page:
    """More kinds of GPUs than one table can hold side by side."""
    plans = [
        plan(
            "Qwen/Qwen3-Next-80B-A3B-Instruct", gpu="H200", tensor_parallel_size=tp, pipeline_parallel_size=8
        )
        for tp in (1, 2)
    ]
    return Page(plans_page(plans, COMMAND))


@cache
def refused_page() -> Page:
    return Page(plan_page(refused(), COMMAND))


def every_plan_page() -> dict[str, Page]:
    return {
        **{case: page(case) for case in CASES},
        "several": page_of_several(),
        "many": page_of_many(),
        "refused": refused_page(),
    }
