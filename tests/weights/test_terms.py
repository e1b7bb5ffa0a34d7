"""The ledger's lines for model loading: sums, formulas, allocator rounding against recorded runs."""

from __future__ import annotations

import pytest
from building import case_context, context, exact, model
from recorded import Run, ranks, runs
from vllm_capacity.errors import CapacityError
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, evaluate
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.units import GIB, MIB
from vllm_capacity.weights.imports import FLASHINFER_TABLE
from vllm_capacity.weights.rank import load_peak_bytes, rank_weights, weight_terms

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
H200_RUNS = [run for run in runs() if run.facts["device"] == "H200"]
H100_RUNS = [run for run in runs() if run.facts["device"] == "H100"]

STAND_INS = ("moonshotai-kimi-dev-72b", "google-gemma-3-4b-it", "google-gemma-3-12b-it")
"""Runs whose facts borrow another model's config (Kimi-Dev has four times the positions of Qwen2.5-72B; the catalogue's
Gemma 3 configs have 163,840 positions and 262,144 rows where the public ones have 131,072 and 262,208).
"""
NOT_EXPLAINED = ("openai-gpt-oss-20b", "meta-llama-llama-4-scout")
"""gpt-oss on 0.19.0 keeps 5 to 8 MiB a layer more than its swizzled and dead tensors add up to. Llama 4 FP8 lists its
unquantised layers by checkpoint names (language_model., vision_model.model.), which are not mapped yet.
"""


def loaded(run: Run, stage: int = 0) -> int:
    return sum(term.n_bytes for term in weight_terms(run.context(stage)))


@pytest.mark.parametrize("run", H200_RUNS, ids=lambda run: run.name)
def test_model_memory_usage_is_equal_to_the_byte(run: Run) -> None:
    """vLLM's figure in bytes."""
    assert loaded(run) == run.measured["ranks"][0]["model_memory_usage"]


def predicted(run: Run) -> dict[int, float]:
    """GiB per pipeline stage; empty where the run's model or quantisation is not modelled (yet).

    For those `recorded` puts a hand-built stand-in without weights.
    """
    if any(name in run.name for name in STAND_INS + NOT_EXPLAINED):
        return {}
    try:
        if run.context().architecture.family == "hand-built":
            return {}
        return {stage: loaded(run, stage) / GIB for stage, _, rank in ranks(run) if "weights" in rank}
    except CapacityError:
        return {}


PREDICTED = [run for run in H100_RUNS if predicted(run)]


def test_a_good_part_of_the_public_runs_is_covered() -> None:
    """Guards the next test against silently leaving everything out."""
    assert len(PREDICTED) >= 18


@pytest.mark.parametrize("run", PREDICTED, ids=lambda run: run.name)
def test_loading_prints_what_public_runs_printed(run: Run) -> None:
    """'Model loading took' of vLLM 0.19.0, two decimals."""
    printed = {stage: rank["weights"] for stage, _, rank in ranks(run) if "weights" in rank}
    assert predicted(run) == pytest.approx(printed, abs=0.00501)


def test_terms_sum_to_the_weights_and_their_formulas_give_their_bytes() -> None:
    for case in exact()["cases"]:
        ctx = case_context(case, 0)
        terms = weight_terms(ctx)
        named = {term.name: term for term in terms}
        weights = [t for t in terms if t.component is Component.WEIGHTS and t.name != "allocator_rounding"]
        assert sum(term.n_bytes for term in weights) == rank_weights(ctx).n_bytes
        assert named["allocator_rounding"].n_bytes >= 0
        for term in terms:
            assert term.lifetime is Lifetime.LOAD
            assert evaluate(term.formula, term.values) == term.n_bytes
            assert evaluate(term.expression(), {}) == term.n_bytes


def test_rope_construction_leaves_a_block_that_a_later_weight_takes_over() -> None:
    # Llama-3.1-8B: the fp32 cache of 64 MiB, freed, serves the second layer's qkv_proj of 48 MiB unsplit
    named = {t.name: t.n_bytes for t in weight_terms(context(model(LLAMA)))}
    small = 512 * 4 * 32 - 4 * 4 * 32
    assert named["allocator_rounding"] == 16 * MIB + small + FLASHINFER_TABLE


def test_older_releases_split_that_block() -> None:
    named = {t.name: t.n_bytes for t in weight_terms(context(model(LLAMA), release="0.20.2"))}
    assert named["allocator_rounding"] == 512 * 4 * 32 - 4 * 4 * 32


def test_an_fp8_cache_brings_deep_gemms_workspace_into_loading() -> None:
    def rounding(release: str, cache: str) -> MemoryTerm:
        terms = weight_terms(context(model(LLAMA), kv_cache_dtype=cache, release=release))
        return next(t for t in terms if t.name == "allocator_rounding")

    assert rounding("0.26.0", "auto").values["library_workspace_bytes"] == 0
    fp8 = rounding("0.26.0", "fp8")
    assert fp8.values["library_workspace_bytes"] == 32 * MIB
    assert fp8.low == fp8.n_bytes
    newest = rounding("0.33.0", "fp8")
    assert newest.values["library_workspace_bytes"] == 0, (
        "run v0.33-deepseek-v2-lite-eager: PDL on, no workspace"
    )
    assert newest.low == newest.n_bytes
    newer = rounding("0.32.0", "fp8")
    assert newer.n_bytes - newer.low == 32 * MIB, "no recorded run shows what the newer DeepGEMM allocates"


def test_a_tied_head_that_is_allocated_first_raises_the_load_peak() -> None:
    llama = context(model("meta-llama/Llama-3.2-1B-Instruct"))
    assert load_peak_bytes(llama) == 128256 * 2048 * 2
    # qwen3.py:279-286: the head is the embedding itself
    assert load_peak_bytes(context(model("Qwen/Qwen3-0.6B"))) == 0
    assert load_peak_bytes(context(model(LLAMA))) == 0


def test_swizzling_one_layer_of_experts_raises_the_load_peak() -> None:
    # vLLM 0.26.0's own post-load processing of gpt-oss-20b: at most 16248932864 bytes, 13844068864 afterwards
    assert load_peak_bytes(context(model("openai/gpt-oss-20b"))) == pytest.approx(2404864000, rel=0.002)


def test_expert_parallel_ranks_with_more_experts_hold_more() -> None:
    ctx = context(model("Qwen/Qwen3-30B-A3B"), parallel=ParallelConfig(tp=2, dp=3, expert_parallel=True))
    one_expert = 48 * 3 * 2048 * 768 * 2
    assert rank_weights(ctx, 0).n_bytes - rank_weights(ctx, 5).n_bytes == one_expert
