"""Every model of the catalogue gives a plan on the newest release that runs it, or vLLM's reason why not."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import pytest
from vllm_capacity.inputs.catalogue import CatalogueEntry, entries, load_entry
from vllm_capacity.inputs.gpus import find_device

_PATH = Path(__file__).parents[1] / "tools" / "plan_all_configs.py"
_SPEC = importlib.util.spec_from_file_location("plan_all_configs", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
plan_all_configs = importlib.util.module_from_spec(_SPEC)
sys.modules["plan_all_configs"] = plan_all_configs
_SPEC.loader.exec_module(plan_all_configs)
Outcome, plan_on_newest = plan_all_configs.Outcome, plan_all_configs.plan_on_newest

REFUSED = {
    "TheBloke/Genz-70b-GPTQ": "the last release with ExLlama kernels for it was 0.21.0",
    "bryce-hoehn/Qwen3.5-25B-REAP-A3B-Coding": "no attribute 'vision_config'",
    "delsakov/Mistral-Small-4-119B-2603-AWQ": "No model architectures are specified",
    "delsakov/Mistral-Small-4-119B-2603-MLX-4bit": "No model architectures are specified",
    "GSJL/Qwen2.5-14B-Instruct-GPTQ-Marlin": "checkpoint_format: marlin",
    "gurro/llama-3.1-8B-torchao-int4wo-128": "Expected only one key 'default'",
    "Logics-MLLM/Logics-Thinking-8B": "are not supported for now",
    "meta-llama/Llama-3.2-11B-Vision-Instruct": "was supported in vLLM until v0.10.2",
    "meta-llama/Llama-3.2-90B-Vision-Instruct": "was supported in vLLM until v0.10.2",
    "MiniMaxAI/MiniMax-M3": "are not supported for now",
    "SpecForge/gpt-oss-120B-eagle3": "speculative_config is not None",
    "SpecForge/llama3-8B-eagle3": "speculative_config is not None",
    "SpecForge/qwen3-8b-dflash": "speculative_config is not None",
    "SpecForge/qwen3-8b-eagle3": "speculative_config is not None",
    "stepfun-ai/Step-3.7-Flash": "are not supported for now",
    "stepfun-ai/Step-3.7-Flash-FP8": "are not supported for now",
}
"""What no supported release of vLLM starts, and a part of its sentence."""

NOT_MODELLED: frozenset[str] = frozenset()
"""What vLLM runs and this tool does not: named in the error, never planned by a guess."""

OLDER = {
    "MiniMaxAI/MiniMax-M1-80k": "0.23.0",
    "Qwen/Qwen-72B": "0.23.0",
    "Qwen/Qwen-VL-Chat-Int4": "0.23.0",
    "xmadai/Mistral-Small-Instruct-2409-xMADai-INT4": "0.21.0",
    "stvlynn/Qwen-7B-Chat-Cantonese": "0.23.0",
    "reubzdubz/Molmo7B_D_NF4Quant": "0.27.1",
    "tencent/Hunyuan-A13B-Instruct": "0.28.0",
}
"""Models whose newest release is not the newest supported one; vLLM's registry or quantisation list says so."""


@pytest.mark.parametrize("entry", list(entries()), ids=lambda entry: entry.model_id)
def test_the_model_is_planned_on_the_newest_release_that_runs_it(entry: CatalogueEntry) -> None:
    result = plan_on_newest(load_entry(entry, {}), find_device("H200"))
    if entry.model_id in NOT_MODELLED:
        assert result.outcome is Outcome.NOT_MODELLED
        assert "not modelled" in result.text
        return
    if entry.model_id in REFUSED:
        assert result.outcome is Outcome.REFUSED
        assert REFUSED[entry.model_id] in result.text
        return
    assert result.outcome is Outcome.PLANNED, result.text
    plan = result.plan
    if entry.model_id in OLDER:
        assert result.release == OLDER[entry.model_id]
    assert plan.parameters > 0
    assert plan.kv_cache.num_blocks >= 0
    for rank in plan.ranks:
        for term in rank.terms:
            assert term.low <= term.n_bytes <= term.high, term.name
            if term.name != "allocator_fragmentation":  # tensors may lie in segments from before the snapshot
                assert term.low >= 0, term.name
            assert math.isfinite(term.high)


def test_enough_models_are_planned() -> None:
    count = sum(1 for _ in entries())
    assert count - len(REFUSED) - len(NOT_MODELLED) >= 275
