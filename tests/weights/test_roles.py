"""The role of a module by its path: what its weights are called in the ledger."""

from __future__ import annotations

import pytest
from vllm_capacity.weights.groups import ParameterGroup, role_of, tensor_bytes


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
        ("mlp.gate.wg.weight", "router"),
        ("mlp.router_proj.weight", "router"),
        ("rotary_emb", "rope_cache"),
        ("cos_sin_cache", "rope_cache"),
        ("mlp.experts.w13_weight", "experts"),
        ("input_layernorm.weight", "norms"),
        ("ln_1.weight", "norms"),
        ("mamba.in_proj.weight", "state_space"),
        ("linear_attn.conv1d.weight", "state_space"),
        ("layer.mamba.A", "state_space"),
        ("self_attn.qkv_proj.weight", "attention"),
        ("attention.dense.bias", "attention"),
        ("cross_attn.q_proj.weight", "attention"),
        ("mlp.gate_up_proj.weight", "mlp"),
        ("feed_forward.w1", "mlp"),
        ("hc_head.weight", "other"),
        ("weight", "other"),
    ],
)
def test_a_path_has_its_role(name: str, role: str) -> None:
    assert role_of(name) == role


def test_bytes_of_one_tensor_of_several() -> None:
    group = ParameterGroup("mlp", "mlp.gate_up_proj.weight", (3, 4), "bfloat16", count=5, n_bytes=5 * 24)
    assert tensor_bytes(group.shape, group.dtype) == group.tensor_bytes == 24
    assert (tensor_bytes((), "float32"), type(group.tensor_bytes), group.numel) == (4, int, 60)
    assert (group.buffer, group.logical) == (False, 0)
