"""Tensor names of real checkpoints and the modules that vLLM loads them into.

The names are those of published safetensors index files (tests/data/safetensors_names); that each finds its module is
checked against the sizes: the bytes of all names, taken from the modules they map to, are the index's own total.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.architecture.modules import (
    Architecture,
    Experts,
    Linear,
    QkvLinear,
    Tensor,
    VocabEmbedding,
)
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.releases import get_release
from vllm_capacity.weights.checkpoint_names import Kind, NameMap, Target

RELEASE = get_release("0.26.0")
LINES = (Path(__file__).parents[1] / "data" / "safetensors_names" / "names.jsonl").read_text().splitlines()
CHECKPOINTS = {value["model"]: value for value in map(json.loads, LINES)}


def names_of(checkpoint: dict[str, Any]) -> Iterator[str]:
    """Every tensor name: patterns with the ranges of their numbers, written out."""
    for pattern, ranges in checkpoint["names"].items():
        numbers = [[i for first, last in runs for i in range(first, last + 1)] for runs in ranges]
        for values in itertools.product(*numbers):
            given = iter(values)
            yield re.sub("#", lambda _, given=given: str(next(given)), pattern)


def build(checkpoint: dict[str, Any]) -> Architecture:
    return build_architecture(normalise(checkpoint["model"], checkpoint["config"], source="test"), RELEASE)


@pytest.mark.parametrize("model", CHECKPOINTS)
def test_every_tensor_of_a_real_checkpoint_finds_its_module_and_every_module_its_tensors(model):
    architecture = build(CHECKPOINTS[model])
    names = NameMap(architecture)
    filled = set()
    for name in names_of(CHECKPOINTS[model]):
        target = names.target(name)
        assert target.kind is not Kind.UNKNOWN, name
        filled.add((target.layer, target.module))
    for group in architecture.layers:
        for index, module in itertools.product(group.indices, group.modules):
            if not (isinstance(module, Tensor) and module.buffer):
                assert (index, module.name) in filled


def elements(architecture: Architecture, target: Target) -> int:
    """Elements of the stored tensor, from the size of the module that it is (a slice of)."""
    modules = {(None, p.module.name): p.module for p in architecture.outside}
    modules |= {(i, m.name): m for g in architecture.layers for i in g.indices for m in g.modules}
    module = modules[target.layer, target.module]
    bias = target.parameter == "bias"
    if isinstance(module, Tensor):
        return prod(module.shape)
    if isinstance(module, VocabEmbedding):
        return module.rows * (1 if bias else module.columns)
    if isinstance(module, Experts):
        return module.hidden_size * module.intermediate_size
    if isinstance(module, QkvLinear):
        heads = module.num_heads * module.head_size
        kv = module.num_kv_heads * module.head_size, module.num_kv_heads * module.head_size_v
        rows = sum((heads, *kv)) if target.part is None else (heads, *kv)[target.part]
        return rows * (1 if bias else module.inputs)
    assert isinstance(module, Linear)
    rows = sum(module.outputs) if target.part is None else module.outputs[target.part]
    return rows * (1 if bias else module.inputs)


SIZED = [
    "HuggingFaceTB/SmolLM3-3B", "google/gemma-2b-it", "ibm-granite/granite-3b-code-instruct-128k",
    "internlm/internlm2-chat-7b", "meta-llama/Llama-3.2-3B", "mistralai/Devstral-Small-2507",
    "microsoft/WizardLM-2-8x22B", "tiiuae/falcon-180B-chat", "deepcogito/cogito-v1-preview-qwen-14B",
    "ai-human-lab/EEVE-Korean_Instruct-10.8B-expo", "YouriLalain/3PRYMMAL-PHI3-3B-SLERP",
]  # fmt: skip


@pytest.mark.parametrize("model", SIZED)
def test_the_modules_that_names_map_to_add_up_to_the_index_s_own_total(model):
    """`metadata.total_size` of the published index: bf16, fp32 for EEVE."""
    architecture = build(CHECKPOINTS[model])
    names = NameMap(architecture)
    by_layer: dict[tuple[int | None, str], int] = {}
    total = 0
    for name in names_of(CHECKPOINTS[model]):
        target = names.target(name)
        key = (0 if target.layer is not None else None, f"{target.module}/{target.part}/{target.parameter}")
        if key not in by_layer or len(architecture.layers) > 1:
            by_layer[key] = elements(architecture, target)
        total += by_layer[key]
    itemsize = 4 if model.startswith("ai-human-lab") else 2
    assert total * itemsize == CHECKPOINTS[model]["total_size"]


QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64, "head_dim": 16,
    "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
    "norm_topk_prob": True, "max_position_embeddings": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "mlp_only_layers": [],
}  # fmt: skip


# make_expert_params_mapping, layers/fused_moe/layer.py; the second names are gpt-oss's own stacked ones (models/gpt_oss.py)
@pytest.mark.parametrize(
    ("name", "part", "parameter"),
    [
        ("model.layers.1.mlp.experts.3.gate_proj.weight", 0, "weight"),
        ("model.layers.1.mlp.experts.3.up_proj.weight_scale_inv", 1, "weight_scale_inv"),
        ("model.layers.1.mlp.experts.3.down_proj.qweight", 2, "qweight"),
        ("model.layers.1.block_sparse_moe.experts.0.w1.weight", 0, "weight"),
        ("model.layers.1.mlp.experts.gate_up_proj_blocks", None, "weight"),
        ("model.layers.1.mlp.experts.gate_up_proj_scales", None, "scales"),
        ("model.layers.1.mlp.experts.down_proj_bias", 2, "bias"),
        ("model.layers.1.mlp.experts.down_proj", 2, ""),
    ],
)
def test_experts_are_found_one_by_one_and_stacked(name, part, parameter):
    architecture = build_architecture(normalise("moe", QWEN3_MOE, source="test"), RELEASE)
    found = NameMap(architecture).target(name)
    assert found == Target(Kind.LOADED, "mlp.experts", 1, part, parameter)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.2.mlp.experts.0.gate_proj.weight", Kind.MTP),
        ("mtp.layers.0.self_attn.q_proj.weight", Kind.MTP),
        ("model.visual.blocks.0.attn.qkv.weight", Kind.TOWER),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", Kind.DERIVED),
        ("model.layers.0.self_attn.k_proj.k_scale", Kind.LOADED),
        ("model.layers.0.adapter.weight", Kind.UNKNOWN),
    ],
)
def test_what_is_not_loaded_is_told_apart(name, kind):
    architecture = build_architecture(normalise("moe", QWEN3_MOE, source="test"), RELEASE)
    assert NameMap(architecture).target(name).kind is kind


MISTRAL = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "head_dim": 16,
    "max_position_embeddings": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


# MistralForCausalLM.mistral_mapping, model_executor/models/mistral.py (0.26.0): the names of Mistral's own format
@pytest.mark.parametrize(
    ("name", "module", "part"),
    [
        ("layers.1.attention.wq.weight", "self_attn.qkv_proj", 0),
        ("layers.1.attention.wk.weight", "self_attn.qkv_proj", 1),
        ("layers.1.attention.wv.weight", "self_attn.qkv_proj", 2),
        ("layers.1.attention.wo.weight", "self_attn.o_proj", None),
        ("layers.1.feed_forward.w1.weight", "mlp.gate_up_proj", 0),
        ("layers.1.feed_forward.w2.weight", "mlp.down_proj", None),
        ("layers.1.feed_forward.w3.weight", "mlp.gate_up_proj", 1),
        ("layers.1.attention_norm.weight", "input_layernorm.weight", None),
        ("layers.1.ffn_norm.weight", "post_attention_layernorm.weight", None),
        ("tok_embeddings.weight", "embed_tokens", None),
        ("output.weight", "lm_head", None),
        ("norm.weight", "norm.weight", None),
    ],
)
def test_mistral_s_own_names_are_known(name, module, part):
    target = NameMap(build_architecture(normalise("mistral", MISTRAL, source="test"), RELEASE)).target(name)
    assert (target.kind, target.module, target.part) == (Kind.LOADED, module, part)
