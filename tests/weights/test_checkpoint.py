"""Architectures held against safetensors headers: what is said, what is planned, what is taken from the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
from vllm_capacity import plan
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.inputs.checkpoint import common_dtype, with_headers
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.inputs.safetensors_format import DTYPE_BITS, TensorInfo
from vllm_capacity.inputs.safetensors_headers import CheckpointHeaders
from vllm_capacity.releases import get_release
from vllm_capacity.weights.checkpoint import fit_to_headers, logical_shape
from vllm_capacity.weights.rank import parameter_total

RELEASE = get_release("0.26.0")
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def stored(name: str, *shape: int, dtype: str = "BF16") -> TensorInfo:
    return TensorInfo(name, dtype, shape, -(-prod(shape) * DTYPE_BITS[dtype] // 8))


def layer(index: int, mlp: int = 512) -> list[TensorInfo]:
    p = f"model.layers.{index}."
    rows = {"q_proj": 256, "k_proj": 128, "v_proj": 128}
    return [
        *(stored(f"{p}self_attn.{name}.weight", size, 256) for name, size in rows.items()),
        *(stored(f"{p}self_attn.{name}.bias", size) for name, size in rows.items()),
        stored(f"{p}self_attn.o_proj.weight", 256, 256),
        stored(f"{p}mlp.gate_proj.weight", mlp, 256),
        stored(f"{p}mlp.up_proj.weight", mlp, 256),
        stored(f"{p}mlp.down_proj.weight", 256, mlp),
        stored(f"{p}input_layernorm.weight", 256),
        stored(f"{p}post_attention_layernorm.weight", 256),
    ]


def checkpoint(mlp: int = 512, rows: int = 1024) -> list[TensorInfo]:
    return [
        stored("model.embed_tokens.weight", rows, 256), stored("model.norm.weight", 256),
        stored("lm_head.weight", rows, 256), *layer(0, mlp), *layer(1, mlp),
    ]  # fmt: skip


def config(**changes: Any) -> ModelConfig:
    return normalise("tiny", {**CONFIG, **changes}, source="test")


def notes(tensors: list[TensorInfo], **changes: Any) -> str:
    architecture = build_architecture(config(**changes), RELEASE)
    return "\n".join(fit_to_headers(architecture, tensors).notes[len(architecture.notes) :])


def test_headers_that_agree_say_nothing_and_change_nothing():
    architecture = build_architecture(config(), RELEASE)
    fitted = fit_to_headers(architecture, checkpoint())
    assert (fitted.layers, fitted.outside, fitted.notes) == (
        architecture.layers, architecture.outside, architecture.notes
    )  # fmt: skip
    assert parameter_total(fitted) == sum(tensor.n_elements for tensor in checkpoint())


@pytest.mark.parametrize(("mlp", "rows"), [(640, 1024), (512, 1088), (640, 1088)])
def test_stored_sizes_are_planned_and_the_disagreement_is_said_by_name(mlp, rows):
    tensors = checkpoint(mlp, rows)
    fitted = fit_to_headers(build_architecture(config(), RELEASE), tensors)
    assert parameter_total(fitted) == sum(tensor.n_elements for tensor in tensors)
    text = "\n".join(fitted.notes)
    assert ("mlp.gate_up_proj is stored with [1,280, 256] where the config says [1,024, 256]" in text) == (
        mlp == 640
    )
    assert ("lm_head is stored with 1,088 rows where the config says 1,024" in text) == (rows == 1088)


def test_layers_of_different_sizes_become_groups_of_their_own():
    tensors = [t for t in checkpoint() if not t.name.startswith("model.layers.1.")] + layer(1, 384)
    fitted = fit_to_headers(build_architecture(config(), RELEASE), tensors)
    assert [group.indices for group in fitted.layers] == [(0,), (1,)]
    assert parameter_total(fitted) == sum(tensor.n_elements for tensor in tensors)


def test_a_tied_head_that_is_stored_too_never_reaches_the_gpu():
    """AutoWeightsLoader(skip_prefixes=["lm_head."]), models/qwen2.py (0.26.0): Qwen3-0.6B, R1-Distill-Qwen-1.5B are such."""
    text = notes(checkpoint(), tie_word_embeddings=True)
    assert "lm_head is stored beside the embedding it is tied to" in text
    assert "lm_head is not stored" not in text


def test_a_missing_head_is_said():
    """Qwen3-Embedding-8B: tie_word_embeddings false, no lm_head."""
    assert "lm_head is not stored" in notes([t for t in checkpoint() if t.name != "lm_head.weight"])


def test_layers_beyond_the_last_and_encoders_are_not_loaded():
    extra = [
        *layer(2), stored("model.layers.2.shared_head.head.weight", 1024, 256),
        stored("model.visual.blocks.0.attn.qkv.weight", 96, 32),
    ]  # fmt: skip
    text = notes([*checkpoint(), *extra])
    assert "in 13 tensors belong to multi-token-prediction layers" in text
    assert "in 1 tensors belong to an encoder of images or sound that Qwen2ForCausalLM does not build" in text


def test_tensors_without_a_module_and_modules_without_a_tensor_are_named():
    tensors = [t for t in checkpoint() if t.name != "model.layers.1.mlp.down_proj.weight"]
    text = notes([*tensors, stored("model.layers.0.adapter.weight", 8)])
    assert (
        "1 tensors (0.00 GiB) fit no module of Qwen2ForCausalLM, model.layers.0.adapter.weight for one"
        in text
    )
    assert "1 of the model's modules are not stored, layers.1.mlp.down_proj for one" in text


# create_weights of auto_awq.py, auto_gptq.py, compressed_tensors_wNa16.py, modelopt.py (0.26.0):
# [outputs, inputs] = [512, 256]
@pytest.mark.parametrize(
    ("name", "dtype", "shape", "block"),
    [
        ("qweight", "I32", (256, 64), {"quant_method": "awq", "bits": 4}),
        ("qweight", "I32", (32, 512), {"quant_method": "gptq", "bits": 4}),
        ("qweight", "I32", (64, 512), {"quant_method": "gptq", "bits": 8}),
        ("weight_packed", "I32", (512, 32), {"quant_method": "compressed-tensors", "config_groups": {}}),
        (
            "weight_packed", "I32", (512, 64),
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}},
        ),
        ("weight", "U8", (512, 128), {"quant_method": "modelopt_fp4"}),
        ("weight", "F8_E4M3", (512, 256), {"quant_method": "fp8"}),
    ],
)  # fmt: skip
def test_packed_tensors_are_counted_in_elements_of_the_model(name, dtype, shape, block):
    assert logical_shape(stored("x", *shape, dtype=dtype), name, block)[0] == (512, 256)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}


def quantised(method: str, mlp: int = 512, plain: tuple[str, ...] = ()) -> list[TensorInfo]:
    """A checkpoint whose linear layers are packed, but for those whose name contains one of `plain`."""
    found: list[TensorInfo] = []
    for tensor in checkpoint(mlp):
        stem = tensor.name.removesuffix(".weight")
        if "_proj" not in stem or len(tensor.shape) == 1 or any(name in stem for name in plain):
            found.append(replace(tensor, dtype="F16"))
            continue
        out, inputs = tensor.shape
        shape = (inputs, out // 8) if method == "awq" else (inputs // 8, out)
        found += [
            stored(f"{stem}.qweight", *shape, dtype="I32"),
            stored(f"{stem}.qzeros", inputs // 128, out // 8, dtype="I32"),
            stored(f"{stem}.scales", inputs // 128, out, dtype="F16"),
        ]
    return found


@pytest.mark.parametrize(("method", "block"), [("awq", AWQ), ("gptq", GPTQ)])
def test_packed_checkpoints_agree_with_their_config(method, block):
    architecture = build_architecture(config(quantization_config=block), RELEASE)
    fitted = fit_to_headers(architecture, quantised(method), block)
    assert fitted.notes == architecture.notes
    assert fitted.layers == architecture.layers


def test_a_padded_awq_checkpoint_is_said_and_planned_as_stored():
    """Qwen2.5-72B-Instruct-AWQ pads intermediate_size 29568 to 29696."""
    architecture = build_architecture(config(quantization_config=AWQ), RELEASE)
    fitted = fit_to_headers(architecture, quantised("awq", 640), AWQ)
    assert "mlp.down_proj is stored with [256, 640] where the config says [256, 512]" in "\n".join(
        fitted.notes
    )
    assert parameter_total(fitted) - parameter_total(architecture) == 2 * 3 * 128 * 256


def headers(tensors: list[TensorInfo]) -> CheckpointHeaders:
    return CheckpointHeaders(tuple(sorted(tensors, key=lambda t: t.name)), 1, "test headers")


def weights_of(model: ModelConfig) -> int:
    found = plan(model, gpu="L4", vllm_version="0.26.0", suggestions=False, max_model_len=1024)
    return sum(
        t.n_bytes for t in found.ranks[0].terms if t.component == "weights" and t.name != "allocator_rounding"
    )


@pytest.mark.parametrize(("method", "block"), [("awq", AWQ), ("gptq", GPTQ)])
def test_modules_that_the_checkpoint_leaves_unquantised_are_planned_so(method, block):
    """`maybe_update_config`, quantization/auto_awq.py:393-411 and auto_gptq.py:278-304 (0.26.0)."""
    model = config(torch_dtype="float16", quantization_config=block)
    whole = weights_of(with_headers(model, headers(quantised(method))))
    some = weights_of(with_headers(model, headers(quantised(method, plain=("layers.1.mlp.down_proj",)))))
    assert whole == weights_of(model)
    plain, packed = 256 * 512 * 2, 256 * 512 // 2
    assert 0.9 * (plain - packed) < some - whole < plain - packed


def test_a_set_that_the_config_gives_is_not_replaced():
    given = {**AWQ, "modules_to_not_convert": ["visual"]}
    model = with_headers(config(quantization_config=given), headers(quantised("awq")))
    assert (model.quantization or {})["modules_to_not_convert"] == ["visual"]


# common_broadcastable_dtype, utils/torch_utils.py:255-263 (0.26.0)
@pytest.mark.parametrize(
    ("dtypes", "name"),
    [
        (["BF16"], "bfloat16"), (["F16", "I32"], "float16"), (["BF16", "F32"], "float32"),
        (["BF16", "F8_E4M3"], "bfloat16"), (["I32"], "float32"),
    ],
)  # fmt: skip
def test_the_common_dtype_of_the_tensors(dtypes, name):
    assert common_dtype(dtypes) == name


def test_a_config_without_a_dtype_takes_it_from_the_tensors():
    tensors = [replace(t, dtype="F16") for t in checkpoint()]
    model = config(torch_dtype=None)
    found = plan(with_headers(model, headers(tensors)), gpu="L4", vllm_version="0.26.0", max_model_len=1024)
    assert found.engine.dtype == "float16"
    assert found.host.checkpoint_bytes == sum(t.n_bytes for t in tensors)
    assert found.host.checkpoint_bytes_source == "test headers"
