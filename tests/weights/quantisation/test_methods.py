"""What the checkpoint's quantisation block says, by method: names, rules, lists, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from building import L40S, changed, context
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.weights.rank import RankWeights, rank_weights

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
GIB = 1 << 30
H100 = Device(name="NVIDIA H100 80GB HBM3", cuda_total_bytes=85031714816, nvml_total_bytes=85520809984,
              compute_capability=(9, 0), num_sms=132)  # fmt: skip
B200 = Device(name="NVIDIA B200", cuda_total_bytes=191503138816, nvml_total_bytes=192265846784,
              compute_capability=(10, 0), num_sms=148)  # fmt: skip

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def scheme(bits: int, kind: str, strategy: str, group: int | None = None, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group, "symmetric": True,
            "dynamic": False, **more}  # fmt: skip


def compressed(
    weights: Any, inputs: Any = None, *, targets: Any = ("Linear",), **more: Any
) -> dict[str, Any]:
    group = {"targets": list(targets), "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": group}, **more}  # fmt: skip


FP8_DYNAMIC = compressed(
    scheme(8, "float", "channel"), scheme(8, "float", "token", dynamic=True), format="float-quantized"
)


def weights_of(block: dict[str, Any] | None, *, name: str = LLAMA, quantization: str | None = None,
               fields: dict[str, Any] | None = None, **more: Any) -> RankWeights:  # fmt: skip
    config = changed(name, **(fields or {}), **({"quantization_config": block} if block else {}))
    method = quantization or (block or {}).get("quant_method")
    return rank_weights(context(config, quantization=method, **more))


def dtypes(weights: RankWeights, layer: int = 0) -> dict[str, str]:
    """Type of every weight of the section that holds `layer`."""
    section = next(s for s in weights.layers if layer in s.layer_indices)
    return {g.name.rsplit(".", 1)[0]: g.dtype for g in section.groups if g.name.endswith("weight")}


# -- ignore lists and targets ------------------------------------------------------------------------------


def test_a_fused_layer_is_ignored_by_the_names_of_its_shards() -> None:
    shards = [f"model.layers.0.self_attn.{s}_proj" for s in "qkv"]
    weights = weights_of({**FP8_DYNAMIC, "ignore": ["lm_head", *shards]})

    assert dtypes(weights, 0)["self_attn.qkv_proj"] == "bfloat16"
    assert dtypes(weights, 0)["self_attn.o_proj"] == "float8_e4m3fn"
    assert dtypes(weights, 1)["self_attn.qkv_proj"] == "float8_e4m3fn"


def test_half_a_fused_layer_on_the_ignore_list_is_refused() -> None:
    with pytest.raises(RefusedError, match="some but not all shards"):
        weights_of({**FP8_DYNAMIC, "ignore": ["model.layers.0.self_attn.q_proj"]})


def test_ignore_lists_know_regular_expressions() -> None:
    weights = weights_of(
        {**FP8_DYNAMIC, "ignore": ["lm_head", "re:.*self_attn.*", r"re:model\.layers\.[12]\..*"]}
    )

    assert dtypes(weights, 0)["self_attn.o_proj"] == "bfloat16"
    assert dtypes(weights, 0)["mlp.down_proj"] == "float8_e4m3fn"
    assert dtypes(weights, 2)["mlp.down_proj"] == "bfloat16"
    assert len(weights.layers) == 2


def test_modelopts_lists_know_wildcards() -> None:
    block = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "model.layers.0.mlp*"]}
    weights = weights_of(block)

    assert dtypes(weights, 0)["mlp.gate_up_proj"] == "bfloat16"
    assert dtypes(weights, 1)["mlp.gate_up_proj"] == "float8_e4m3fn"


def test_config_groups_may_mix_schemes_by_name() -> None:
    four = {"targets": ["re:.*mlp.*"], "weights": scheme(4, "int", "group", 128), "input_activations": None}
    eight = {"targets": ["re:.*self_attn.*"], "weights": scheme(8, "float", "channel"),
             "input_activations": scheme(8, "float", "token", dynamic=True)}  # fmt: skip
    block = {"quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": ["lm_head"],
             "config_groups": {"group_0": {**four, "format": "pack-quantized"},
                               "group_1": {**eight, "format": "float-quantized"}}}  # fmt: skip
    found = {g.name: g.dtype for s in weights_of(block).layers for g in s.groups}

    assert found["mlp.down_proj.weight_packed"] == "int32"
    assert found["self_attn.o_proj.weight"] == "float8_e4m3fn"


def test_gptqs_dynamic_rules_override_or_exclude() -> None:
    rules = {r"-:.*layers\.0\..*": {}, r"+:.*layers\.1\.mlp\..*": {"bits": 8}}
    weights = weights_of({**GPTQ, "dynamic": rules})

    def of(layer: int) -> dict[str, int]:
        section = next(s for s in weights.layers if layer in s.layer_indices)
        return {g.name: g.tensor_bytes for g in section.groups}

    assert of(0)["mlp.down_proj.weight"] == 4096 * 14336 * 2
    assert of(1)["mlp.down_proj.qweight"] == 4096 * 14336
    assert (
        of(2)["mlp.down_proj.qweight"]
        == of(1)["self_attn.o_proj.qweight"] * 14336 // 4096
        == 4096 * 14336 // 2
    )


def test_a_quantised_head() -> None:
    whole = {g.name: g.tensor_bytes for g in weights_of({**GPTQ, "lm_head": True}).groups}
    assert whole["lm_head.qweight"] == 128256 * 4096 // 2


# -- where the block lives, and other traps of published checkpoints ------------------------------------------


def test_hf_quant_config_alone_quantises_the_model_and_its_cache() -> None:
    inner = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    root = dict(changed(LLAMA).root)
    config = normalise(
        LLAMA, root, quantization={"producer": {"name": "modelopt"}, "quantization": inner}, source="x"
    )
    assert config.quantization is not None

    weights = rank_weights(context(config, quantization="modelopt"))
    assert dtypes(weights)["self_attn.qkv_proj"] == "float8_e4m3fn"


def test_mixed_precision_takes_the_algorithm_of_each_layer() -> None:
    layers = {f"model.layers.{i}.mlp.{p}_proj": {"quant_algo": "NVFP4", "group_size": 16}
              for i in range(32) for p in ("gate", "up", "down")}  # fmt: skip
    layers |= {f"model.layers.{i}.self_attn.o_proj": {"quant_algo": "FP8"} for i in range(32)}
    block = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
        "ignore": [],
    }
    found = dtypes(weights_of(block, quantization="modelopt_mixed", device=B200))

    assert (found["self_attn.qkv_proj"], found["self_attn.o_proj"], found["mlp.down_proj"]) == (
        "bfloat16", "float8_e4m3fn", "uint8",
    )  # fmt: skip


def test_groups_must_divide_a_ranks_inputs_unless_the_checkpoint_pads_them() -> None:
    # Qwen2.5-72B's AWQ checkpoint has 29696 columns where the bf16 one has 29568: at tp8 only the former divides by 128
    fields = {"hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 2}
    eight = ParallelConfig(tp=8)
    assert weights_of(AWQ, fields={**fields, "intermediate_size": 29696}, parallel=eight).n_bytes
    with pytest.raises(RefusedError, match="not aligned with the quantized weight shape") as found:
        weights_of(AWQ, fields={**fields, "intermediate_size": 29568}, parallel=eight)
    assert found.value.reason is Reason.INVALID_LAYOUT


# -- choice of kernels by device ------------------------------------------------------------------------------


def test_fp8_without_fp8_units_is_repacked_for_marlin() -> None:
    a100 = Device(name="NVIDIA A100", cuda_total_bytes=85100068864, nvml_total_bytes=85899345920,
                  compute_capability=(8, 0), num_sms=108)  # fmt: skip
    assert dtypes(weights_of(FP8, device=a100))["mlp.down_proj"] == "int32"
    assert dtypes(weights_of(FP8, device=L40S))["mlp.down_proj"] == "float8_e4m3fn"


def test_disabling_machete_leaves_marlin() -> None:
    hopper = {g.name: g.shape for g in weights_of({**GPTQ, "desc_act": True}).groups}
    forced = {g.name: g.shape for g in weights_of({**GPTQ, "desc_act": True}, device=L40S).groups}
    assert hopper != forced


# -- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "release", "message"),
    [
        ("gguf", "0.26.0", "last release that had it was 0.23.0"),
        ("bitsandbytes", "0.33.0", "last release that had it was 0.27.1"),
        ("fp8_per_block", "0.19.1", "first release that has it is 0.20.0"),
        ("fp8_per_channel", "0.23.0", "first release that has it is 0.24.0"),
        ("ptpc_fp8", "0.26.0", "Unknown quantization method: ptpc_fp8"),
        ("hqq", "0.26.0", "Unknown quantization method: hqq"),
    ],
)
def test_methods_that_the_release_does_not_have(method: str, release: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message) as found:
        weights_of(None, quantization=method, release=release)
    assert found.value.reason is Reason.UNSUPPORTED_BY_RELEASE


def test_deprecated_methods_need_their_flag() -> None:
    block = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}
    with pytest.raises(RefusedError, match="deprecated"):
        weights_of(block)
    allowed = EngineArgs(others={"allow_deprecated_quantization": True})
    assert dtypes(weights_of(block, args=allowed))["mlp.down_proj"] == "float8_e4m3fn"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({**GPTQ, "sym": False}, "bits=4, sym=False"),
        ({**GPTQ, "bits": 3}, "bits=3"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "Marlin's own format"),
        ({**AWQ, "bits": 8}, "4|bits"),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, "default"),
    ],
)
def test_checkpoints_that_vllm_refuses(block: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        weights_of(block)


def test_what_cannot_be_derived_is_named_rather_than_guessed() -> None:
    with pytest.raises(InputError, match="spqr"):
        weights_of(None, quantization="spqr")
    odd = compressed(scheme(5, "int", "group", 128))
    with pytest.raises((InputError, RefusedError), match="5"):
        weights_of(odd)


# -- published starts of 0.19.0 and later --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "more", "gib"),
    [
        (None, {"quantization": "fp8"}, 8.49),
        (compressed(scheme(8, "int", "channel"), scheme(8, "int", "token", dynamic=True), format="int-quantized"),
         {"dtype": "float16"}, 8.49),
    ],
)  # fmt: skip
def test_published_weights_of_llama_8b_on_h100(block: Any, more: dict[str, Any], gib: float) -> None:
    weights = weights_of(block, device=H100, release="0.19.0", **more)
    assert weights.n_bytes / GIB == pytest.approx(gib, abs=0.006)


@pytest.mark.parametrize(("tp", "gib"), [(2, 33.88), (4, 16.96)])
def test_published_weights_of_llama_70b_fp8(tp: int, gib: float) -> None:
    fields = {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    }
    weights = weights_of(
        FP8_DYNAMIC, fields=fields, device=H100, release="0.19.0", parallel=ParallelConfig(tp=tp)
    )
    assert weights.n_bytes / GIB == pytest.approx(gib, abs=0.006)
