"""Layouts that vLLM refuses are refused with its sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from building import changed, context, model
from vllm_capacity.errors import CapacityError, InputError, Reason, RefusedError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.inputs.models import load_model
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.releases import get_release
from vllm_capacity.weights.layout import check_layout

UNEVEN = changed(
    "meta-llama/Llama-3.1-8B-Instruct", num_attention_heads=36, num_key_value_heads=6, head_dim=128
)
WIDE = changed("meta-llama/Llama-3.1-8B-Instruct", intermediate_size=14338)
LLAMA, QWEN_MOE = model("meta-llama/Llama-3.1-8B-Instruct"), model("Qwen/Qwen3-30B-A3B")
P = ParallelConfig


def refusal(config: ModelConfig, parallel: ParallelConfig, release: str = "0.26.0") -> str:
    with pytest.raises(CapacityError) as caught:
        check_layout(context(config).architecture, parallel, get_release(release))
    if isinstance(caught.value, RefusedError):
        assert caught.value.reason is Reason.INVALID_LAYOUT
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "parallel", "sentence"),
    [
        (LLAMA, P(tp=3),
         "Total number of attention heads (32) must be divisible by tensor parallel size (3)."),
        (LLAMA, P(tp=8, dcp=3), "tp_size=8 must be divisible by dcp_size=3."),
        (LLAMA, P(expert_parallel=True, tp=2),
         "Number of experts in the model must be greater than 0 when expert parallelism is enabled."),
        (LLAMA, P(tp=8, dcp=2), "tensor parallel size 8 must be greater than total num kv heads 8"),
        (LLAMA, P(tp=16, dcp=4), "(tensor parallel size 16 // total num kv heads 8) = 2, but got 4"),
        (LLAMA, P(pp=2, layer_partition=(10, 10)), "must have 2 entries that sum to 32"),
        (LLAMA, P(tp=2, pcp=2, dp=2), "PCP does not support data parallelism yet."),
        (LLAMA, P(tp=2, pcp=2, dcp=3), "valid DCP sizes are [1, 2, 4]"),
        (LLAMA, P(tp=4, pcp=2, dcp=6), "valid DCP sizes are [1, 2, 8]"),
        (changed("Qwen/Qwen3-30B-A3B", moe_intermediate_size=770), P(tp=4), "770 is not divisible by 4"),
        (WIDE, P(tp=4), "14338 is not divisible by 4"),
        (UNEVEN, P(tp=4), "6 is not divisible by 4"),
        (UNEVEN, P(tp=9), "9 is not divisible by 6"),
        (changed("Qwen/Qwen3-30B-A3B", num_experts=4), P(tp=8),
         "Tensor parallel size 8 is greater than the number of experts 4."),
    ],
)  # fmt: skip
def test_the_reason_is_vllms(config: ModelConfig, parallel: ParallelConfig, sentence: str) -> None:
    assert sentence in refusal(config, parallel)


def test_newer_releases_name_the_flags() -> None:
    assert "Increase `--tensor-parallel-size` or set" in refusal(LLAMA, P(tp=8, dcp=2), "0.33.0")


def test_a_model_without_pipeline_support_is_refused() -> None:
    architecture = replace(context(LLAMA).architecture, supports_pp=False)
    with pytest.raises(RefusedError, match="Pipeline parallelism is not supported for this model"):
        check_layout(architecture, P(pp=2), get_release("0.26.0"))


def test_a_stage_without_layers_is_not_guessed() -> None:
    with pytest.raises(InputError, match="leaves a stage"):
        check_layout(context(LLAMA).architecture, P(pp=64), get_release("0.26.0"))


@pytest.mark.parametrize("parallel", [P(), P(tp=8), P(tp=16, dcp=2), P(pp=32), P(tp=16, pcp=2, dcp=2)])
def test_valid_layouts_pass(parallel: ParallelConfig) -> None:
    check_layout(context(LLAMA).architecture, parallel, get_release("0.26.0"))


def test_before_0_26_0_prompts_are_not_divided() -> None:
    release = get_release("0.25.1")
    check_layout(context(LLAMA).architecture, P(tp=16, dcp=2), release)
    with pytest.raises(InputError, match="prefill-context-parallel-size is modelled from"):
        check_layout(context(LLAMA).architecture, P(tp=2, pcp=2), release)


def test_experts_may_be_fewer_than_ranks_divide_with_expert_parallelism() -> None:
    check_layout(context(QWEN_MOE).architecture, P(tp=4, dp=8, expert_parallel=True), get_release("0.26.0"))


@pytest.mark.parametrize(
    ("model", "line"),
    [
        # seen while vLLM 0.26.0's and 0.33.0's own classes were built with two stages (tests/data/vllm_built/README.md)
        ("baidu/ERNIE-4.5-21B-A3B-PT", "'PPMissingLayer' object has no attribute 'weight'"),
        ("stepfun-ai/step3", "'Step3TextConfig' object has no attribute 'tie_word_embeddings'"),
    ],
)
def test_classes_that_break_with_pipeline_stages_are_refused(model: str, line: str) -> None:
    config = load_model(model)
    assert line in refusal(config, P(tp=2, pp=2))


def test_one_stage_needs_no_pipeline_support() -> None:
    plain = context(LLAMA).architecture
    check_layout(replace(plain, supports_pp=False), P(), get_release("0.26.0"))
    check_layout(replace(plain, pp_error="AttributeError: 'PPMissingLayer'"), P(), get_release("0.26.0"))


def test_context_parallel_sizes_beside_divided_prompts() -> None:
    check_layout(context(LLAMA).architecture, P(tp=4, pcp=2), get_release("0.26.0"))
    assert "valid DCP sizes are [1, 2, 32]" in refusal(LLAMA, P(tp=16, pcp=2, dcp=8))


def test_latent_attention_counts_as_one_kv_head() -> None:
    """ModelArchConfigConvertor.get_total_num_kv_heads: 1 with MLA, so that each rank may hold its part of the tokens."""
    latent = context(model("deepseek-ai/DeepSeek-V3")).architecture
    check_layout(latent, P(tp=8, dcp=8), get_release("0.26.0"))
    with pytest.raises(
        RefusedError, match=r"attention heads \(128\) must be divisible by tensor parallel size \(3\)"
    ):
        check_layout(latent, P(tp=3), get_release("0.26.0"))


def test_as_many_ranks_as_experts_hold_one_each() -> None:
    check_layout(
        context(changed("Qwen/Qwen3-30B-A3B", num_experts=4)).architecture, P(tp=4), get_release("0.26.0")
    )


def test_a_model_without_attention_has_no_heads_to_divide() -> None:
    check_layout(context(load_model("tiiuae/falcon-mamba-7b")).architecture, P(tp=2), get_release("0.26.0"))


def test_each_group_of_query_heads_is_divided_over_the_ranks_that_share_its_tokens() -> None:
    """config/model.py: verify_with_parallel_config (0.26.0): 80 heads of 8 groups are 10 to a group."""
    five = changed(
        "meta-llama/Llama-3.1-8B-Instruct", num_attention_heads=80, num_key_value_heads=8, head_dim=128
    )
    assert "(10) must be divisible by dcp world size" in refusal(five, P(tp=40, dcp=4))
