"""Rows and width of rope caches, by vllm/model_executor/layers/rotary_embedding (0.26.0)."""

from __future__ import annotations

import pytest
from vllm_capacity.architecture.common import rope_cache
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig


def shape(**fields: object) -> tuple[int, ...]:
    values = {"max_position_embeddings": 1024, **fields}
    return rope_cache(ModelConfig("test/model", values, values), 128).shape


def test_rows_and_width_by_kind() -> None:
    assert shape() == (1024, 128)
    assert shape(rope_scaling={"rope_type": "llama3", "factor": 8.0}) == (1024, 128)
    # yarn_scaling_rope.py:77: original positions x factor, whatever max_position_embeddings says
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert shape(rope_scaling=yarn) == (2048, 128)
    assert shape(rope_scaling={"type": "yarn", "factor": 4.0}) == (4096, 128)
    assert shape(rope_scaling={"type": "linear", "factor": 2.5}) == (2560, 128)
    # phi3_long_rope_scaled_rope.py: the short and the long table
    assert shape(rope_scaling={"type": "su", "original_max_position_embeddings": 256}) == (1280, 128)
    # mrope.py:235-238
    assert shape(rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]}) == (4096, 128)
    # gemma4_rope.py: the whole head
    assert shape(rope_parameters={"rope_type": "proportional", "partial_rotary_factor": 0.25}) == (1024, 128)
    assert shape(partial_rotary_factor=0.5) == (1024, 64)
    assert shape(rotary_pct=0.25) == (1024, 32)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(InputError, match="'spiral' is not modelled"):
        shape(rope_scaling={"rope_type": "spiral"})


def test_a_bad_factor_is_named() -> None:
    with pytest.raises(InputError, match="'factor'"):
        shape(rope_scaling={"rope_type": "yarn", "factor": "four"})
