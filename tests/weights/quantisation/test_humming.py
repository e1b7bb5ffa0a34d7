"""What vLLM runs on Humming kernels on Hopper, and what that stores and works on.

Weights and peaks are those of vLLM 0.33.0's own worker on tensors without storage (`dry-run`, docs/dry-run.md): eager, H200,
16,384 tokens of 64 sequences, models cut to three layers. Weights are tensors as they are, without what the allocator rounds
up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity import plan
from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.budget import Account
from vllm_capacity.inputs.catalogue import entries

EXPERTS, DENSE = "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
FP4_INPUTS = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "dynamic": "local",
}

FP8_TOKEN = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
FP8_TENSOR = FP8_TOKEN | {"strategy": "tensor", "dynamic": False}


def compressed(
    bits: int,
    group: int | None,
    *,
    kind: str = "int",
    form: str = "pack-quantized",
    strategy: str = "",
    inputs: object = None,
    **more: object,
) -> dict[str, Any]:
    weights = {
        "num_bits": bits, "type": kind, "symmetric": True, "group_size": group, "dynamic": False,
        "strategy": strategy or ("group" if group else "channel"), **more,
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head", "re:.*mlp.gate$"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
    }  # fmt: skip


def nvfp4(inputs: object) -> dict[str, Any]:
    return compressed(
        4, 16, kind="float", form="nvfp4-pack-quantized", strategy="tensor_group", inputs=inputs
    )


def modelopt(algorithm: str) -> dict[str, Any]:
    return {
        "quant_method": "modelopt", "quant_algo": algorithm, "kv_cache_quant_algo": None, "group_size": 16,
        "producer": {"name": "modelopt"}, "exclude_modules": ["lm_head", "*mlp.gate"], "ignore": ["lm_head", "*mlp.gate"],
    }  # fmt: skip


MXFP4 = compressed(4, 32, kind="float", form="mxfp4-pack-quantized")


def answer(
    folder: Path,
    model: str,
    block: Mapping[str, Any] | None,
    release: str = "0.33.0",
    gpu: str = "H200",
    **flags: Any,
) -> Plan | RefusedPlan:
    """`model` of the catalogue with three layers and another quantisation block."""
    config = next(dict(entry.config) for entry in entries() if entry.model_id == model)
    quantised = {} if block is None else {"quantization_config": block}
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3} | quantised))
    given: dict[str, Any] = {
        "enforce_eager": True, "max_model_len": 8192, "max_num_batched_tokens": 16384, "max_num_seqs": 64,
    }  # fmt: skip
    return plan(str(folder), gpu=gpu, vllm_version=release, **(given | flags))


def planned(
    folder: Path, model: str, block: Mapping[str, Any] | None, release: str = "0.33.0", **more: Any
) -> Plan:
    found = answer(folder, model, block, release, **more)
    assert isinstance(found, Plan)
    return found


def weights_of(found: Plan) -> int:
    rank = found.ranks[0]
    rounding = next(t.n_bytes for t in rank.terms if t.name == "allocator_rounding")
    return rank.budget.totals[Account.WEIGHTS] - rounding


def workspace(found: Plan) -> int:
    return next(t.n_bytes for t in found.ranks[0].terms if t.name == "moe_workspace")


@pytest.mark.parametrize(
    ("model", "block", "weights", "peak"),
    [
        pytest.param(EXPERTS, compressed(4, 128), 2_220_238_888, 1_392_510_976, id="experts-w4a16"),
        pytest.param(EXPERTS, compressed(4, 32), 2_307_853_000, 1_392_510_976, id="experts-w4a16-group-32"),
        pytest.param(EXPERTS, compressed(8, 128), 3_154_520_104, 1_392_510_976, id="experts-w8a16"),
        pytest.param(EXPERTS, GPTQ, 2_219_295_664, 1_392_510_976, id="experts-gptq"),
        pytest.param(EXPERTS, GPTQ | {"bits": 8}, 3_154_194_352, 1_392_510_976, id="experts-gptq-8"),
        pytest.param(EXPERTS, AWQ, 2_227_046_320, 1_392_510_976, id="experts-awq"),
        pytest.param(EXPERTS, nvfp4(FP4_INPUTS), 2_307_856_096, 1_392_510_976, id="experts-nvfp4"),
        pytest.param(EXPERTS, nvfp4(None), 2_307_856_096, 1_392_510_976, id="experts-nvfp4-a16"),
        pytest.param(EXPERTS, modelopt("NVFP4"), 2_307_856_096, 1_392_510_976, id="experts-modelopt-nvfp4"),
        pytest.param(EXPERTS, modelopt("MXFP8"), 3_183_741_640, 1_392_510_976, id="experts-mxfp8"),
        pytest.param(DENSE, compressed(4, 128), 2_798_315_272, 1_744_832_512, id="machete-w4a16"),
        pytest.param(DENSE, compressed(4, 32), 2_825_497_672, 1_744_832_512, id="w4a16-group-32"),
        pytest.param(DENSE, GPTQ, 2_800_576_048, 1_744_832_512, id="machete-gptq"),
        pytest.param(DENSE, AWQ, 2_807_359_024, 1_744_832_512, id="machete-awq"),
        pytest.param(DENSE, nvfp4(FP4_INPUTS), 2_825_497_720, 1_744_832_512, id="nvfp4"),
        pytest.param(DENSE, nvfp4(None), 2_825_497_720, 1_744_832_512, id="nvfp4-a16"),
        pytest.param(DENSE, modelopt("NVFP4"), 2_825_497_720, 1_744_832_512, id="modelopt-nvfp4"),
        pytest.param(DENSE, modelopt("MXFP8"), 3_096_816_712, 1_744_832_512, id="mxfp8"),
        pytest.param(
            DENSE, compressed(8, None, kind="float", form="naive-quantized"), 3_078_962_248, 1_744_832_512, id="w8a16-fp8"
        ),
    ],
)  # fmt: skip
def test_weights_and_peak_are_vllms(
    tmp_path: Path, model: str, block: Mapping[str, Any], weights: int, peak: int
) -> None:
    found = planned(tmp_path, model, block)
    assert (weights_of(found), found.ranks[0].activation.n_bytes) == (weights, peak)


@pytest.mark.parametrize(
    ("block", "weights", "marlins"),
    [
        pytest.param(compressed(4, 128, symmetric=False), 2_228_191_912, True, id="zero-points-in-groups-of-128"),
        pytest.param(MXFP4, 2_249_447_776, True, id="mxfp4"),
    ],
)  # fmt: skip
def test_experts_that_stay_on_marlin(
    tmp_path: Path, block: Mapping[str, Any], weights: int, marlins: bool
) -> None:
    """Their linear layers run on Machete or Humming. vLLM 0.33.0 asks 2 x 16,384 tokens x 8 experts x 2,048 bf16 values."""
    found = planned(tmp_path, EXPERTS, block)
    assert weights_of(found) == weights
    assert (workspace(found) == 2 * 16384 * 8 * 2048 * 2) is marlins


@pytest.mark.parametrize("block", [compressed(4, 128), GPTQ, AWQ, nvfp4(FP4_INPUTS), modelopt("MXFP8")])
def test_hopper_alone_and_only_since_0_32(tmp_path: Path, block: Mapping[str, Any]) -> None:
    """Humming's first buffer holds 768 values for each token and expert, Marlin's 2,048."""
    both = 16384 * 8 * 2048 * 2
    assert workspace(planned(tmp_path, EXPERTS, block, "0.31.0")) == 2 * both
    assert workspace(planned(tmp_path, EXPERTS, block, "0.32.0")) == both + 16384 * 8 * 768 * 2
    assert workspace(planned(tmp_path, EXPERTS, block, moe_backend="marlin")) == 2 * both
    assert workspace(planned(tmp_path, EXPERTS, block, gpu="L40S")) == 2 * both


@pytest.mark.parametrize("block", [GPTQ | {"desc_act": True}, compressed(4, 128, actorder="group")])
def test_act_order_is_refused_since_0_30(tmp_path: Path, block: Mapping[str, Any]) -> None:
    """vLLM 0.33.0 says so before it builds anything."""
    assert isinstance(answer(tmp_path, DENSE, block, "0.29.0"), Plan)
    found = answer(tmp_path, DENSE, block, "0.30.0")
    assert isinstance(found, RefusedPlan)
    assert "activation ordering" in found.verdict.message


def test_channel_wise_experts_stop_vllm(tmp_path: Path) -> None:
    found = answer(tmp_path, EXPERTS, compressed(4, None))
    assert isinstance(found, RefusedPlan)
    assert 'strategy == "group"' in found.verdict.message


def test_locks_of_a_layer_followed_the_gpu_since_0_32(tmp_path: Path) -> None:
    """1,024 before; 8 a multiprocessor, of which an H200 has 132: 12 kernels of three layers."""
    block = compressed(8, None, kind="float", form="naive-quantized")
    sizes = [weights_of(planned(tmp_path, DENSE, block, release)) for release in ("0.31.0", "0.32.0")]
    assert sizes[1] - sizes[0] == 12 * (132 * 8 - 1024) * 4


@pytest.mark.parametrize(
    ("model", "block", "flags", "peak"),
    [
        pytest.param(
            EXPERTS, {"quant_method": "fp8", "activation_scheme": "static"}, {}, 788_531_200, id="static-inputs-flashinfer"
        ),
        pytest.param(
            EXPERTS, compressed(8, None, kind="float", form="float-quantized", strategy="tensor", inputs=FP8_TENSOR), {},
            788_531_200, id="compressed-tensors-static-inputs-flashinfer",
        ),
        pytest.param(EXPERTS, modelopt("FP8"), {}, 788_531_200, id="modelopt-flashinfer"),
        pytest.param(EXPERTS, None, {"quantization": "fp8"}, 1_795_229_696, id="online-on-triton"),
        pytest.param(
            DENSE, compressed(8, None, kind="float", form="float-quantized", inputs=FP8_TOKEN), {}, 1_946_224_640,
            id="dense-input-of-the-down-projection",
        ),
        pytest.param(
            EXPERTS, None, {"tensor_parallel_size": 2, "enable_expert_parallel": True}, 1_568_671_744, id="sum-over-ranks"
        ),
        pytest.param(EXPERTS, AWQ, {"tensor_parallel_size": 4}, 985_663_488, id="moe-wna16-on-humming"),
        pytest.param(EXPERTS, AWQ, {"tensor_parallel_size": 8}, 939_526_144, id="outputs-of-experts"),
        pytest.param(EXPERTS, MXFP4, {}, 1_795_232_256, id="mxfp4-layers-read-8-bit-inputs"),
    ],
)  # fmt: skip
def test_eager_peaks_of_other_kernels_are_vllms(
    tmp_path: Path, model: str, block: Mapping[str, Any] | None, flags: dict[str, Any], peak: int
) -> None:
    """Marlin's workspace, which all layers share, is not counted: 2,560 bytes."""
    found = planned(tmp_path, model, block, **flags)
    marlins = 2560 if block is MXFP4 else 0
    assert peak - found.ranks[0].activation.n_bytes == marlins


