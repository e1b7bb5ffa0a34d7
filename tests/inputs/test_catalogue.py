"""models.yaml: its schema, its slices, and what a lookup costs."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import yaml
from vllm_capacity.errors import InputError
from vllm_capacity.inputs import catalogue
from vllm_capacity.inputs.catalogue import entries, expand, find_entry, load_entry, model_ids, suggestions
from vllm_capacity.inputs.models import load_model

FIELDS = {
    "alias_of": str,
    "parameters": int,
    "parameters_source": str,
    "parameters_note": str,
    "checkpoint_bytes": int,
    "checkpoint_source": str,
    "source": str,
    "confidence": str,
    "note": str,
    "config": dict,
    "quantization": dict,
}
CONFIDENCE = {
    "exact vendored file",
    "exact page text",
    "exact page text for text_config; vision_config from class defaults",
    "HF config embedded as a dict in code",
    "HF config fields embedded in code",
    "transformers default",
    "reconstructed from stated facts",
    "vendored file, slightly altered",
    "vendored file, possibly altered for training",
    "page text",
    "page text of a derivative that kept the base config",
    "page text of the FP8 sibling",
    "derived",
}


@pytest.fixture(scope="module")
def full() -> dict[str, dict[str, object]]:
    loaded: dict[str, dict[str, object]] = yaml.load(
        catalogue.catalogue_path().read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )["models"]
    return loaded


def test_every_slice_equals_the_full_parse(full: dict[str, dict[str, object]]) -> None:
    assert dict(catalogue._entries().items()) == full
    for name, entry in full.items():
        assert catalogue._entries().get(name) == entry


def test_entries_are_sorted_and_unique_whatever_their_case(full: dict[str, dict[str, object]]) -> None:
    folded = [name.casefold() for name in full]
    assert folded == sorted(folded)
    assert len(set(folded)) == len(folded)


def test_every_entry_follows_the_schema(full: dict[str, dict[str, object]]) -> None:
    for name, entry in full.items():
        if "alias_of" in entry:
            assert set(entry) == {"alias_of"}, name
            assert "config" in full[str(entry["alias_of"])], name
            continue
        assert {"source", "confidence", "config"} <= set(entry) <= set(FIELDS), name
        assert all(type(value) is FIELDS[field] for field, value in entry.items()), name
        assert entry["confidence"] in CONFIDENCE, name
        assert ("parameters" in entry) == ("parameters_source" in entry), name
        assert ("checkpoint_bytes" in entry) == ("checkpoint_source" in entry), name


def test_the_catalogue_stays_small() -> None:
    assert catalogue.catalogue_path().stat().st_size < 700_000


def test_no_entry_holds_keys_without_a_meaning_for_memory() -> None:
    noise = (
        "eos_token_id",
        "auto_map",
        "transformers_version",
        "initializer_range",
        "_name_or_path",
        "use_cache",
    )
    text = catalogue.catalogue_path().read_text()
    assert not [key for key in noise if f'"{key}"' in text]


def test_every_entry_becomes_a_config_with_an_architecture() -> None:
    count = 0
    for entry in entries():
        config = load_entry(entry)
        count += 1
        assert config.architectures, entry.model_id
        assert config.vocab_size > 0, entry.model_id
        assert config.hidden_size > 0, entry.model_id
        assert config.num_hidden_layers > 0, entry.model_id
        assert config.source.startswith("bundled catalogue ("), entry.model_id
    assert count >= 298


@pytest.mark.parametrize(
    ("spelling", "name", "parameters"),
    [
        # Totals that the models' own pages state.
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("qwen/qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B-Instruct", 70_553_706_496),
        ("MISTRALAI/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-Instruct-v0.3", 7_248_023_552),
    ],
)
def test_ids_are_found_whatever_their_case_and_old_names_lead_to_new_ones(
    spelling: str, name: str, parameters: int
) -> None:
    config = load_model(spelling)
    assert config.name == name
    assert config.facts["parameters"] == parameters


def test_side_files_of_modelopt_models_are_in_the_catalogue() -> None:
    assert (load_model("nvidia/Qwen3-235B-A22B-NVFP4").quantization or {})["quant_method"] == "modelopt_fp4"
    assert (load_model("nvidia/Llama-3.1-70B-Instruct-FP8").quantization or {})["quant_method"] == "modelopt"


def test_overrides_apply_to_catalogue_models() -> None:
    assert load_model("Qwen/Qwen3-8B", hf_overrides={"num_hidden_layers": 2}).num_hidden_layers == 2


def test_a_lookup_does_not_cost_the_whole_file() -> None:
    load_model("Qwen/Qwen3-8B")
    started = time.perf_counter()
    for _ in range(20):
        load_model("meta-llama/Llama-3.3-70B-Instruct")
    assert (time.perf_counter() - started) / 20 < 0.005


def test_a_lookup_imports_neither_yaml_nor_the_hub_library() -> None:
    program = (
        "import sys; from vllm_capacity.inputs.models import load_model; load_model('Qwen/Qwen3-8B'); "
        "print([m for m in ('yaml', 'huggingface_hub', 'torch', 'transformers', 'rich') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_ranges_expand_to_every_name() -> None:
    assert expand({"ignore": ["layers.{0-2,5}.mlp", "lm_head"]}) == {
        "ignore": ["layers.0.mlp", "layers.1.mlp", "layers.2.mlp", "layers.5.mlp", "lm_head"]
    }
    assert expand({"quantized_layers": [[{"a": 1}, ["x.{0-1}.y.{3,7}"]]]}) == {
        "quantized_layers": {name: {"a": 1} for name in ("x.0.y.3", "x.0.y.7", "x.1.y.3", "x.1.y.7")}
    }


def test_minimax_m3_names_its_22422_quantised_layers_again() -> None:
    # nvidia/MiniMax-M3-NVFP4's config.json lists 22,422 modules in quantized_layers.
    block = load_model("nvidia/MiniMax-M3-NVFP4").quantization
    assert block is not None
    assert len(block["quantized_layers"]) == 22_422
    assert block["quantized_layers"]["language_model.model.layers.59.block_sparse_moe.experts.127.w3"] == {
        "quant_algo": "NVFP4",
        "group_size": 16,
    }


def test_search_and_suggestions() -> None:
    assert "Qwen/Qwen3-30B-A3B" in model_ids("qwen3-30b")
    assert find_entry("no/such-model") is None
    assert suggestions("Qwen/Qwen3-30B-A3")[0] == "Qwen/Qwen3-30B-A3B"
    assert "meta-llama/Llama-3.1-8B-Instruct" in suggestions("Llama-3.1-8B-Instruct")


@pytest.mark.parametrize(
    "spec", ["", "  ", "./no/such/folder", "/no/such/config.json", "a b c", "x" * 5000, "a\0b"]
)
def test_a_spec_that_is_neither_path_nor_id_is_one_line(spec: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(spec, offline=True)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
