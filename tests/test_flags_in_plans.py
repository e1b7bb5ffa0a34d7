"""What flags and variables do to a whole plan, each against what vLLM's source says it does."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_capacity import plan
from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.errors import InputError
from vllm_capacity.ledger import Allocator, MemoryTerm
from vllm_capacity.units import GIB, MIB

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
MISTRAL = "mistralai/Mistral-7B-v0.1"  # sliding_window 4096 in every layer
VERSION = "0.26.0"


def planned(model: str = LLAMA, **flags: Any) -> Plan:
    found = plan(model, gpu="H200", suggestions=False, **{"vllm_version": VERSION, **flags})
    assert isinstance(found, Plan), found.verdict.message
    return found


def terms(found: Plan) -> dict[str, MemoryTerm]:
    return {t.name: t for t in found.ranks[0].terms}


def test_without_its_window_a_model_keeps_every_token_up_to_the_window_s_length():
    """ModelConfig.__post_init__, config/model.py (0.26.0): the length is capped, then the window is taken away."""
    with_it, without = planned(MISTRAL), planned(MISTRAL, disable_sliding_window=True)
    assert [g.spec.__class__.__name__ for g in with_it.kv_cache.groups] == ["SlidingWindowSpec"]
    assert [g.spec.__class__.__name__ for g in without.kv_cache.groups] == ["FullAttentionSpec"]
    assert without.engine.max_model_len == 4096
    assert without.config.get("sliding_window") == 4096


def test_a_generator_run_as_a_pooling_model_builds_no_head():
    """no_init_weights(targets=(LogitsProcessor, ParallelLMHead)), model_executor/models/adapters.py (0.26.0)."""
    generator, embedder = planned(), planned(runner="pooling")
    head = 128256 * 4096
    assert generator.parameters - embedder.parameters == head
    assert terms(generator)["lm_head"].n_bytes == 2 * head
    assert "lm_head" not in terms(embedder)
    assert "penalty_counts" not in terms(embedder)
    assert planned(convert="embed").parameters == embedder.parameters
    assert (
        planned(convert="classify").parameters == embedder.parameters + 2 * 4096
    )  # ReplicatedLinear(hidden, num_labels)


def test_only_the_processes_of_the_mp_executor_share_memory():
    """MultiprocExecutor, v1/executor/multiproc_executor.py; ray, uni and external launchers have no message queue."""
    assert planned(tensor_parallel_size=2).host.shared_memory_bytes > 0
    for executor in ("ray", "external_launcher"):
        found = planned(tensor_parallel_size=2, distributed_executor_backend=executor)
        assert found.host.shared_memory_bytes == 0
    assert (
        planned(distributed_executor_backend="mp").host.shared_memory_bytes == 0
    )  # one GPU: nobody to share with


def test_an_offloading_connector_pins_what_it_is_told_on_each_rank():
    """v1/kv_offload/cpu/spec.py:78-99 (0.26.0): cpu_bytes_to_use counts for the whole engine."""
    config = {
        "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 64 * GIB},
    }  # fmt: skip
    found = terms(planned(tensor_parallel_size=2, kv_transfer_config=config))["kv_connector_host"]
    assert (found.n_bytes, found.allocator) == (32 * GIB, Allocator.HOST)


def test_a_transfer_connector_leaves_the_kv_cache_as_it_is():
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    found = planned(kv_transfer_config=nixl)
    assert found.kv_cache.num_blocks == planned().kv_cache.num_blocks
    assert terms(found)["kv_connector"].high == GIB


def test_an_unknown_connector_is_refused_by_name():
    given = {"kv_connector": "MyConnector", "kv_role": "kv_both"}
    with pytest.raises(InputError, match="MyConnector is not modelled"):
        planned(kv_transfer_config=given)
    assert terms(planned(kv_transfer_config=given, allow_unmodelled=True))["kv_connector"].high > GIB


def test_named_parameters_alone_go_to_the_host():
    """model_executor/offloader/uva.py:86-95 (0.26.0): whole segments of a parameter's name."""

    def moved(**flags: Any) -> int:
        v1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
        return terms(planned(cpu_offload_gb=100, environment=v1, **flags))["offloaded_weights"].n_bytes

    limited = moved(cpu_offload_params=["down_proj"])
    assert limited == 32 * 14336 * 4096 * 2
    assert moved() > 3 * limited
    assert moved(cpu_offload_params=["down"]) == 0


