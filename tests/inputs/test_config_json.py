"""Reading config.json: what is refused and how, and which part of it is the model."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.errors import CapacityError, InputError, Reason, RefusedError
from vllm_capacity.inputs.config_json import (
    MAX_CONFIG_BYTES,
    MAX_DEPTH,
    apply_overrides,
    normalise,
    parse_json,
    read_config,
)

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


def write(folder: Path, config: object, name: str = "config.json") -> Path:
    file = folder / name
    file.write_text(json.dumps(config))
    return file


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("{'a': 1}", "is not JSON"),
        ("[1, 2]", "must hold a JSON object, not a list"),
        ("null", "must hold a JSON object, not null"),
        ("3", "must hold a JSON object, not a number"),
        ('{"a": 1, "a": 2}', "holds the key 'a' twice"),
        ('{"a": {"b": 1, "b": 1}}', "holds the key 'b' twice"),
        ('{"a": NaN}', "holds NaN"),
        ('{"a": ' + "1" * 5000 + "}", "thousands of digits"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"a":' * 100 + "1" + "}" * 100, f"nested deeper than {MAX_DEPTH} levels"),
        ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", f"nested deeper than {MAX_DEPTH} levels"),
        ("\ufeff{}", "is not JSON"),
    ],
)
def test_broken_files_are_one_line_that_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InputError, match=r"^config\.json ") as caught:
        parse_json(text, "config.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(InputError, match="not UTF-8"):
        parse_json(b'{"a": "\xff"}', "config.json")


def test_infinity_is_accepted_as_mamba_codestral_has_it() -> None:
    # mistralai/Mamba-Codestral-7B-v0.1: "time_step_limit": [0.0, Infinity]
    value = parse_json('{"time_step_limit": [0.0, Infinity]}', "config.json")
    assert value["time_step_limit"] == [0.0, math.inf]


def test_a_config_of_100_megabytes_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as handle:
        handle.truncate(100 * 1024 * 1024)
    started = time.process_time()
    with pytest.raises(InputError, match="larger than"):
        read_config(file)
    assert time.process_time() - started < 1


def test_the_limit_leaves_room_for_the_largest_real_config() -> None:
    # nvidia/MiniMax-M3-NVFP4's config.json has 3,087,083 bytes.
    assert MAX_CONFIG_BYTES > 3 * 3_087_083


def test_a_folder_without_config_json_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        read_config(tmp_path)


def test_mistral_format_is_named_when_only_params_json_is_there(tmp_path: Path) -> None:
    write(tmp_path, {"dim": 4096}, "params.json")
    with pytest.raises(InputError, match=r"params\.json"):
        read_config(tmp_path)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InputError):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": "LlamaForCausalLM"},
        {"architectures": [1]},
        {"model_type": 3},
        {"text_config": 3},
        {"vision_config": "x"},
        {"quantization_config": "fp8"},
        {"quantization_config": {"quant_method": 8}},
    ],
)
def test_wrong_types_name_the_key(change: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        normalise("m", {**LLAMA, **change}, source="test")
    assert next(iter(change)).split("_")[0][:5] in str(caught.value)


# -- reading -------------------------------------------------------------------------------------------------


def test_a_folder_and_its_file_give_the_same_config(tmp_path: Path) -> None:
    file = write(tmp_path, LLAMA)
    by_folder, by_file = read_config(tmp_path), read_config(file)
    assert dict(by_folder.text) == dict(by_file.text)
    assert by_folder.source == f"local file {file}"
    assert by_folder.architectures == ("LlamaForCausalLM",)
    assert by_folder.num_key_value_heads == 8


def test_torch_dtype_is_dtype(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, LLAMA)).get("dtype") == "bfloat16"


def test_a_text_model_is_its_own_text_part() -> None:
    config = normalise("m", LLAMA, source="test")
    assert config.text is config.root
    assert config.text_model_type == "llama"
    assert config.vision is None


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config", "decoder"])
def test_the_text_part_is_found_under_every_name_vllm_knows(key: str) -> None:
    root = {"model_type": "x_vl", "architectures": ["X"], key: LLAMA, "vision_config": {"hidden_size": 1152}}
    config = normalise("m", root, source="test")
    assert config.hidden_size == 4096
    assert config.text_model_type == "llama"
    assert config.model_type == "x_vl"
    assert config.vision is not None
    assert config.vision["hidden_size"] == 1152


def test_the_omni_thinker_holds_text_vision_and_audio() -> None:
    # The shape of Qwen2.5-Omni's config.json: thinker_config {text_config, vision_config, audio_config}.
    thinker = {"text_config": LLAMA, "vision_config": {"depth": 32}, "audio_config": {"d_model": 1280}}
    config = normalise("m", {"model_type": "qwen2_5_omni", "thinker_config": thinker}, source="test")
    assert config.hidden_size == 4096
    assert config.vision is not None
    assert config.vision["depth"] == 32
    assert config.audio is not None
    assert config.audio["d_model"] == 1280


def test_two_text_parts_are_refused_as_transformers_does() -> None:
    with pytest.raises(InputError, match="several text parts"):
        normalise("m", {"text_config": LLAMA, "decoder": LLAMA}, source="test")


# -- class defaults ------------------------------------------------------------------------------------------


def test_gemma3_4b_gets_the_heads_that_its_file_does_not_state() -> None:
    # google/gemma-3-4b-it's text_config names only sizes; Gemma3TextConfig fills 8 heads, 4 KV heads,
    # head_dim 256.
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
    }
    config = normalise("m", {"model_type": "gemma3", "text_config": text}, source="test")
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (8, 4, 256)
    assert config.tie_word_embeddings is True


def test_a_null_stays_null() -> None:
    # Mistral-7B-v0.3 sets "sliding_window": null; MistralConfig's default of 4096 must not come back.
    config = normalise("m", {**LLAMA, "model_type": "mistral", "sliding_window": None}, source="test")
    assert config.get("sliding_window") is None
    assert normalise("m", {**LLAMA, "model_type": "mistral"}, source="test").get("sliding_window") == 4096


def test_synonyms_of_a_class_are_readable_under_both_names() -> None:
    # DbrxConfig.attribute_map: hidden_size -> d_model, num_attention_heads -> n_heads, num_hidden_layers ->
    # n_layers.
    root = {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352}
    config = normalise("m", root, source="test")
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (6144, 48, 40)


def test_an_unknown_model_type_gets_no_defaults() -> None:
    config = normalise("m", {"model_type": "brand_new", "hidden_size": 8}, source="test")
    assert dict(config.text) == {"model_type": "brand_new", "hidden_size": 8}
    with pytest.raises(InputError, match="'vocab_size' is missing"):
        _ = config.vocab_size


def test_layers_are_counted_where_only_the_list_of_layers_is_given() -> None:
    # nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16 has layers_block_type and no num_hidden_layers.
    config = normalise(
        "m", {"model_type": "nemotron_h", "layers_block_type": ["mamba", "moe", "attention"]}, source="t"
    )
    assert config.num_hidden_layers == 3


# -- quantisation --------------------------------------------------------------------------------------------


def block(root: dict[str, Any], beside: dict[str, Any] | None = None) -> Any:
    return normalise("m", {**LLAMA, **root}, source="test", quantization=beside).quantization


def test_the_block_is_found_in_every_place() -> None:
    fp8 = {"quant_method": "fp8"}
    assert block({}) is None
    assert block({"quantization_config": fp8}) == fp8
    assert block({"compression_config": {"quant_method": "compressed_tensors"}}) == {
        "quant_method": "compressed-tensors"
    }
    # moonshotai/Kimi-K2.5 has it in the text part.
    assert block({"text_config": {**LLAMA, "quantization_config": fp8}}) == fp8


@pytest.mark.parametrize(
    ("algorithm", "method"),
    [
        ("FP8", "modelopt"),
        ("NVFP4", "modelopt_fp4"),
        ("MIXED_PRECISION", "modelopt_mixed"),
        ("fp8", "modelopt"),
    ],
)
def test_modelopts_side_file_names_its_method(algorithm: str, method: str) -> None:
    # hf_quant_config.json of nvidia/Llama-3.1-70B-Instruct-FP8 and nvidia/Qwen3-235B-A22B-NVFP4.
    beside = {
        "producer": {"name": "modelopt", "version": "0.33.0"},
        "quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8"},
    }
    found = block({}, beside)
    assert found["quant_method"] == method
    assert found["quantization"]["kv_cache_quant_algo"] == "FP8"


def test_the_side_file_is_read_from_the_folder_unless_config_json_has_a_block(tmp_path: Path) -> None:
    side = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    write(tmp_path, side, "hf_quant_config.json")
    write(tmp_path, LLAMA)
    assert (read_config(tmp_path).quantization or {})["quant_method"] == "modelopt"
    write(tmp_path, {**LLAMA, "quantization_config": {"quant_method": "awq"}})
    assert (read_config(tmp_path).quantization or {})["quant_method"] == "awq"


def test_an_unknown_modelopt_algorithm_is_refused_in_vllms_words() -> None:
    # ValueError of _normalize_quantization_config, transformers_utils/model_arch_config_convertor.py, 0.26.0.
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "W4A8_AWQ"}}
    with pytest.raises(RefusedError, match=r"^Unknown ModelOpt quant algo: W4A8_AWQ$") as caught:
        block({}, beside)
    assert caught.value.reason is Reason.UNSUPPORTED_BY_RELEASE


def test_a_block_without_a_method_keeps_an_empty_one() -> None:
    # Qwen/Qwen3-32B-FP8-Static-PerTensor: quant_algo and producer, no quant_method; vLLM reads '' as none.
    assert (
        block({"quantization_config": {"quant_algo": "FP8", "producer": {"name": "modelopt"}}})[
            "quant_method"
        ]
        == ""
    )


def test_the_callers_block_is_not_changed() -> None:
    original = {"quant_method": "compressed_tensors"}
    block({"quantization_config": original})
    assert original == {"quant_method": "compressed_tensors"}


# -- overrides -----------------------------------------------------------------------------------------------


def test_plain_overrides_replace_the_top_level() -> None:
    assert apply_overrides(LLAMA, {"num_hidden_layers": 2})["num_hidden_layers"] == 2


def test_an_object_merges_into_a_nested_config() -> None:
    root = {"model_type": "x_vl", "text_config": LLAMA}
    merged = apply_overrides(root, {"text_config": {"num_hidden_layers": 2}})
    assert merged["text_config"]["num_hidden_layers"] == 2
    assert merged["text_config"]["hidden_size"] == 4096
    assert LLAMA["num_hidden_layers"] == 32


def test_an_object_replaces_a_plain_dictionary() -> None:
    root = {**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    override = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    assert apply_overrides(root, override)["rope_scaling"] == override["rope_scaling"]


def test_rope_scaling_and_rope_parameters_are_one_value() -> None:
    root = {**LLAMA, "rope_parameters": {"rope_type": "default"}}
    assert apply_overrides(root, {"rope_scaling": {"rope_type": "yarn"}})["rope_parameters"] == {
        "rope_type": "yarn"
    }


def test_overriding_a_part_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="'text_config'"):
        apply_overrides(LLAMA, {"text_config": {"num_hidden_layers": 2}})


def test_five_megabytes_of_junk_take_less_than_a_second(tmp_path: Path) -> None:
    for junk in (
        "[" + "[]," * 1_700_000 + "0]",
        '{"a": [' + "{}," * 1_700_000 + "0]}",
        '{"k": "' + "x" * 5_000_000 + '"}',
    ):
        file = tmp_path / "config.json"
        file.write_text(junk)
        started = time.process_time()
        try:
            read_config(file)
        except CapacityError as error:
            assert "\n" not in str(error)  # noqa: PT017
        assert time.process_time() - started < 1
