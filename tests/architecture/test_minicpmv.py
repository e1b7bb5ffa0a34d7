"""MiniCPMV: one class name, a model per `version`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.releases import get_release

CONFIG: Mapping[str, Any] = {
    "architectures": ["MiniCPMV"], "model_type": "minicpmv", "version": 2.6, "query_num": 64,
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 1024,
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 128, "num_hidden_layers": 3,
                      "num_attention_heads": 4, "intermediate_size": 320, "image_size": 140, "patch_size": 14},
}  # fmt: skip


def build(**changes: object) -> Architecture:
    values = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    return build_architecture(normalise("test/model", values, source="here"), get_release("0.33.0"))


def copies(architecture: Architecture, part: str) -> set[int]:
    return {placed.count for placed in architecture.outside if part in placed.module.name}


@pytest.mark.parametrize("version", [2.6, "2.6"])
def test_version_2_6_is_planned_as_number_or_text(version: object) -> None:
    assert build(version=version).name == "MiniCPMV"


@pytest.mark.parametrize(("version", "named"), [(4.0, "4.0"), ("4.5", "4.5"), (2.5, "2.5"), (None, "2.5")])
def test_other_versions_that_vllm_runs_are_named_as_not_modelled(version: object, named: str) -> None:
    with pytest.raises(InputError, match=rf"MiniCPMV of version {named} is not modelled.*dry-run"):
        build(version=version)


def test_a_config_without_version_is_2_0_by_its_sizes() -> None:
    with pytest.raises(InputError, match=r"version 2\.0 is not modelled"):
        build(version=None, hidden_size=2304, num_attention_heads=36, num_key_value_heads=36)


@pytest.mark.parametrize(
    ("version", "shown"), [(3.1, r"\(3, 1\)"), (3, r"\(3,\)"), ("2.6.1", r"\(2, 6, 1\)")]
)
def test_a_version_without_a_class_is_refused_in_vllms_words(version: object, shown: str) -> None:
    words = rf"MiniCPMV only supports versions 2\.0, 2\.5, 2\.6, 4\.0, 4\.5\. Got version: {shown}"
    with pytest.raises(RefusedError, match=words) as refused:
        build(version=version)
    assert refused.value.reason is Reason.UNSUPPORTED_BY_RELEASE


@pytest.mark.parametrize("version", ["two", "", True, -2.6])
def test_a_version_that_is_none_is_named(version: object) -> None:
    with pytest.raises(InputError, match=r"'version' must be a version such as 2\.6"):
        build(version=version)


def test_drop_vision_last_layer_drops_one_block() -> None:
    assert copies(build(), "encoder.layers") == {3}
    assert copies(build(drop_vision_last_layer=True), "encoder.layers") == {2}


def test_a_tower_as_wide_as_the_model_needs_no_kv_proj() -> None:
    wide = {**CONFIG["vision_config"], "hidden_size": 256}
    assert copies(build(), "resampler.kv_proj") == {1}
    assert copies(build(vision_config=wide), "resampler.kv_proj") == set()
