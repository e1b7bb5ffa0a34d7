"""Layers of draft models that keep a KV cache beside the target's (MTP and EAGLE heads).

Source: draft attention layers register in the same `static_forward_context` as the target's
(v1/worker/gpu_model_runner.py); num_nextn_predict_layers of them for MTP
(model_executor/models/deepseek_mtp.py), the draft config's for EAGLE.
"""

from __future__ import annotations

from vllm_capacity.architecture.modules import Architecture, Mixer, StateSpace
from vllm_capacity.engine import EngineConfig
from vllm_capacity.engine_defaults.draft_models import draft_of
from vllm_capacity.engine_defaults.speculation import Speculation, resolve_speculation
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

_WITHOUT_CACHE = frozenset({None, "ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"})
_NEXTN_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_predict")


def draft_mixers(
    config: ModelConfig, architecture: Architecture, engine: EngineConfig, release: Release
) -> tuple[tuple[Mixer, ...], tuple[str, ...]]:
    """The attention of each draft layer, and notes on what is not counted."""
    speculation = resolve_speculation(engine.args, config)
    if speculation.method in _WITHOUT_CACHE:
        return (), ()
    if speculation.method == "mtp":
        count = next((config.size(key) for key in _NEXTN_KEYS if config.get(key)), 1)
        return (_last_attention(architecture),) * count, ()
    draft = draft_of(
        speculation, engine.args, config, architecture, release, max_model_len=engine.max_model_len
    )
    if draft is None:
        return (), (_unknown(speculation),)
    layers = sorted(
        ((i, g.mixers) for g in draft.architecture.layers for i in g.indices), key=lambda pair: pair[0]
    )
    return tuple(mixer for _, mixers in layers for mixer in mixers), ()


def _unknown(speculation: Speculation) -> str:
    return (
        f"the KV cache of the {speculation.method} draft model is not counted: its config is not known, or its class not "
        "modelled; "
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
