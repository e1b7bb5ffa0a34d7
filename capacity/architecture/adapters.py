"""What vLLM makes of a model that is run for something else than its class was written for.

`--runner pooling` (or `--convert`) turns a text generator into an embedding or classification model: the head is never
built, a classifier gets a score layer of its own. Source: `_create_pooling_model_cls` and `as_seq_cls_model`,
model_executor/models/adapters.py:127-330 (0.26.0). `--disable-sliding-window` takes the window out of the config once
the longest length is settled (config/model.py: ModelConfig.__post_init__, 0.26.0).
"""

from __future__ import annotations

from dataclasses import replace

from vllm_capacity.architecture.modules import Architecture, Placed, Placement, Tensor, VocabEmbedding
from vllm_capacity.inputs.model_config import ModelConfig

_NUM_LABELS = 2
"""transformers' default (PretrainedConfig.num_labels)."""


def as_pooling_model(architecture: Architecture, config: ModelConfig, *, classify: bool) -> Architecture:
    """The generator as a pooling model: no head; with `classify` a float32 score layer [num_labels, hidden]."""
    outside = tuple(
        placed
        for placed in architecture.outside
        if not (isinstance(placed.module, VocabEmbedding) and placed.module.name.startswith("lm_head"))
    )
    if classify:
        labels = config.text.get("id2label") or config.root.get("id2label")
        count = len(labels) if isinstance(labels, dict) and labels else config.size("num_labels", _NUM_LABELS)
        score = Tensor(name="score.weight", shape=(count, architecture.hidden_size), dtype="float32")
        outside = (*outside, Placed(module=score, placement=Placement.EVERY))
    return replace(architecture, outside=outside, runner_type="pooling")


def without_window(config: ModelConfig) -> ModelConfig:
    """The config with `sliding_window` null, as the model's class then reads it."""
    return replace(config, text={**config.text, "sliding_window": None})
