"""The role of a module by its path: what its weights are called in the ledger."""

from __future__ import annotations

import pytest
from vllm_capacity.weights.groups import role_of


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("visual.blocks.qkv", "encoder"),
        ("vision_tower.layers", "encoder"),
        ("rotary_emb.cos_sin_cache", "rope_cache"),
        ("self_attn.attn._k_scale", "attention_scales"),
        ("lm_head.weight", "lm_head"),
        ("lm_head", "lm_head"),
        ("score.weight", "lm_head"),
        ("embed_tokens.weight", "embedding"),
        ("wte.weight", "embedding"),
        ("mlp.experts._expert_map", "expert_map"),
        ("mlp.shared_experts.gate_up_proj", "shared_experts"),
        ("mlp.gate", "router"),
        ("mlp.gate.weight", "router"),
        ("mlp.gate.e_score_correction_bias", "router"),
    ],
)
def test_a_path_has_its_role(name: str, role: str) -> None:
    assert role_of(name) == role
