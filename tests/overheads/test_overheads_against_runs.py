"""Non-torch memory, CUDA graphs and the baseline snapshot against recorded runs."""

from __future__ import annotations

from statistics import median

import pytest
from recorded import Run, predictions, ranks, run_named, runs
from vllm_capacity.ledger import Component, Lifetime, evaluate
from vllm_capacity.overheads import graph_estimate, overhead_terms
from vllm_capacity.overheads.nccl import communicators
from vllm_capacity.units import MIB

STAGES = [
    pytest.param(run, stage, figures, id=label) for run in runs() for stage, label, figures in ranks(run)
]

ESTIMATE_UNEXPLAINED = {
    "h100/meta-llama-llama-3-1-8b---h100-80gb--tp2pp1dp1--8192": (
        "vLLM estimated 1.69 GiB and captured 0.76: its first sample took 0.9 GiB that no graph needed"
    ),
}
NON_TORCH_UNEXPLAINED = {
    "h100/granite-3-1-8b--h100-80gb--tp1pp1dp1--8192": (
        "0.21 GiB more than the 22 other runs of the sweep with one GPU"
    ),
}


def expect_a_miss(unexplained: dict[str, str], run: Run, request: pytest.FixtureRequest) -> None:
    """A named miss must still be one: a formula that meets it has to take it off the list."""
    if run.name in unexplained:
        request.applymarker(pytest.mark.xfail(reason=unexplained[run.name], strict=True))


@pytest.mark.parametrize(("run", "stage", "figures"), STAGES)
def test_graph_estimate_is_zero_where_vllm_makes_none_and_close_where_it_does(
    run: Run, stage: int, figures: dict[str, float], request: pytest.FixtureRequest
) -> None:
    if "graph_estimate" not in figures:
        pytest.skip("no figure")
    expect_a_miss(ESTIMATE_UNEXPLAINED, run, request)
    predicted = predictions(run, stage)["graph_estimate"]
    assert predicted == pytest.approx(figures["graph_estimate"], rel=0.30, abs=1e-9)


GRAPHS_UNEXPLAINED = {
    "h100/qwen-qwen1-5-moe-a2-7b--h100-80gb--tp1pp1dp1--8192": (
        "402,000 bytes of driver memory per capture and layer; the other MoE models take 217,000 to 247,000. It is the"
        " only one whose shared expert has a gate of its own"
    ),
}


@pytest.mark.parametrize(("run", "stage", "figures"), STAGES)
def test_graphs_take_what_was_recorded_within_a_third(
    run: Run, stage: int, figures: dict[str, float], request: pytest.FixtureRequest
) -> None:
    if "graphs" not in figures:
        pytest.skip("no figure")
    expect_a_miss(GRAPHS_UNEXPLAINED, run, request)
    assert predictions(run, stage)["graphs"] == pytest.approx(figures["graphs"], rel=0.33)


@pytest.mark.parametrize(("run", "stage", "figures"), STAGES)
def test_non_torch_memory_is_met_within_a_tenth_of_a_gib(
    run: Run, stage: int, figures: dict[str, float], request: pytest.FixtureRequest
) -> None:
    if "non_torch" not in figures:
        pytest.skip("no figure")
    expect_a_miss(NON_TORCH_UNEXPLAINED, run, request)
    assert predictions(run, stage)["non_torch"] == pytest.approx(figures["non_torch"], abs=0.1)


def test_median_non_torch_error_is_below_twenty_mib() -> None:
    errors = [
        abs(predictions(run, stage)["non_torch"] - figures["non_torch"])
        for run in runs()
        for stage, _, figures in ranks(run)
        if "non_torch" in figures
    ]
    assert len(errors) > 40
    assert median(errors) < 0.02


@pytest.mark.parametrize(("run", "stage", "figures"), STAGES)
def test_memory_before_the_snapshot_is_met_within_fifty_mib(
    run: Run, stage: int, figures: dict[str, float]
) -> None:
    if "before_snapshot" not in figures:
        pytest.skip("no figure")
    assert predictions(run, stage)["before_snapshot"] == pytest.approx(figures["before_snapshot"], abs=0.05)


@pytest.mark.parametrize(
    "name", ["h200/llama31-8b", "h200/qwen3-8b-eager", "h200/qwen3-0.6b", "h200/qwen25-7b-t8192-s256"]
)
def test_runner_buffers_explain_what_pytorch_holds_beside_weights_and_cache(name: str) -> None:
    """Allocated at the end - weights - KV cache = runner buffers + cuBLAS workspaces (one, and two for graph
    capture).
    """
    run = run_named(name)
    rank = run.measured["ranks"][0]
    cache = rank["kv_bytes"]
    held = rank["allocated"] - rank["model_memory_usage"] - cache
    terms = overhead_terms(run.context())
    buffers = sum(
        t.n_bytes for t in terms if t.component is Component.RUNNER_BUFFERS and t.allocator == "torch"
    )
    workspaces = 32 * MIB if run.args.get("enforce_eager") else 3 * 32 * MIB
    assert buffers + workspaces == pytest.approx(held, rel=0.10)


@pytest.mark.parametrize("name", ["h200/llama31-8b", "h200/qwen3-0.6b", "h200/qwen3-8b-eager"])
def test_sampler_warmup_is_the_peak_after_the_cache_exists(name: str) -> None:
    """At 1,024 sequences the warm-up of runner V2 is the largest thing after the profile run: 16 bytes per
    logit.
    """
    run = run_named(name)
    rank = run.measured["ranks"][0]
    warm = next(t for t in overhead_terms(run.context()) if t.name == "sampler_warmup")
    assert warm.n_bytes == pytest.approx(rank["peak_alloc"] - rank["allocated"], rel=0.03)
    assert warm.lifetime is Lifetime.RUNTIME


@pytest.mark.parametrize(("run", "stage", "figures"), STAGES)
def test_every_term_follows_its_formula_and_says_where_it_comes_from(
    run: Run, stage: int, figures: dict[str, float]
) -> None:
    ctx = run.context(stage)
    estimate = graph_estimate(ctx)
    for t in (*overhead_terms(ctx), *((estimate,) if estimate else ())):
        assert evaluate(t.formula, t.values) == t.n_bytes
        assert 0 <= t.low <= t.n_bytes <= t.high
        assert t.source
        assert t.n_bytes or t.note or not t.values or t.high


def test_every_component_is_listed_even_where_it_is_zero() -> None:
    listed = {t.component for t in overhead_terms(run_named("h200/llama31-8b").context())}
    assert listed >= {
        Component.CUDA_CONTEXT,
        Component.NCCL,
        Component.CUSTOM_ALL_REDUCE,
        Component.RUNNER_BUFFERS,
        Component.FLASHINFER,
        Component.CUDA_GRAPHS,
        Component.LORA,
        Component.SPECULATIVE,
        Component.OFFLOAD,
        Component.WORKSPACE,
        Component.ENCODER,
    }


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("h200/llama31-8b", ()),
        ("h200/llama31-70b-tp2", ("tp", "world")),
        ("h100/meta-llama-llama-3-1-8b---h100-80gb--tp1pp2dp1--8192", ("pp", "world")),
        ("h100/mistralai-mixtral-8x7b-i--h100-80gb--tp2pp1dp1--8192", ("tp", "ep", "world")),
    ],
)
def test_communicators_are_those_of_the_groups_vllm_builds(name: str, groups: tuple[str, ...]) -> None:
    assert communicators(run_named(name).context()) == groups
