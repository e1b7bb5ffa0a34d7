"""The backend that vLLM selects, its kernel blocks, and its errors.

`tests/data/kv_planner/backends.jsonl`: answers of `_get_backend_priorities` and of each backend class's
`validate_configuration` and `get_supported_kernel_block_sizes`, executed from the named release's sources
with a stand-in for the device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.architecture.modules import Attention, Indexer, MultiHeadLatentAttention
from vllm_capacity.attention_backends import layer_backends
from vllm_capacity.device import Device
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.releases import get_release

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/kv_planner/backends.jsonl").read_text().splitlines()
]


def device(major: int, minor: int) -> Device:
    return Device(
        name="gpu", cuda_total_bytes=1, nvml_total_bytes=1, compute_capability=(major, minor), num_sms=1
    )


def mixer_of(query: dict[str, Any]) -> Attention | MultiHeadLatentAttention:
    if query.get("mla"):
        return MultiHeadLatentAttention(
            num_heads=query["heads"],
            q_lora_rank=None,
            kv_lora_rank=query["lora"],
            qk_nope_head_dim=query["nope"],
            qk_rope_head_dim=query.get("rope", 0),
            v_head_dim=query["v"],
            indexer=Indexer(num_heads=64, head_size=128, top_k=query["topk"]) if "topk" in query else None,
        )
    return Attention(
        num_heads=query["heads"],
        num_kv_heads=query["kvh"],
        head_size=query["head"],
        head_size_v=query["head"],
        sliding_window=1024 if query.get("win") else None,
        has_sinks=query.get("sink", False),
    )


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case['release']}" for i, case in enumerate(CASES)])
def test_selection_equals_vllms(case: dict[str, Any]) -> None:
    query = case["query"]

    def select() -> Any:
        return layer_backends(
            mixer_of(query),
            query["kv"],
            query["dtype"],
            device(*case["capability"]),
            get_release(case["release"]),
            block_size=query.get("bs"),
            mm_prefix=query.get("mm", False),
        )[-1]

    if case["backend"] is None:
        with pytest.raises(RefusedError, match="No valid attention backend found"):
            select()
        return
    backend = select()
    assert backend.name == case["backend"]
    assert list(backend.kernel_block_sizes) == case["blocks"]
    assert backend.takes_multiples == case["multiples"]


PLAIN = Attention(num_heads=32, num_kv_heads=8, head_size=128, head_size_v=128)
RELEASE = get_release("0.26.0")


@pytest.mark.parametrize(
    ("capability", "version"), [((8, 0), 2), ((8, 9), 2), ((9, 0), 3), ((10, 0), 4), ((12, 0), 2)]
)
def test_flash_attention_version_by_device(capability: tuple[int, int], version: int) -> None:
    """`get_flash_attn_version`: 3 on Hopper, 4 on SM10x, else 2."""
    (backend,) = layer_backends(
        PLAIN, "auto", "bfloat16", device(*capability), RELEASE, requested="FLASH_ATTN"
    )
    assert backend.fa_version == version


def test_an_invalid_request_is_refused_with_vllms_sentence() -> None:
    with pytest.raises(RefusedError) as caught:
        layer_backends(PLAIN, "fp8", "bfloat16", device(8, 0), RELEASE, requested="FLASH_ATTN")
    assert caught.value.reason is Reason.UNSUPPORTED_BY_RELEASE
    assert str(caught.value) == (
        "Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. "
        "Reason: ['kv_cache_dtype not supported']"
    )


def test_an_unknown_backend_is_an_input_error_that_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"NOT_A_BACKEND is not modelled; choose one of CUTLASS_MLA"):
        layer_backends(PLAIN, "auto", "bfloat16", device(9, 0), RELEASE, requested="NOT_A_BACKEND")


def test_heads_per_rank_choose_among_sparse_backends() -> None:
    """128 heads: FLASHMLA_SPARSE on one SM10x rank, FLASHINFER_MLA_SPARSE with 16 per rank
    (cuda.py:100-118).
    """
    query = {"heads": 128, "lora": 512, "nope": 128, "rope": 64, "v": 128, "topk": 2048, "mla": True}
    names = [
        layer_backends(
            mixer_of(query), "auto", "bfloat16", device(10, 0), RELEASE, parallel=ParallelConfig(tp=tp)
        )[-1].name
        for tp in (1, 8)
    ]
    assert names == ["FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE"]