def test_model_runner_v2_ignored_offloading_before_0_28_and_the_plan_says_so():
    """set_offloader: v1/worker/gpu_model_runner.py alone up to 0.27.1, v1/worker/gpu/model_runner.py too from 0.28.0.

    tests/data/records: eager-qwen2.5-14b-cpu-offload-s256 loaded all of its weights on the GPU.
    """

    def said(**flags: Any) -> tuple[int, bool]:
        found = planned(**flags)
        warned = any("has no effect here: model runner V2" in line for line in found.warnings)
        return sum(t.n_bytes for t in found.ranks[0].terms if t.name == "weights_moved_to_host"), warned

    assert said(cpu_offload_gb=4) == (0, True)
    assert said(offload_group_size=8) == (0, True)
    assert said() == (0, False)
    assert said(cpu_offload_gb=4, environment={"VLLM_USE_V2_MODEL_RUNNER": "0"}) == (-4 * GIB, False)
    assert said(cpu_offload_gb=4, vllm_version="0.28.0") == (-4 * GIB, False)


def test_state_caches_follow_their_dtype_and_mode():
    """config/cache.py: mamba_ssm_cache_dtype; float32 states of Nemotron-H are twice those in bfloat16."""
    model = "nvidia/Nemotron-H-8B-Base-8K"
    half = planned(model, mamba_ssm_cache_dtype="bfloat16", max_model_len=8192)
    full = planned(model, mamba_ssm_cache_dtype="float32", max_model_len=8192)
    assert full.kv_cache.num_blocks < half.kv_cache.num_blocks


def test_layers_named_to_stay_unquantised_keep_their_dtype():
    """--kv-cache-dtype-skip-layers, layers/attention/attention.py (0.26.0): 'auto' for the layers named."""
    fp8 = planned(kv_cache_dtype="fp8")
    some = planned(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["0", "1"])
    assert planned().kv_cache.size_tokens < some.kv_cache.size_tokens < fp8.kv_cache.size_tokens


def test_drafts_may_be_given_flag_by_flag():
    """create_speculative_config, engine/arg_utils.py (0.26.0)."""
    one = planned(spec_method="ngram", spec_tokens=4)
    assert one.engine.num_speculative_tokens == 4
    with pytest.raises(InputError, match="--spec-method and --speculative-config"):
        planned(spec_method="ngram", speculative_config={"method": "ngram", "num_speculative_tokens": 2})


@pytest.mark.parametrize(
    ("flags", "runner"),
    [
        ({}, "V2"), ({"enable_prompt_embeds": True}, "V1"), ({"logprobs_mode": "raw_logprobs"}, "V2"),
    ],
)  # fmt: skip
def test_flags_that_runner_v2_does_not_support_bring_back_v1(flags, runner):
    """_get_v2_model_runner_unsupported_features, config/vllm.py (0.26.0)."""
    assert planned(**flags).engine.model_runner == runner


def test_prompt_embeddings_are_looked_up_outside_the_compiled_graph():
    with_them = planned(enable_prompt_embeds=True)
    without = planned(environment={"VLLM_USE_V2_MODEL_RUNNER": "0"})
    assert [p.name for p in without.ranks[0].activation.phases].count("compile") == 1
    assert [p.name for p in with_them.ranks[0].activation.phases].count("compile") == 0


