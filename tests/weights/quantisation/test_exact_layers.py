"""One-layer models of every method, parallel layout and GPU generation are vLLM's, to the byte."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from building import DATA, context
from vllm_capacity.context import RankContext
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import CapacityError
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.units import round_up
from vllm_capacity.weights.rank import rank_weights
from vllm_capacity.weights.terms import load_peak_bytes

GPUS = {
    "a100": ((8, 0), 108),
    "l40s": ((8, 9), 142),
    "h200": ((9, 0), 132),
    "b200": ((10, 0), 148),
    "rtx5090": ((12, 0), 170),
}
BUILT_SCALARS = 24 * 1024
"""Scalars and scales that exist only while loading and that the model leaves out, at most."""


@cache
def golden() -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads((DATA.parent / "quantised_layers.json").read_text())
    return data


def pairs(kind: str) -> Iterator[Any]:
    for case in golden()["cases"]:
        for gpu, expected in case["expect"].items():
            if kind in expected:
                yield pytest.param(case, gpu, expected, id=f"{gpu}-{case['name']}")


def rank_context(case: Mapping[str, Any], gpu: str) -> RankContext:
    block = case.get("block")
    root = {**golden()["models"][case["model"]], **case.get("changes", {})}
    if block:
        root["quantization_config"] = block
    config = normalise(case["name"], root, source="test data")
    capability, num_sms = GPUS[gpu]
    device = Device(
        name=gpu,
        cuda_total_bytes=1 << 37,
        nvml_total_bytes=1 << 37,
        compute_capability=capability,
        num_sms=num_sms,
    )
    others = dict(case.get("extra", {}))
    if (block or {}).get("quant_method") == "fbgemm_fp8":
        others["allow_deprecated_quantization"] = True
    return context(
        config,
        parallel=ParallelConfig(tp=case["tp"], expert_parallel=case.get("ep", False)),
        device=device,
        quantization=case.get("quantization") or (config.quantization or {}).get("quant_method"),
        args=EngineArgs(others=others),
        release="0.26.0",
    )


@pytest.mark.parametrize(("case", "gpu", "expected"), list(pairs("after")))
def test_bytes_after_loading_and_the_peak_before(case: Any, gpu: str, expected: Any) -> None:
    ctx = rank_context(case, gpu)
    weights = rank_weights(ctx)
    after = sum(group.count * round_up(group.tensor_bytes, 512) for group in weights.groups)
    built = sum(group.count * round_up(group.tensor_bytes, 512) for group in weights.built)
    peak, most = load_peak_bytes(ctx) + weights.n_bytes, expected["built"] + expected["peak"]

    assert after == expected["after"]
    assert abs(built - expected["built"]) <= BUILT_SCALARS
    assert most * 0.99 <= peak <= most * 1.25


@pytest.mark.parametrize(("case", "gpu", "expected"), list(pairs("tensors")))
def test_what_methods_that_quantise_while_loading_keep(case: Any, gpu: str, expected: Any) -> None:
    weights = rank_weights(rank_context(case, gpu))
    after = sum(group.count * round_up(group.tensor_bytes, 512) for group in weights.groups)

    assert abs(after - expected["tensors"]) <= BUILT_SCALARS


@pytest.mark.parametrize(("case", "gpu", "expected"), list(pairs("error")))
def test_what_vllm_refuses_is_not_planned(case: Any, gpu: str, expected: Any) -> None:
    del expected
    with pytest.raises(CapacityError):
        rank_weights(rank_context(case, gpu))
