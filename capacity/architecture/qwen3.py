"""Qwen3 (dense text). Source: vllm/model_executor/models/qwen3.py (0.26.0); head_dim defaults to 128
(Qwen3Config).
"""

from __future__ import annotations

from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.architecture.qwen2 import qwen_dense
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def qwen3(config: ModelConfig, release: Release) -> Architecture:
    """Qwen3ForCausalLM."""
    del release
    return qwen_dense(config, name="Qwen3ForCausalLM", family="qwen3", head_size=config.size("head_dim", 128),
                      qkv_bias=config.boolean("attention_bias", False), head_norms=True)  # fmt: skip
