"""Whatever stands in a config.json, reading it ends in a config or in one line, within a second."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm_capacity.errors import CapacityError
from vllm_capacity.inputs.catalogue import entries
from vllm_capacity.inputs.config_json import apply_overrides, normalise, parse_json, read_config
from vllm_capacity.inputs.model_config import ModelConfig

REAL = [dict(entry.config) for entry in list(entries())[::9]]
KEYS = sorted(
    {key for config in REAL for key in config} | {key for c in REAL for key in c.get("text_config") or {}}
)

numbers = st.one_of(
    st.integers(-(10**18), 10**18), st.sampled_from([0, -1, 10**18, 1 << 63]), st.floats(allow_nan=False)
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A real config with keys taken away, replaced or added, at the top or in its text part."""
    config = dict(draw(st.sampled_from(REAL)))
    if draw(st.booleans()) and isinstance(config.get("text_config"), dict):
        config["text_config"] = change(draw, dict(config["text_config"]))
    return change(draw, config)


def change(draw: st.DrawFn, config: dict[str, Any]) -> dict[str, Any]:
    for _ in range(draw(st.integers(1, 4))):
        if config and draw(st.booleans()):
            config.pop(draw(st.sampled_from(sorted(config))))
        else:
            config[draw(st.sampled_from(KEYS))] = draw(values)
    return config


def exercise(config: ModelConfig) -> None:
    """Every typed access a family may make."""
    for read in (
        lambda: config.hidden_size,
        lambda: config.num_hidden_layers,
        lambda: config.num_attention_heads,
        lambda: config.num_key_value_heads,
        lambda: config.head_dim,
        lambda: config.vocab_size,
        lambda: config.tie_word_embeddings,
        lambda: config.integers("layer_types"),
        lambda: config.strings("layer_types"),
        lambda: config.boolean("attention_bias", False),
        lambda: config.sub("vision_config").size("hidden_size"),
    ):
        try:
            value = read()
        except CapacityError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert not isinstance(value, int) or value >= 0


@settings(max_examples=300, deadline=1000, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_a_mutated_config_gives_a_config_or_one_line(config: dict[str, Any]) -> None:
    try:
        exercise(normalise("m", config, source="test"))
    except CapacityError as error:
        assert "\n" not in str(error)  # noqa: PT017


@settings(max_examples=200, deadline=1000)
@given(
    st.one_of(st.binary(max_size=400), values.map(lambda v: json.dumps(v).encode()), st.text(max_size=200))
)
def test_any_bytes_give_an_object_or_one_line(data: bytes | str) -> None:
    try:
        assert isinstance(parse_json(data, "config.json"), dict)
    except CapacityError as error:
        assert "\n" not in str(error)  # noqa: PT017


@settings(max_examples=100, deadline=1000)
@given(st.sampled_from(REAL), st.dictionaries(st.sampled_from([*KEYS, "text_config"]), values, max_size=3))
def test_any_override_gives_a_config_or_one_line(config: dict[str, Any], overrides: dict[str, Any]) -> None:
    before = json.dumps(config)
    try:
        exercise(normalise("m", apply_overrides(config, overrides), source="test"))
    except CapacityError as error:
        assert "\n" not in str(error)  # noqa: PT017
    assert json.dumps(config) == before


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 2000), st.sampled_from(["[", '{"a":']))
def test_any_nesting_ends_within_a_second(depth: int, opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    started = time.process_time()
    try:
        parse_json('{"a":' + opening * depth + "1" + closing * depth + "}", "config.json")
    except CapacityError as error:
        assert "nested deeper" in str(error)  # noqa: PT017
    assert time.process_time() - started < 1


def test_a_config_read_twice_is_the_same(tmp_path: Path) -> None:
    for number, config in enumerate(REAL):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(config))
        try:
            first, second = read_config(file), read_config(file)
        except CapacityError:
            continue
        assert (first.root, first.text, first.quantization) == (second.root, second.text, second.quantization)
