"""Mistral, Mistral NeMo, Mistral Small (text), Ministral 3: the Llama pattern with Mistral's defaults.

Source: vllm/model_executor/models/mistral.py (0.26.0); transformers MistralConfig and Ministral3Config for
absent keys.
"""

from __future__ import annotations

from vllm_capacity.architecture.llama import llama_like
from vllm_capacity.architecture.modules import Architecture, Linear, Module, Shard
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def mistral(config: ModelConfig, release: Release) -> Architecture:
    """MistralForCausalLM, Ministral3ForCausalLM."""
    del release
    ministral3 = config.text_model_type == "ministral3" or "Ministral3ForCausalLM" in config.architectures
    return llama_like(
        config, name="MistralForCausalLM", family="mistral", default_kv_heads=8,
        # MistralConfig's own defaults for absent keys; Ministral3Config has no window and a fixed head size
        default_window=None if ministral3 else 4096, default_head_dim=128 if ministral3 else None,
        extra_layer_modules=_time_conditioning(config),
    )  # fmt: skip


def _time_conditioning(config: ModelConfig) -> tuple[Module, ...]:
    """mistral.py:161-178: two small linears per layer where `ada_rms_norm_t_cond` is set."""
    if not config.boolean("ada_rms_norm_t_cond", False):
        return ()
    hidden, width = config.hidden_size, config.size("ada_rms_norm_t_cond_dim")
    return (
        Linear(
            name="ada_rms_norm_t_cond.0", inputs=hidden, outputs=(width,), shard=Shard.COLUMN, quantised=False
        ),
        Linear(
            name="ada_rms_norm_t_cond.2", inputs=width, outputs=(hidden,), shard=Shard.ROW, quantised=False
        ),
    )