def test_adapters_are_kept_for_the_modules_named():
    """is_in_target_modules, lora/utils.py: since 0.20.0 parts of a fused module name it, and it is wrapped as a whole."""
    flags = {"enable_lora": True, "max_lora_rank": 16}
    qkv = 32 * 16 * 2 * (3 * 4096 + 4096 + 1024 + 1024)
    down = 32 * 16 * 2 * (14336 + 4096)
    found = terms(planned(**flags, lora_target_modules=["q_proj", "down_proj"]))["lora_adapters"]
    assert found.n_bytes == qkv + down
    old = planned(**flags, vllm_version="0.19.1", lora_target_modules=["q_proj", "down_proj"])
    assert terms(old)["lora_adapters"].n_bytes == down


def test_sleep_mode_needs_host_memory_only():
    found = planned(enable_sleep_mode=True)
    assert found.kv_cache.num_blocks == planned().kv_cache.num_blocks
    assert terms(found)["sleeping_weights"].allocator is Allocator.HOST


# -- environment ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [(":4096:8", 32 * MIB), (":4096:2:16:8", 8 * MIB + 128 * 1024), (":16:8", 128 * 1024)],
)
def test_the_cublas_workspace_is_what_the_variable_says(text, n_bytes):
    """parseChosenWorkspaceSize, aten/src/ATen/cuda/CublasHandlePool.cpp: pairs of KiB and count."""
    found = terms(planned(environment={"CUBLAS_WORKSPACE_CONFIG": text}))["cublas_workspace"]
    assert (found.n_bytes, found.low, found.high) == (n_bytes, n_bytes, n_bytes)


def test_expandable_segments_round_to_512_bytes():
    usual = terms(planned())["allocator_rounding"]
    grown = terms(planned(environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}))[
        "allocator_rounding"
    ]
    assert grown.n_bytes < usual.n_bytes
    assert (grown.low, grown.high) == (grown.n_bytes, usual.n_bytes)


def test_the_user_s_split_limit_counts_where_vllm_sets_none():
    """Worker.load_model sets max_split_size_mb=20 since 0.21.0 (feature load_max_split_size)."""
    limit = {"environment": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:21"}}
    rounding = [
        terms(planned("Qwen/Qwen2.5-7B-Instruct", vllm_version=version, **flags))[
            "allocator_rounding"
        ].n_bytes
        for version in ("0.20.2", VERSION)
        for flags in ({}, limit)
    ]
    assert rounding[0] != rounding[1]
    assert rounding[2] == rounding[3]


@pytest.mark.parametrize("name", ["NCCL_BUFFSIZE", "NCCL_MAX_NCHANNELS"])
def test_nccl_s_buffers_widen_the_interval_to_their_side(name):
    usual = terms(planned(tensor_parallel_size=2))["nccl_communicators"]
    environment = {name: {"NCCL_BUFFSIZE": "8388608", "NCCL_MAX_NCHANNELS": "4"}[name]}
    found = terms(planned(tensor_parallel_size=2, environment=environment))["nccl_communicators"]
    assert found.n_bytes == usual.n_bytes
    assert (found.high > usual.high) == (name == "NCCL_BUFFSIZE")
    assert (found.low < usual.low) == (name == "NCCL_MAX_NCHANNELS")


@pytest.mark.parametrize(
    "environment",
    [
        {"CUBLAS_WORKSPACE_CONFIG": "4096"}, {"CUBLAS_WORKSPACE_CONFIG": ":x:8"}, {"NCCL_BUFFSIZE": "4MB"},
        {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:8"},
        {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"},
    ],
)  # fmt: skip
def test_values_that_cannot_be_planned_are_one_line(environment):
    with pytest.raises(InputError, match=next(iter(environment))):
        planned(tensor_parallel_size=2, environment=environment)


def test_refusals_stay_refusals():
    found = plan(LLAMA, gpu="H200", vllm_version=VERSION, enable_eplb=True)
    assert isinstance(found, RefusedPlan)
    assert found.verdict.message == "enable_expert_parallel must be True to use EPLB."
