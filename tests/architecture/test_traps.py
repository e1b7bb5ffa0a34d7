"""What surprised in real configs and checkpoints, one test or more each; the models are those it was met in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from vllm_capacity import plan
from vllm_capacity.answer import Plan
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    MixtureOfExperts,
    MultiHeadLatentAttention,
    StateSpace,
    VocabEmbedding,
)
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.errors import RefusedError
from vllm_capacity.inputs.catalogue import find_entry, load_entry
from vllm_capacity.inputs.config_json import parse_json
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.ledger import Component
from vllm_capacity.releases import get_release
from vllm_capacity.weights.imports import COMPRESSED_TENSORS_TABLE
from vllm_capacity.weights.rank import parameter_total


def load(model: str, **changes: Any) -> ModelConfig:
    entry = find_entry(model)
    assert entry is not None, model
    return load_entry(entry, changes)


def build(model: str, version: str = "0.26.0", **changes: Any) -> Architecture:
    return build_architecture(load(model, **changes), get_release(version))


def attentions(architecture: Architecture) -> Counter[Attention]:
    found: Counter[Attention] = Counter()
    for group in architecture.layers:
        for mixer in group.mixers:
            if isinstance(mixer, Attention):
                found[mixer] += len(group.indices)
    return found


def made(model: str, **flags: Any) -> Plan:
    result = plan(model, gpu="H200", suggestions=False, **flags)
    assert isinstance(result, Plan), result.verdict.message
    return result


def weights_bytes(model: str, **flags: Any) -> int:
    return sum(t.n_bytes for t in made(model, **flags).ranks[0].terms if t.component is Component.WEIGHTS)


# -- 1. stored totals and loaded weights ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "model", ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "tiiuae/falcon-7b", "tiiuae/falcon-40b"]
)
def test_a_tied_head_that_is_stored_twice_is_loaded_once(model: str) -> None:
    architecture = build(model)
    assert architecture.tie_word_embeddings
    stored = load(model).facts["parameters"]
    assert parameter_total(architecture) + architecture.vocab_size * architecture.hidden_size == stored


def test_an_untied_config_has_a_head_even_where_the_checkpoint_has_none() -> None:
    # Qwen3-Embedding-8B: tie_word_embeddings false, no lm_head among the tensors; vLLM builds one
    architecture = build("Qwen/Qwen3-Embedding-8B")
    assert not architecture.tie_word_embeddings
    assert (
        parameter_total(architecture) - load("Qwen/Qwen3-Embedding-8B").facts["parameters"] == 151665 * 4096
    )


def test_an_index_may_count_tied_heads_in_parameters_but_not_in_bytes() -> None:
    # google/medgemma-27b-it
    facts, architecture = load("google/medgemma-27b-it").facts, build("google/medgemma-27b-it")
    head = architecture.vocab_size * architecture.hidden_size
    assert facts["parameters"] == parameter_total(architecture) + head
    assert facts["checkpoint_bytes"] == 2 * parameter_total(architecture)


# -- 2. prediction layers -------------------------------------------------------------------------------------

PREDICTION_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")


@pytest.mark.parametrize(
    "model",
    [
        "zai-org/GLM-4.5",
        "zai-org/GLM-4.6",
        "deepseek-ai/DeepSeek-V3",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "Qwen/Qwen3.5-9B",
    ],
)
def test_prediction_layers_are_not_built_whatever_their_key_is_called(model: str) -> None:
    config = load(model)
    architecture = build(model)
    indices = [index for group in architecture.layers for index in group.indices]
    assert sorted(indices) == list(range(config.num_hidden_layers))
    without = {key: value for key, value in config.text.items() if key not in PREDICTION_KEYS}
    bare = replace(config, text=without, root=without if config.text is config.root else config.root)
    assert parameter_total(build_architecture(bare, get_release("0.26.0"))) == parameter_total(architecture)


# -- 3. packed checkpoints ------------------------------------------------------------------------------------


def test_packed_checkpoints_have_the_logical_parameters_of_the_model_they_were_made_from() -> None:
    total = parameter_total(build("nvidia/Qwen3-235B-A22B-NVFP4"))
    assert total == parameter_total(build("Qwen/Qwen3-235B-A22B"))
    assert 0.5 < load("nvidia/Qwen3-235B-A22B-NVFP4").facts["parameters"] / total < 0.6


# -- 4. where the quantisation block lives ----------------------------------------------------------------------


def test_a_block_that_stands_only_in_hf_quant_config_quantises_weights_and_cache() -> None:
    model = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8"
    entry = find_entry(model)
    assert entry is not None
    assert entry.quantization is not None
    assert "quantization_config" not in entry.config
    result = made(model, tensor_parallel_size=2)
    assert result.engine.quantization is not None
    assert result.engine.kv_cache_dtype == "fp8_e4m3"


def test_a_block_with_an_algorithm_but_no_method_quantises_nothing_in_vllm() -> None:
    # `_extract_modelopt_quant_algo`, quantization/modelopt.py, and `get_kv_cache_quant_algo_string`, utils/torch_utils.py:
    # without quant_method a block is nobody's, and its cache scheme with it
    model = "Qwen/Qwen3-32B-FP8-Static-PerTensor"
    block = load(model).quantization
    assert block is not None
    assert (block["quant_algo"], block["quant_method"]) == ("FP8", "")
    assert made(model).engine.quantization is None
    assert made(model).engine.kv_cache_dtype == "auto"
    # reading the block imports compressed-tensors on the host, so its table is not on the device
    assert weights_bytes(model) + COMPRESSED_TENSORS_TABLE >= weights_bytes("Qwen/Qwen3-32B")


def test_deepseek_v4_says_fp8_but_its_experts_are_fp4() -> None:
    config = load("deepseek-ai/DeepSeek-V4-Flash")
    assert config.quantization is not None
    assert (config.quantization["quant_method"], config.text["expert_dtype"]) == ("fp8", "fp4")
    packed = weights_bytes("deepseek-ai/DeepSeek-V4-Flash", tensor_parallel_size=8)
    exported = weights_bytes("sgl-project/DeepSeek-V4-Flash-FP8", tensor_parallel_size=8)
    assert packed < 0.65 * exported


def test_deepseek_v4_nvfp4_is_planned_from_its_mixed_block() -> None:
    assert made("nvidia/DeepSeek-V4-Flash-NVFP4", tensor_parallel_size=4).parameters == 284_334_567_511


# -- 5. padded AWQ ----------------------------------------------------------------------------------------------


def test_two_awq_checkpoints_of_one_model_may_differ_in_width() -> None:
    official, other = load("Qwen/Qwen2.5-72B-Instruct-AWQ"), load("LDCC/Qwen2.5-72B-Instruct-ko-AWQ")
    assert (official.size("intermediate_size"), other.size("intermediate_size")) == (29696, 29568)
    padding = 80 * 3 * 8192 * (29696 - 29568)
    difference = parameter_total(build(official.name)) - parameter_total(build(other.name))
    assert difference == padding


# -- 6. KV heads in unexpected places -----------------------------------------------------------------------------


def test_layers_without_attention_and_heads_counted_per_group() -> None:
    # Llama-Nemotron-49B: num_key_value_heads null, n_heads_in_group, 31 of 80 layers without attention
    architecture = build("nvidia/Llama-3_3-Nemotron-Super-49B-v1")
    found = attentions(architecture)
    assert sum(found.values()) == 80 - 31
    assert {mixer.num_kv_heads for mixer in found} == {8}


@pytest.mark.parametrize(
    ("model", "heads"),
    [
        ("stepfun-ai/step3", 1),
        ("tiiuae/falcon-7b", 1),
        ("tiiuae/falcon-40b", 8),
        ("databricks/dbrx-instruct", 8),
        ("THUDM/chatglm3-6b", 2),
        ("CohereForAI/c4ai-command-r-v01", 64),
    ],
)
def test_kv_heads_are_found_under_each_familys_key(model: str, heads: int) -> None:
    assert {mixer.num_kv_heads for mixer in attentions(build(model))} == {heads}


def test_step3_lists_its_sparse_layers_in_a_string_and_its_positions_in_the_singular() -> None:
    config, architecture = load("stepfun-ai/step3"), build("stepfun-ai/step3")
    assert isinstance(config.text["moe_layers_enum"], str)
    assert "max_position_embeddings" not in config.text
    sparse = [g.indices for g in architecture.layers if isinstance(g.feed_forward, MixtureOfExperts)]
    assert sorted(i for indices in sparse for i in indices) == list(range(4, 60))


def test_kinds_of_layers_may_have_other_heads_and_other_sizes_of_keys_and_values() -> None:
    found = attentions(build("XiaomiMiMo/MiMo-V2-Flash"))
    shapes = {(m.sliding_window, m.num_kv_heads, m.head_size, m.head_size_v): n for m, n in found.items()}
    assert shapes == {(None, 4, 192, 128): 9, (128, 8, 192, 128): 39}


# -- 7. hybrid and latent ------------------------------------------------------------------------------------------


def test_kimi_linear_counts_layers_from_one_and_has_a_head_dim_that_is_not_used() -> None:
    config = load("moonshotai/Kimi-Linear-48B-A3B-Instruct")
    assert config.text["head_dim"] == 72
    listed = config.text["linear_attn_config"]["kda_layers"]
    architecture = build(config.name)
    delta = [g for g in architecture.layers if isinstance(g.mixers[0], StateSpace)]
    assert sorted(i + 1 for g in delta for i in g.indices) == sorted(listed)
    assert {m.head_dim for g in delta for m in g.mixers if isinstance(m, StateSpace)} == {128}


def test_mistral_small_4_in_this_format_has_a_text_part_that_vllm_has_no_class_for() -> None:
    with pytest.raises(RefusedError, match="mistral4"):
        build("delsakov/Mistral-Small-4-119B-2603-AWQ", "0.33.0")


def test_deepseek_v4_layers_differ_by_their_compression() -> None:
    architecture = build("deepseek-ai/DeepSeek-V4-Flash")
    counts: Counter[tuple[int, int, bool]] = Counter()
    for group in architecture.layers:
        (mixer,) = group.mixers
        assert isinstance(mixer, MultiHeadLatentAttention)
        assert mixer.compression is not None
        key = (mixer.compression.sliding_window, mixer.compression.ratio, mixer.indexer is not None)
        counts[key] += len(group.indices)
    assert counts == {(128, 1, False): 2, (128, 4, True): 21, (128, 128, False): 20}


def test_nemotron_3_super_and_ultra_experts_work_on_a_latent() -> None:
    for model in (
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    ):
        config, architecture = load(model), build(model)
        widths = {
            g.feed_forward.hidden_size
            for g in architecture.layers
            if isinstance(g.feed_forward, MixtureOfExperts)
        }
        assert widths == {config.size("moe_latent_size")}
        assert config.size("moe_latent_size") < architecture.hidden_size


def test_minimax_m1_mixes_linear_and_softmax_layers_and_is_refused_since_0_24() -> None:
    kinds = load("MiniMaxAI/MiniMax-M1-80k").text["attn_type_list"]
    assert set(kinds) == {0, 1}
    with pytest.raises(RefusedError, match=r"until v0\.23\.0"):
        build("MiniMaxAI/MiniMax-M1-80k", "0.26.0")


# -- 8. Gemma 4 ---------------------------------------------------------------------------------------------------


def test_gemma_4_full_layers_have_their_own_head_size_and_kv_heads() -> None:
    found = attentions(build("google/gemma-4-26B-A4B"))
    shapes = {(m.sliding_window, m.num_kv_heads, m.head_size): n for m, n in found.items()}
    assert shapes == {(1024, 8, 256): 25, (None, 2, 512): 5}


def test_gemma_4_e4b_shares_caches_and_carries_per_layer_embeddings() -> None:
    architecture = build("google/gemma-4-E4B-it")
    shared = sum(n for mixer, n in attentions(architecture).items() if mixer.shares_kv)
    assert shared == load("google/gemma-4-E4B-it").integer("num_kv_shared_layers") == 18
    (table,) = (
        p.module
        for p in architecture.outside
        if isinstance(p.module, VocabEmbedding) and p.module.name == "embed_tokens_per_layer"
    )
    assert (table.rows, table.columns) == (262144, 42 * 256)


# -- 9. Llama 3.2 Vision ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "layers"), [("11B", 40), ("90B", 100)])
def test_llama_3_2_vision_counts_cross_attention_layers_and_was_dropped(size: str, layers: int) -> None:
    config = load(f"meta-llama/Llama-3.2-{size}-Vision-Instruct")
    assert config.num_hidden_layers == layers
    assert len(config.integers("cross_attention_layers") or ()) == layers // 5
    with pytest.raises(RefusedError, match=r"until v0\.10\.2"):
        build_architecture(config, get_release("0.26.0"))


# -- 10. Command R ------------------------------------------------------------------------------------------------


def test_command_r_is_as_long_as_model_max_length_says() -> None:
    model = "CohereForAI/c4ai-command-r-v01"
    assert load(model).size("max_position_embeddings") == 8192
    assert made(model).engine.max_model_len == 131072


# -- 11. parsing --------------------------------------------------------------------------------------------------


def test_infinity_in_a_config_is_read() -> None:
    assert parse_json('{"time_step_limit": [0.0, Infinity]}', "config.json")["time_step_limit"][1] == float(
        "inf"
    )
    assert made("mistralai/Mamba-Codestral-7B-v0.1").parameters > 7e9


def test_qwen_1_is_half_as_wide_as_its_config_says() -> None:
    model = "Qwen/Qwen-72B"
    config, architecture = load(model), build(model, "0.23.0")
    assert config.size("intermediate_size") == 49152
    assert parameter_total(architecture) == config.facts["parameters"]
    with pytest.raises(RefusedError, match=r"until v0\.23\.0"):
        build(model, "0.24.0")


def test_keys_of_a_training_run_change_nothing() -> None:
    model = "meta-llama/Llama-2-70b-hf"
    # as published for meta-llama/Llama-2-70b-hf
    plain = 68_976_648_192
    extra = build(model, selective_checkpoint_enabled=True, sequence_parallel_enabled=True)
    assert parameter_total(extra) == parameter_total(build(model)) == plain


# -- 12. fields that are not to be trusted --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        "mistralai/Ministral-8B-Instruct-2410", "LiquidAI/LFM2-8B-A1B", "deepseek-ai/DeepSeek-V2",
        "baidu/ERNIE-4.5-300B-A47B-Base-PT", "Qwen/Qwen2.5-VL-72B-Instruct", "mistralai/Mistral-Large-Instruct-2407",
        "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", "MiniMaxAI/MiniMax-M2",
    ],
)  # fmt: skip
def test_the_catalogue_says_which_fields_are_not_verified(model: str) -> None:
    note = str(load(model).facts.get("note", "")).lower()
    assert any(
        word in note for word in ("not verified", "unverified", "assumed", "suspect", "not read from")
    ), note
