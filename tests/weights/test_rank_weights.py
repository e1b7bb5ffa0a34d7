"""A rank's tensors are vLLM's, to the byte."""

from __future__ import annotations

import time
from typing import Any

import pytest
from building import case_context, changed, context, exact, exact_ranks, model
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.models import load_model
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.units import round_up
from vllm_capacity.weights.model import layout_of, method_of
from vllm_capacity.weights.rank import parameter_total, rank_weights, whole_weights

RANKS = list(exact_ranks())
QWEN_MOE = "Qwen/Qwen3-30B-A3B"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(("case", "rank", "first"), [r[1:] for r in RANKS], ids=[r[0] for r in RANKS])
def test_bytes_and_parameters_are_those_of_vllms_classes(case: Any, rank: Any, first: bool) -> None:
    weights = rank_weights(case_context(case, rank["rank"]), rank["rank"])
    rounded = sum(group.count * round_up(group.tensor_bytes, 512) for group in weights.groups)

    assert weights.parameters_on_rank == rank["parameters_numel"]
    assert (rounded if first else weights.n_bytes) == rank["weights_bytes"]


@pytest.mark.parametrize(("name", "published"), exact()["published_parameters"].items())
def test_parameters_are_the_published_count(name: str, published: int) -> None:
    assert parameter_total(context(model(name)).architecture) == published


@pytest.mark.parametrize("name", [LLAMA, QWEN_MOE])
def test_the_groups_of_one_rank_stand_for_all_parameters(name: str) -> None:
    """Buffers (rope caches, ALiBi slopes) and scales stand for none."""
    ctx = context(model(name))
    assert sum(group.logical for group in rank_weights(ctx).groups) == parameter_total(ctx.architecture)


def test_kv_heads_are_replicated_when_there_are_fewer_than_ranks() -> None:
    # 8 KV heads of 128: at tp16 each rank holds 2 query heads and one copy of a KV head (linear.py:1003-1015)
    weights = rank_weights(context(model(LLAMA), parallel=ParallelConfig(tp=16)))
    qkv = next(group for group in weights.groups if group.name == "self_attn.qkv_proj.weight")
    assert qkv.shape == ((2 + 1 + 1) * 128, 4096)


