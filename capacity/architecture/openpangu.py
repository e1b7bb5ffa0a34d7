"""openPangu Embedded: Llama's pattern in a class of its own, which also knows latent and sink attention and experts.

Source: vllm/model_executor/models/openpangu.py (0.26.0 and 0.33.0).
"""

from __future__ import annotations

from vllm_capacity.architecture.llama import llama_like
from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

_OTHER_LAYERS = (
    "kv_lora_rank", "param_sink_number", "n_routed_experts", "sandwich_norm", "interleaved_sliding_window"
)  # fmt: skip
"""Keys that make the class build latent attention, sinks, experts, further norms or windows."""


def pangu_embedded(config: ModelConfig, release: Release) -> Architecture:
    """PanguEmbeddedForCausalLM."""
    del release
    for key in _OTHER_LAYERS:
        if config.get(key):
            raise InputError(f"{config.name}: openPangu layers with {key!r} are not modelled")
    return llama_like(config, name="PanguEmbeddedForCausalLM", family="openpangu")
