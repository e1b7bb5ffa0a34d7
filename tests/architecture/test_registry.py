"""Architectures by name and release."""

from __future__ import annotations

from importlib import import_module

import pytest
from vllm_capacity.architecture.modules import Attention, AttentionKind
from vllm_capacity.architecture.registry import ROWS, build_architecture
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases import get_release

SMALL = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 1024,
}  # fmt: skip


def config(*architectures: str, **fields: object) -> ModelConfig:
    values = {**SMALL, **fields}
    return ModelConfig("test/model", values, values, architectures=architectures)


def windows(made: ModelConfig) -> list[int | None]:
    architecture = build_architecture(made, get_release("0.26.0"))
    found: dict[int, int | None] = {}
    for group in architecture.layers:
        (mixer,) = group.mixers
        assert isinstance(mixer, Attention)
        found.update(dict.fromkeys(group.indices, mixer.sliding_window))
    return [found[index] for index in sorted(found)]


def test_every_row_names_a_function_that_exists() -> None:
    for rows in ROWS.values():
        for row in filter(lambda row: row.builder, rows):
            module, function = row.builder.split(":")
            assert callable(getattr(import_module(f"vllm_capacity.architecture.{module}"), function))


def test_the_first_known_architecture_of_a_config_counts() -> None:
    made = build_architecture(config("SomethingNew", "LlamaForCausalLM"), get_release("0.26.0"))
    assert made.name == "LlamaForCausalLM"


def test_an_unknown_architecture_is_named_with_the_nearest_known_and_a_way_out() -> None:
    with pytest.raises(
        InputError, match=r"'LlamaForCausalLMs' is not modelled.*LlamaForCausalLM.*dry-run.*issue"
    ):
        build_architecture(config("LlamaForCausalLMs"), get_release("0.26.0"))


def test_a_config_without_architectures_says_what_to_add() -> None:
    with pytest.raises(InputError, match="'architectures'"):
        build_architecture(config(), get_release("0.26.0"))


def test_a_dropped_architecture_is_refused_with_the_last_release_that_ran_it() -> None:
    # model_executor/models/registry.py: AquilaForCausalLM is listed up to 0.24.0
    assert build_architecture(config("AquilaForCausalLM"), get_release("0.24.0")).family == "llama"
    with pytest.raises(RefusedError, match=r"was supported in vLLM until v0\.24\.0") as caught:
        build_architecture(config("AquilaForCausalLM"), get_release("0.25.0"))
    assert caught.value.reason is Reason.UNSUPPORTED_BY_RELEASE


def test_an_architecture_that_came_later_is_refused_with_the_first_release_that_has_it() -> None:
    # Ministral3ForCausalLM: listed from 0.20.0 on
    assert build_architecture(config("Ministral3ForCausalLM"), get_release("0.20.0")).family == "mistral"
    with pytest.raises(RefusedError, match=r"not supported for now.*0\.20\.0"):
        build_architecture(config("Ministral3ForCausalLM"), get_release("0.19.1"))


def test_a_dropped_architecture_that_is_not_modelled_is_still_refused_by_vllm() -> None:
    with pytest.raises(RefusedError, match=r"until v0\.10\.2"):
        build_architecture(config("MllamaForConditionalGeneration"), get_release("0.26.0"))


def test_mistral_has_a_window_unless_its_config_says_null() -> None:
    # transformers MistralConfig: sliding_window defaults to 4096, vLLM gives it to every layer
    assert windows(config("MistralForCausalLM")) == [4096] * 4
    assert windows(config("MistralForCausalLM", sliding_window=None)) == [None] * 4
    assert windows(config("MistralForCausalLM", sliding_window=0)) == [None] * 4
    assert windows(config("Ministral3ForCausalLM")) == [None] * 4


def test_qwen_has_no_window_unless_it_is_switched_on() -> None:
    assert windows(config("Qwen2ForCausalLM", sliding_window=512)) == [None] * 4
    on = config("Qwen2ForCausalLM", sliding_window=512, use_sliding_window=True, max_window_layers=4)
    assert windows(on) == [512] * 4
    with pytest.raises(InputError, match="Sliding window for some but all layers"):
        windows(config("Qwen2ForCausalLM", sliding_window=512, use_sliding_window=True, max_window_layers=2))


def test_llama_follows_layer_types() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    assert windows(config("CwmForCausalLM", layer_types=kinds, sliding_window=128)) == [128, None, 128, None]
    with pytest.raises(InputError, match="layer_types"):
        windows(config("CwmForCausalLM", layer_types=kinds[:2], sliding_window=128))


def test_a_bidirectional_llama_has_no_cache() -> None:
    made = build_architecture(config("LlamaForCausalLM", is_causal=False), get_release("0.26.0"))
    assert all(
        m.kind is AttentionKind.ENCODER_ONLY
        for g in made.layers
        for m in g.mixers
        if isinstance(m, Attention)
    )


def test_a_missing_key_is_named() -> None:
    values = {k: v for k, v in SMALL.items() if k != "intermediate_size"}
    made = ModelConfig("test/model", values, values, architectures=("LlamaForCausalLM",))
    with pytest.raises(InputError, match="'intermediate_size' is missing"):
        build_architecture(made, get_release("0.26.0"))