def test_a_row_parallel_bias_is_whole_on_every_rank() -> None:
    config = changed(LLAMA, attention_bias=True, mlp_bias=True)
    shapes = {g.name: g.shape for g in rank_weights(context(config, parallel=ParallelConfig(tp=4))).groups}
    assert shapes["self_attn.o_proj.bias"] == (4096,)
    assert shapes["mlp.down_proj.bias"] == (4096,)
    assert shapes["mlp.gate_up_proj.bias"] == (2 * 14336 // 4,)


def test_qkv_bias_overrides_attention_bias_for_qkv_only() -> None:
    # models/llama.py:265-275 (InternLM3)
    config = changed(LLAMA, attention_bias=True, qkv_bias=False)
    names = {group.name for group in rank_weights(context(config)).groups}
    assert "self_attn.o_proj.bias" in names
    assert "self_attn.qkv_proj.bias" not in names


def test_vocabulary_is_padded_to_64_rows_before_it_is_divided() -> None:
    config = changed(LLAMA, vocab_size=32001)
    embed = rank_weights(context(config, parallel=ParallelConfig(tp=2))).groups[0]
    assert embed.shape == (32064 // 2, 4096)
    assert parameter_total(context(config).architecture) == 8030261248 - 2 * 4096 * (128256 - 32001)


def test_a_tied_head_takes_nothing_on_the_last_stage_but_its_embedding_does() -> None:
    tied = model("meta-llama/Llama-3.2-1B-Instruct")
    stages = [rank_weights(context(tied, parallel=ParallelConfig(pp=3), pp_rank=stage)) for stage in range(3)]
    roles = [{group.role for group in stage.groups} for stage in stages]
    assert ["embedding" in r for r in roles] == [True, False, True]
    assert not any("lm_head" in r for r in roles)


def test_data_parallelism_divides_experts_like_tensor_parallelism() -> None:
    # fused_moe/config.py:1162-1221: without expert parallelism tp is flattened over dp; attention is not
    def shapes(parallel: ParallelConfig) -> dict[str, tuple[int, ...]]:
        return {g.name: g.shape for g in rank_weights(context(model(QWEN_MOE), parallel=parallel)).groups}

    found = shapes(ParallelConfig(tp=2, dp=2))
    assert found["mlp.experts.w2_weight"] == (128, 2048, 768 // 4)
    assert found["self_attn.o_proj.weight"] == (2048, 4096 // 2)
    assert shapes(ParallelConfig(tp=2, dp=2, expert_parallel=True))["mlp.experts.w2_weight"] == (
        32,
        2048,
        768,
    )


def test_the_first_ranks_hold_one_expert_more_when_they_do_not_divide() -> None:
    # expert_map_manager.py:64-70: 128 experts on 6 ranks
    ctx = context(model(QWEN_MOE), parallel=ParallelConfig(tp=2, dp=3, expert_parallel=True))
    counts = [
        next(g.shape[0] for g in rank_weights(ctx, ep_rank).groups if g.name == "mlp.experts.w13_weight")
        for ep_rank in range(6)
    ]
    assert counts == [22, 22, 21, 21, 21, 21]


def test_redundant_experts_count_with_load_balancing() -> None:
    args = EngineArgs(others={"enable_eplb": True, "eplb_config": {"num_redundant_experts": 32}})
    ctx = context(model(QWEN_MOE), parallel=ParallelConfig(tp=4, expert_parallel=True), args=args)
    shapes = {g.name: g.shape for g in rank_weights(ctx).groups}
    assert shapes["mlp.experts.w13_weight"][0] == 160 // 4
    assert shapes["mlp.experts._expert_map"] == (160,)


@pytest.mark.parametrize(("tokens", "seqs", "rows"), [(8192, 100, 100 * 3), (2048, 1024, 2048)])
def test_sparse_attention_keeps_its_choice_for_every_row_of_a_decode_batch(
    tokens: int, seqs: int, rows: int
) -> None:
    """SparseMLAIndexGroupBuilder (v1/attention/backends/mla/index_group.py, 0.33.0): a row for each sequence and its two
    draft tokens, no more than a batch has, and one of padding.
    """
    ctx = context(
        load_model("deepseek-ai/DeepSeek-V3.2", offline=True), release="0.33.0", max_num_batched_tokens=tokens,
        max_num_seqs=seqs, num_speculative_tokens=2, parallel=ParallelConfig(tp=8),
    )  # fmt: skip
    shapes = {g.name: g.shape for g in rank_weights(ctx).groups}
    assert {shape for name, shape in shapes.items() if name.endswith("physical_topk_indices")} == {
        (rows + 1, 2048)
    }


@pytest.mark.parametrize(
    "eplb", [{}, {"eplb_config": {}}, {"eplb_config": None}, {"eplb_config": {"window_size": 1000}}]
)
def test_load_balancing_alone_adds_no_expert(eplb: dict[str, object]) -> None:
    """`EPLBConfig.num_redundant_experts` is 0 by default (vllm/config/parallel.py)."""
    args = EngineArgs(others={"enable_eplb": True, **eplb})
    ctx = context(model(QWEN_MOE), parallel=ParallelConfig(tp=4, expert_parallel=True), args=args)
    shapes = {g.name: g.shape for g in rank_weights(ctx).groups}
    assert shapes["mlp.experts.w13_weight"][0] == 128 // 4
    assert shapes["mlp.experts._expert_map"] == (128,)


def test_two_ranks_with_experts_have_a_map_of_them() -> None:
    """`determine_expert_map` (fused_moe/layer.py) of more than one rank."""
    ctx = context(model(QWEN_MOE), parallel=ParallelConfig(tp=2, expert_parallel=True))
    assert {g.name: g.shape for g in rank_weights(ctx).groups}["mlp.experts._expert_map"] == (128,)


@pytest.mark.parametrize("parallel", [ParallelConfig(tp=4), ParallelConfig(pp=2, layer_partition=(10, 22))])
def test_the_whole_model_is_what_one_gpu_loads(parallel: ParallelConfig) -> None:
    """Whatever the layout, VLLM_PP_LAYER_PARTITION included, which says nothing about one stage."""
    assert whole_weights(context(model(LLAMA), parallel=parallel)) is rank_weights(context(model(LLAMA)))


def test_devices_that_hold_the_same_share_their_weights() -> None:
    here, there = context(model(LLAMA)), context(model(LLAMA), device=find_device("L40S"))
    assert here.device != there.device
    assert rank_weights(here) is rank_weights(there)


def test_a_dense_layer_among_sparse_ones_is_its_own_group() -> None:
    config = changed(QWEN_MOE, mlp_only_layers=[0, 3])
    groups = {group.name: group for group in rank_weights(context(config)).groups}
    assert groups["mlp.gate_up_proj.weight"].count == 2
    assert groups["mlp.experts.w13_weight"].count == 46


def test_a_block_that_does_not_divide_is_refused_with_vllms_sentence() -> None:
    # 768 / 4 = 192 is no multiple of 128 (quantization/fp8.py, Fp8MoEMethod.create_weights)
    ctx = context(model("Qwen/Qwen3-30B-A3B-FP8"), parallel=ParallelConfig(tp=4))
    with pytest.raises(
        RefusedError, match=r"output_size of gate's and up's weight = 192 is not divisible"
    ) as caught:
        rank_weights(ctx)
    assert caught.value.reason is Reason.INVALID_LAYOUT


def test_an_ignored_router_stays_in_the_models_dtype() -> None:
    groups = {g.name: g for g in rank_weights(context(model("Qwen/Qwen3-30B-A3B-FP8"))).groups}
    assert groups["mlp.gate.weight"].dtype == "bfloat16"
    assert groups["mlp.experts.w13_weight"].dtype == "float8_e4m3fn"


def test_layers_that_a_checkpoint_ignores_by_index_are_counted_apart() -> None:
    block = {
        "quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic",
        "modules_to_not_convert": [f"model.layers.3.self_attn.{p}_proj" for p in "qkv"],
    }  # fmt: skip
    config = changed("Qwen/Qwen3-32B-FP8", quantization_config=block)
    found = [
        (g.dtype, g.count)
        for g in rank_weights(context(config)).groups
        if g.name == "self_attn.qkv_proj.weight"
    ]
    assert sorted(found) == [("bfloat16", 1), ("float8_e4m3fn", 63)]


def test_a_method_that_is_not_modelled_is_named() -> None:
    with pytest.raises(InputError, match=r"'spqr' is not modelled.*known: .*fp8"):
        rank_weights(context(model(LLAMA), quantization="spqr"))


def test_releases_keep_the_scalars_that_they_make() -> None:
    # set_default_quant_scales: 4 buffers; where a method loads KV scales 3 range constants stay on the GPU,
    # from 0.26 on
    # 2 copies too, and from 0.28 on only those
    def scalars(release: str) -> int:
        groups = rank_weights(context(model("Qwen/Qwen3-32B-FP8"), release=release)).groups
        return sum(g.count for g in groups if g.role == "attention_scales") // 64

    assert [scalars(release) for release in ("0.25.1", "0.26.0", "0.33.0")] == [7, 9, 6]


def test_a_94_layer_model_takes_well_under_a_third_of_a_millisecond() -> None:
    config = model("Qwen/Qwen3-235B-A22B")
    parallel = ParallelConfig(tp=8)
    ctx = context(config, parallel=parallel)
    rank_weights(ctx)
    times = []
    for _ in range(50):
        start = time.perf_counter()
        rank_weights(ctx)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.0003


def test_a_method_knows_what_was_asked_of_kernels_and_which_model_it_serves() -> None:
    """`VllmConfig.kernel_config.linear_backend` and `ParallelConfig.all2all_backend` by default, and as given; the type is the
    text model's (`hf_text_config.model_type`) where there is one.
    """
    plain = context(model(LLAMA))
    asked = context(
        model(LLAMA),
        args=EngineArgs(others={"linear_backend": "marlin", "all2all_backend": "deepep_low_latency"}),
    )
    assert [method_of(ctx).context.linear_backend for ctx in (plain, asked)] == ["auto", "marlin"]
    assert [layout_of(ctx, 0).all2all_backend for ctx in (plain, asked)] == [
        "allgather_reducescatter", "deepep_low_latency",
    ]  # fmt: skip
    seeing = context(load_model("google/gemma-3-4b-it", offline=True))
    assert [method_of(ctx).context.model_type for ctx in (plain, seeing)] == ["llama", "gemma3_text"]
