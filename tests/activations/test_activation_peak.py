"""The activation peak against `torch_peak_increase` of recorded runs."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from recorded import Run, ranks, run_named, runs
from vllm_capacity import plan
from vllm_capacity.activations.peak import activation_peak
from vllm_capacity.answer import Plan
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Lifetime, evaluate
from vllm_capacity.releases import get_release
from vllm_capacity.units import GIB, MIB

CASES = [
    pytest.param(run, stage, figures["activation"], id=label)
    for run in runs()
    for stage, label, figures in ranks(run)
]

EXACT = (
    "h200/qwen3-0.6b",
    "h200/llama31-8b-t2048",
    "h200/ds-v2-lite",
    "h200/llama31-8b-kvfp8",
    "h200/llama31-8b",
    "h200/qwen3-8b-eager",
)
"""Runs that recorded bytes and whose every allocation the formulas name."""


def bytes_measured(run: Run) -> int:
    return int(run.measured["ranks"][0]["peak_activation"])


@pytest.mark.parametrize(("run", "stage", "measured"), CASES)
def test_within_three_percent_of_the_recorded_peak(run: Run, stage: int, measured: float) -> None:
    peak = activation_peak(run.context(stage))
    assert peak.n_bytes / GIB == pytest.approx(measured, rel=0.03)


def test_mean_absolute_error_is_below_one_percent() -> None:
    errors = [
        abs(activation_peak(run.context(stage)).n_bytes / GIB / figures["activation"] - 1)
        for run in runs()
        for stage, _, figures in ranks(run)
    ]
    assert len(errors) >= 44
    assert mean(errors) < 0.01


@pytest.mark.parametrize("name", EXACT)
def test_equals_the_recorded_bytes(name: str) -> None:
    run = run_named(name)
    assert activation_peak(run.context()).n_bytes == bytes_measured(run)


def test_tensor_parallel_compile_peak_is_met_but_for_four_small_blocks() -> None:
    run = run_named("h200/llama31-70b-tp2")
    assert 0 <= bytes_measured(run) - activation_peak(run.context()).n_bytes <= 4 * 512


def test_odd_vocabulary_matrix_takes_the_rest_of_its_segment() -> None:
    """Qwen2.5-7B's vocabulary matrix ends 0.5 MiB below a 2 MiB segment; PyTorch counts the rest with the
    block.
    """
    run = run_named("h200/qwen25-7b-t8192-s256")
    assert bytes_measured(run) == activation_peak(run.context()).n_bytes


@pytest.mark.parametrize(
    ("name", "winner"),
    [
        ("h200/llama31-8b", "MLP"),
        ("h200/llama31-8b-t2048", "compile"),
        ("h200/ds-v2-lite", "MLA"),
        ("h200/qwen3-30b-a3b", "sampler"),
    ],
)
def test_names_the_winning_phase(name: str, winner: str) -> None:
    peak = activation_peak(run_named(name).context())
    assert peak.winner.name == winner
    assert {"MLP", "logits"} <= {p.name for p in peak.phases} or winner in ("MLA", "sampler")


@pytest.mark.parametrize(("run", "stage", "measured"), CASES)
def test_terms_add_up_and_follow_their_formulas(run: Run, stage: int, measured: float) -> None:
    peak = activation_peak(run.context(stage))
    assert sum(t.n_bytes for t in peak.terms) == peak.n_bytes >= peak.winner.n_bytes
    for t in (*peak.terms, *(t for p in peak.phases for t in p.terms)):
        assert evaluate(t.formula, t.values) == t.n_bytes
        assert t.low <= t.n_bytes <= t.high
        assert t.source


def test_what_stays_is_counted_as_persistent_whichever_phase_wins() -> None:
    ctx = run_named("h200/llama31-8b-t2048").context()
    peak = activation_peak(ctx)
    kept = {t.name for t in peak.terms if t.lifetime is Lifetime.PROFILE_PERSISTENT}
    assert peak.winner.name == "compile"
    assert kept == {"cublas_workspace"}


def test_a_warm_start_needs_neither_example_arguments_nor_the_flush_buffer() -> None:
    """60 MiB of L2 flush and, at small batches, the vocabulary matrix belong to cold starts only."""
    mlp = activation_peak(run_named("h200/llama31-8b").context())
    assert mlp.n_bytes - mlp.warm_bytes == 60 * MIB
    embedding = activation_peak(run_named("h200/llama31-8b-t2048").context())
    assert embedding.warm_bytes < embedding.n_bytes / 2


def test_kernels_timed_while_compiling_are_not_timed_again_from_torch_2_13_on() -> None:
    """The recorded first start of v0.33-mistral-7b-v1-runner-t16384 (PyTorch 2.14.0) peaks at 1,811,939,328 bytes, 60 MiB
    below what torch 2.11 would need: no buffer to flush the L2 cache.
    """
    ctx = run_named("h200/llama31-8b").context()
    later = activation_peak(replace(ctx, release=get_release("0.27.0")))
    assert "autotune_l2_flush" in {t.name for p in activation_peak(ctx).phases for t in p.terms}
    layers = [p for p in later.phases if p.name in ("MLP", "attention")]
    assert layers
    assert "autotune_l2_flush" not in {t.name for p in layers for t in p.terms}


def test_eager_has_no_cold_phase() -> None:
    peak = activation_peak(run_named("h200/qwen3-8b-eager").context())
    assert peak.warm_bytes == peak.n_bytes
    assert not any(p.cold for p in peak.phases)


def test_multimodal_models_look_ids_up_outside_the_compiled_graph() -> None:
    ctx = run_named("h200/llama31-8b-t2048").context()
    changed: RankContext = replace(ctx, architecture=replace(ctx.architecture, is_multimodal=True))
    assert "compile" not in {p.name for p in activation_peak(changed).phases}


def test_more_tokens_or_sequences_never_need_less() -> None:
    run = run_named("h200/llama31-8b")
    peaks = [
        activation_peak(run.context(max_num_batched_tokens=tokens, max_num_seqs=sequences)).n_bytes
        for tokens, sequences in (
            (2048, 64),
            (4096, 64),
            (8192, 256),
            (16384, 256),
            (16384, 1024),
            (32768, 1024),
        )
    ]
    assert peaks == sorted(peaks)


def test_an_mlp_that_overwrites_its_input_never_holds_gate_up_and_downs_output_at_once() -> None:
    """Equal to vLLM 0.26.0's own worker on tensors without storage (`plan --check dry-run`, H200, eager, 8,192 tokens,
    64 sequences): Llama-3.1-8B at tp1 and phi-4 at tp2.
    """
    from vllm_capacity import plan

    for model, tp, peak in (
        ("meta-llama/Llama-3.1-8B-Instruct", 1, 939_526_144),
        ("microsoft/phi-4", 2, 725_616_640),
    ):
        answer = plan(
            model, gpu="H200", vllm_version="0.26.0", tensor_parallel_size=tp, enforce_eager=True, max_num_seqs=64,
            suggestions=False,
        )  # fmt: skip
        assert answer.ranks[0].activation.n_bytes == peak  # type: ignore[union-attr]


# -- blocks that are not split (max_split_size_mb=20 during the profile run, from 0.31.0 on)
@pytest.mark.parametrize(
    ("model", "rest"),
    [
        ("meta-llama/Llama-3.1-8B", 0),
        ("deepseek-ai/DeepSeek-V2-Lite", 16_777_216),  # 32 MiB in the 48 MiB of a query projection
        ("openai/gpt-oss-20b", 19_922_944),  # 45 MiB in the 64 MiB of an attention output
        ("ibm-granite/granite-4.0-h-tiny", 0),
    ],
)
def test_final_hidden_states_may_lie_in_a_larger_block_of_an_eager_run(model: str, rest: int) -> None:
    """Records v0.33-*-eager: torch_peak_increase less the tensors alive at the peak, each in a block of its own."""
    planned = plan(
        model, gpu="H200", vllm_version="0.33.0", suggestions=False, dtype="bfloat16", max_model_len=32768,
        max_num_batched_tokens=8192, max_num_seqs=1024, enforce_eager=True,
    )  # fmt: skip
    assert isinstance(planned, Plan)
    found = next(t for t in planned.ranks[0].terms if t.name == "final_hidden_states")
    assert found.values["rest"] == rest
