"""Layers of draft models that keep a KV cache beside the target's (MTP and EAGLE heads).

Source: draft attention layers register in the same `static_forward_context` as the target's
(v1/worker/gpu_model_runner.py); num_nextn_predict_layers of them for MTP
(model_executor/models/deepseek_mtp.py), the draft config's for EAGLE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_capacity.architecture.modules import Architecture, Attention, Mixer, StateSpace
from vllm_capacity.engine import EngineConfig
from vllm_capacity.engine_defaults.speculation import Speculation, resolve_speculation
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig

_WITHOUT_CACHE = frozenset({None, "ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"})
_NEXTN_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_predict")


def draft_mixers(
    config: ModelConfig, architecture: Architecture, engine: EngineConfig
) -> tuple[tuple[Mixer, ...], tuple[str, ...]]:
    """The attention of each draft layer, and notes on what is not counted."""
    speculation = resolve_speculation(engine.args, config)
    if speculation.method in _WITHOUT_CACHE:
        return (), ()
    if speculation.method == "mtp":
        count = next((config.size(key) for key in _NEXTN_KEYS if config.get(key)), 1)
        return (_last_attention(architecture),) * count, ()
    if speculation.draft:
        return _from_config(speculation.draft, architecture), ()
    return (), (_unknown(speculation),)


def _unknown(speculation: Speculation) -> str:
    return (
        f"the KV cache of the {speculation.method} draft model is not counted: its config is not known; "
        "it takes as much per token as its attention layers would alone"
    )


def _last_attention(architecture: Architecture) -> Mixer:
    layers = [
        (max(group.indices), mixer)
        for group in architecture.layers
        if group.indices
        for mixer in group.mixers
    ]
    attention = [(index, mixer) for index, mixer in layers if not isinstance(mixer, StateSpace)]
    if not attention:
        raise InputError(
            "--speculative-config: speculative decoding of a model without attention layers is not modelled"
        )
    return max(attention, key=lambda pair: pair[0])[1]


def _from_config(draft: Mapping[str, Any], architecture: Architecture) -> tuple[Mixer, ...]:
    """Full attention by the draft's own config.json."""
    del architecture
    heads = int(draft["num_attention_heads"])
    size = int(draft.get("head_dim") or int(draft["hidden_size"]) // heads)
    mixer = Attention(
        num_heads=heads,
        num_kv_heads=int(draft.get("num_key_value_heads") or heads),
        head_size=size,
        head_size_v=size,
    )
    return (mixer,) * int(draft.get("num_hidden_layers") or 1)
