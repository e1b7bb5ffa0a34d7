"""Buffers of expert parallelism: DeepEP's sizes by its own layout, EPLB's tensors by vLLM's shapes."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_capacity import plan
from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.errors import InputError
from vllm_capacity.ledger import MemoryTerm
from vllm_capacity.units import MIB

DEEPSEEK = "deepseek-ai/DeepSeek-V3"


def planned(model: str = DEEPSEEK, **flags: Any) -> Plan | RefusedPlan:
    given = {"data_parallel_size": 16, "enable_expert_parallel": True, **flags}
    return plan(model, gpu="H200", vllm_version="0.26.0", suggestions=False, **given)


def named(found: Plan | RefusedPlan, name: str) -> MemoryTerm:
    assert isinstance(found, Plan)
    return next(t for t in found.ranks[0].terms if t.name == name)


def test_by_default_tokens_are_exchanged_by_collectives():
    assert named(planned(), "all2all_buffers").n_bytes == 0


def test_a_dense_model_has_no_such_buffers():
    found = plan("meta-llama/Llama-3.1-8B-Instruct", gpu="H200", vllm_version="0.26.0", suggestions=False)
    assert isinstance(found, Plan)
    assert not [t for t in found.ranks[0].terms if t.name == "all2all_buffers"]


def test_high_throughput_buffers_are_those_of_the_variable():
    """DeepEPHTAll2AllManager._make_all2all_kwargs: NVLink bytes, and as many for RDMA between nodes; DeepEP's workspace."""
    one = planned(data_parallel_size=8, all2all_backend="deepep_high_throughput")
    assert named(one, "all2all_buffers").n_bytes == (1024 + 32) * MIB
    two = planned(all2all_backend="deepep_high_throughput", environment={"VLLM_DEEPEP_BUFFER_SIZE_MB": "512"})
    assert named(two, "all2all_buffers").n_bytes == (2 * 512 + 32) * MIB


def test_low_latency_buffers_hold_every_expert_s_tokens_twice():
    """LowLatencyLayout, DeepEP csrc/config.hpp, with 256 tokens, hidden size 7168 and 288 experts: messages of
    14,352 bytes to dispatch (int4 and bf16) and 14,560 to combine (bf16 and 56 bfloat162)."""
    found = named(
        planned(
            all2all_backend="deepep_low_latency", max_num_batched_tokens=256, enable_eplb=True,
            eplb_config={"num_redundant_experts": 32},
        ),
        "all2all_buffers",
    )  # fmt: skip
    assert found.low == 2 * 288 * 256 * 14560 + 2 * 288 * 256 * 14560
    assert found.low < found.n_bytes < found.high


def test_eplb_keeps_maps_and_a_copy_of_one_layer_s_experts():
    """EplbState.add_model: 58 MoE layers, 256 logical and 288 physical experts, 1,024 slots, a window of 1,000 steps."""
    flags = {"enable_eplb": True, "eplb_config": {"num_redundant_experts": 32}}
    with_it, without = planned(**flags), planned()
    assert named(with_it, "eplb_maps").n_bytes == 58 * (
        8 * 288 + 8 * 256 * 1024 + 8 * 256 + 4 * 288 + 1000 * 4 * 288
    )
    # fp8 experts of 3 x 7168 x 2048 with a float32 scale per 128 x 128 block; 288 of them over 16 ranks
    assert named(with_it, "eplb_expert_buffer").n_bytes == 18 * 3 * (7168 * 2048 + 56 * 16 * 4)
    experts = [named(found, "experts").n_bytes for found in (with_it, without)]
    assert experts[0] * 16 == experts[1] * 18


def test_backends_that_are_not_modelled_say_so_where_they_are_used():
    with pytest.raises(InputError, match="nixl_ep: its buffers are not modelled"):
        planned(all2all_backend="nixl_ep")
    assert named(planned(all2all_backend="nixl_ep", allow_unmodelled=True), "all2all_buffers").high > 0
    assert named(planned(data_parallel_size=1, tensor_parallel_size=16, all2all_backend="nixl_ep"),
                 "all2all_buffers").n_bytes == 0  # fmt: skip


def test_dual_batch_overlap_needs_a_backend_that_overlaps():
    """`VllmConfig.__post_init__`, config/vllm.py (0.26.0)."""
    refused = planned(enable_dbo=True)
    assert isinstance(refused, RefusedPlan)
    assert "Microbatching currently only supports the deepep_low_latency" in refused.verdict.message
    assert isinstance(planned(enable_dbo=True, all2all_backend="deepep_low_latency"), Plan)


def test_dual_batch_overlap_has_a_workspace_per_half_batch():
    """init_workspace_manager(device, num_ubatches=2), v1/worker/gpu_worker.py: each half profiles its own tokens."""
    flags = {"all2all_backend": "deepep_high_throughput", "max_num_batched_tokens": 8192}
    found = planned(**flags, enable_dbo=True)
    term = named(found, "moe_workspace")
    assert "2 workspaces" in term.note
    assert term.n_bytes == named(planned(**flags), "moe_workspace").n_bytes