@pytest.mark.parametrize(
    ("model", "cut", "tp", "weights", "peak"),
    [
        pytest.param("moonshotai/Kimi-K2.5", {"text_config": {"num_hidden_layers": 3}}, 8, 3_320_046_896, 3_758_098_432),
        pytest.param(
            "nvidia/Kimi-K2.5-NVFP4", {"text_config": {"num_hidden_layers": 3}}, 8, 3_233_030_240, 3_758_098_432
        ),
        pytest.param("nvidia/DeepSeek-V3.1-NVFP4", {"num_hidden_layers": 5}, 8, 2_448_959_796, 3_758_098_432),
        pytest.param("nvidia/Qwen3-235B-A22B-NVFP4", {"num_hidden_layers": 3}, 4, 1_685_358_304, 1_958_742_016),
        pytest.param("deepseek-ai/DeepSeek-V3", {"num_hidden_layers": 5}, 8, 3_695_937_904, 5_402_265_600),
    ],
)  # fmt: skip
def test_large_models_of_the_catalogue(
    model: str, cut: dict[str, Any], tp: int, weights: int, peak: int
) -> None:
    found = plan(
        model, gpu="H200", vllm_version="0.33.0", enforce_eager=True, max_model_len=8192, max_num_batched_tokens=16384,
        max_num_seqs=64, hf_overrides=cut, tensor_parallel_size=tp, language_model_only="text_config" in cut,
    )  # fmt: skip
    assert isinstance(found, Plan)
    assert (weights_of(found), found.ranks[0].activation.n_bytes) == (weights, peak)


@pytest.mark.parametrize(("tp", "weights"), [(4, 655_214_512), (8, 345_294_768)])
def test_experts_that_marlin_would_not_take(tmp_path: Path, tp: int, weights: int) -> None:
    """Widths of 192 and 96 in groups of 128: MoeWNA16Method in groups of 64 and 32, whose tensors Humming lays out."""
    assert weights_of(planned(tmp_path, EXPERTS, AWQ, tensor_parallel_size=tp)) == weights
