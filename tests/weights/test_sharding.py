"""Shapes of one rank, by hand from vLLM's layers (model_executor/layers/linear.py, fused_moe, vocab_parallel_embedding.py; 0.26.0
and, for Kimi K3 and MiniMax-M3, 0.33.0).
"""

from __future__ import annotations

import pytest
from vllm_capacity.architecture.modules import Experts, Linear, QkvLinear, Shard
from vllm_capacity.errors import RefusedError
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.weights.sharding import (
    SINGLE,
    Layout,
    group_share,
    kv_heads_per_rank,
    local_experts,
    shard_experts,
    shard_linear,
    shard_qkv,
)

TWO = Layout(ParallelConfig(tp=2))
SEQUENCE_PARALLEL = "deepep_low_latency"


def test_rows_and_columns_are_divided_and_the_whole_sizes_remembered() -> None:
    gate_up = shard_linear(Linear(name="a", inputs=64, outputs=(96, 32), shard=Shard.COLUMN, bias=True), TWO)
    assert (gate_up.inputs, gate_up.outputs, gate_up.bias) == (64, (48, 16), 64)
    assert (gate_up.full_inputs, gate_up.full_outputs, gate_up.tp, gate_up.input_divided) == (
        64,
        128,
        2,
        False,
    )
    down = shard_linear(Linear(name="a", inputs=64, outputs=(96,), shard=Shard.ROW), TWO)
    assert (down.inputs, down.outputs, down.full_inputs, down.input_divided) == (32, (96,), 64, True)
    gate = shard_linear(Linear(name="a", inputs=64, outputs=(8,), shard=Shard.REPLICATED), TWO)
    assert (gate.inputs, gate.outputs, gate.tp) == (64, (8,), 1)


@pytest.mark.parametrize(("rows", "padding"), [(20, (12,)), (32, ()), (17, (15,))])
def test_a_rank_s_rows_are_rounded_up_by_a_slice_of_their_own(rows: int, padding: tuple[int, ...]) -> None:
    one = Linear(name="a", inputs=64, outputs=(rows,), shard=Shard.REPLICATED, pad_rows_to=16)
    assert shard_linear(one, TWO).outputs == (rows, *padding)


def test_kv_heads_are_divided_or_replicated() -> None:
    assert [kv_heads_per_rank(8, tp) for tp in (1, 2, 4, 8, 16, 32)] == [8, 4, 2, 1, 1, 1]
    with pytest.raises(RefusedError, match="12 is not divisible by 8"):
        kv_heads_per_rank(8, 12)
    with pytest.raises(RefusedError, match="6 is not divisible by 4"):
        kv_heads_per_rank(6, 4)


def test_queries_keys_and_values_of_different_sizes() -> None:
    qkv = QkvLinear(
        name="qkv", inputs=512, num_heads=16, num_kv_heads=4, head_size=48, head_size_v=32, bias=True
    )
    local = shard_qkv(qkv, TWO)
    assert local.outputs == (8 * 48, 2 * 48, 2 * 32)
    assert local.bias == sum(local.outputs)
    assert local.full_outputs == 16 * 48 + 4 * 48 + 4 * 32
    assert (local.inputs, local.full_inputs, local.tp) == (512, 512, 2)


def test_the_indexer_of_minimax_m3_has_a_query_per_kv_head_and_one_key_on_every_rank() -> None:
    qkv = QkvLinear(
        name="qkv", inputs=512, num_heads=16, num_kv_heads=4, head_size=48, head_size_v=48, index_size=128
    )
    local = shard_qkv(qkv, TWO)
    assert local.outputs == (8 * 48, 2 * 48, 2 * 48, 2 * 128, 128)
    assert local.full_outputs == 16 * 48 + 4 * 96 + (4 + 1) * 128


def test_groups_of_a_state_space_layer() -> None:
    assert repr(group_share("B", 1024, 8, 4)) == "256"  # bytes and shapes are integers
    assert group_share("B", 128, 1, 4) == 128
    with pytest.raises(RefusedError, match="num_groups must equal 1"):
        group_share("B", 384, 3, 2)


def test_experts_are_divided_whole_or_each() -> None:
    experts = Experts(name="experts", num_experts=10, hidden_size=64, intermediate_size=96)
    each = shard_experts(experts, TWO)
    assert (each.num_experts, each.intermediate_size, each.expert_tp, each.expert_parallel) == (
        10,
        48,
        2,
        False,
    )
    whole = shard_experts(experts, Layout(ParallelConfig(tp=2, expert_parallel=True), ep_rank=0))
    assert (whole.num_experts, whole.intermediate_size, whole.expert_tp, whole.expert_parallel) == (
        5,
        96,
        1,
        True,
    )
    assert shard_experts(experts, SINGLE).expert_parallel is False
    four = ParallelConfig(tp=2, dp=2, expert_parallel=True)
    assert [local_experts(10, Layout(four, ep_rank=rank)) for rank in range(4)] == [3, 3, 2, 2]
    assert [local_experts(10, Layout(four, ep_rank=rank, redundant_experts=2)) for rank in range(4)] == [
        3,
        3,
        3,
        3,
    ]


@pytest.mark.parametrize(
    ("parallel", "backend", "whole"),
    [
        (ParallelConfig(tp=2, dp=2, expert_parallel=True), SEQUENCE_PARALLEL, True),
        (ParallelConfig(tp=1, dp=2, expert_parallel=True), SEQUENCE_PARALLEL, False),
        (ParallelConfig(tp=2, dp=1, expert_parallel=True), SEQUENCE_PARALLEL, False),
        (ParallelConfig(tp=2, dp=2), SEQUENCE_PARALLEL, False),
        (ParallelConfig(tp=2, dp=2, expert_parallel=True), "naive", False),
    ],
)
def test_shared_experts_are_whole_only_under_sequence_parallel_moe(
    parallel: ParallelConfig, backend: str, whole: bool
) -> None:
    """`ParallelConfig.use_sequence_parallel_moe`, config/parallel.py (0.26.0)."""
    layout = Layout(parallel, all2all_backend=backend)
    assert layout.sequence_parallel_moe is whole
    shared = Linear(name="a", inputs=64, outputs=(96,), shard=Shard.COLUMN, whole_if_sequence_parallel=True)
    assert shard_linear(shared, layout).outputs == ((96,) if whole else (96 // parallel.tp,))
