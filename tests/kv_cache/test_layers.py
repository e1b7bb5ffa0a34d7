"""Specs of whole models: equal to what vLLM's own model classes register (0.26.0, H200).

`kv_layers` of `tests/data/vllm_exact/cases.jsonl`; and behaviour that those cases do not reach, with pages
computed by `test_golden_vectors`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults import resolve_engine
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.models import load_model
from vllm_capacity.kv_cache.layers import layer_specs
from vllm_capacity.kv_cache.specs import (
    AttentionSpec,
    KVLayers,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)
from vllm_capacity.releases import get_release

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/vllm_exact/cases.jsonl").read_text().splitlines()
]


def layers_of(model: str, release: str = "0.26.0", device: str = "H200", **args: Any) -> KVLayers:
    config, version, gpu = load_model(model, offline=True), get_release(release), find_device(device)
    architecture = build_architecture(config, version)
    engine = resolve_engine(EngineArgs(**args), config, architecture, gpu, version)
    return layer_specs(config, architecture, engine, gpu, version)


@pytest.mark.parametrize("case", [c for c in CASES if c["pp"] == 1], ids=lambda case: case["name"])
def test_specs_equal_what_vllms_classes_register(case: dict[str, Any]) -> None:
    layers = layers_of(
        case["model"],
        tensor_parallel_size=case["tp"],
        enable_expert_parallel=case["ep"],
        kv_cache_dtype=case["kv_cache_dtype"],
        max_model_len=case["max_model_len"],
    )
    expected = case["ranks"][0]["kv_layers"]
    assert len(layers.runs) == len(expected)
    for run, facts in zip(layers.runs, expected, strict=True):
        spec = run.spec
        assert (type(spec).__name__, len(run.layers)) == (facts["type"], facts["layers"])
        assert (spec.block_size, spec.page_size_bytes) == (facts["block_size"], facts["page_size_bytes"])
        if isinstance(spec, MambaSpec):
            assert [list(shape) for shape in spec.shapes] == facts["shapes"]
            assert [f"torch.{dtype}" for dtype in spec.dtypes] == facts["dtypes"]
        if isinstance(spec, AttentionSpec):
            assert (spec.num_kv_heads, spec.head_size) == (facts["num_kv_heads"], facts["head_size"])
            assert f"torch.{spec.dtype}" == facts["dtype"]
        if isinstance(spec, SlidingWindowSpec):
            assert spec.sliding_window == facts["sliding_window"]


def test_skipped_layers_keep_the_model_dtype() -> None:
    """attention.py:299-315 and `_align_heterogeneous_kv_block_size`: fp8 blocks of 32, bf16 windows padded
    to them.
    """
    layers = layers_of(
        "openai/gpt-oss-20b", kv_cache_dtype="fp8", others={"kv_cache_dtype_skip_layers": ["sliding_window"]}
    )
    windows, full = (run.spec for run in layers.runs)
    assert isinstance(windows, SlidingWindowSpec)
    assert (windows.dtype, windows.block_size) == ("bfloat16", 16)
    assert (full.block_size, layers.block_size) == (32, 32)
    assert windows.page_size_bytes == full.page_size_bytes == 32 * 8 * 64 * 2


def test_turboquant_leaves_the_outer_layers_alone() -> None:
    """turboquant/config.py:177-212: two layers at each end; slots of 196 bytes per head of 128 (k8v4)."""
    layers = layers_of("Qwen/Qwen3-8B", kv_cache_dtype="turboquant_k8v4")
    plain, packed = layers.runs
    assert plain.layers == (0, 1, 34, 35)
    assert isinstance(packed.spec, TQFullAttentionSpec)
    assert packed.spec.page_size_bytes == packed.spec.block_size * 8 * 196


def test_sparse_attention_with_fp8_takes_its_own_format() -> None:
    """mla_attention.py:330-343: FLASHMLA_SPARSE stores 656 bytes per token; the indexer 132."""
    layers = layers_of("deepseek-ai/DeepSeek-V3.2", kv_cache_dtype="fp8", tensor_parallel_size=8)
    indexer, latent = (run.spec for run in layers.runs)
    assert isinstance(latent, MLAAttentionSpec)
    assert (indexer.page_size_bytes, latent.page_size_bytes) == (64 * 132, 64 * 656)


def test_prediction_layers_add_their_own_cache() -> None:
    plain = layers_of("deepseek-ai/DeepSeek-V3", tensor_parallel_size=8)
    drafted = layers_of(
        "deepseek-ai/DeepSeek-V3",
        tensor_parallel_size=8,
        others={"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
    )
    assert len(drafted.layer_index) == len(plain.layer_index) + 1
    assert drafted.layer_index[-1] == 61


def test_states_grow_with_speculative_tokens() -> None:
    """mamba_utils.py: the convolution keeps k - 1 + num_spec columns, and each draft token a state block."""
    layers = layers_of(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        tensor_parallel_size=4,
        others={"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
    )
    state = layers.runs[0].spec
    assert isinstance(state, MambaSpec)
    assert (state.shapes[0], state.num_speculative_blocks) == ((5, 2048), 2)
