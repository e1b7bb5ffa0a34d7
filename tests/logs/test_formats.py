"""Every line about memory that vLLM 0.10 to 0.33 can print is read with all its figures.

The lines are made by filling vLLM's own format strings, read from 31 wheels by
`tools/extract_log_formats.py`.
"""

from __future__ import annotations

import pytest
from logs_samples import Sample, data, samples
from vllm_capacity.logs.failures import FailureKind, read_failure
from vllm_capacity.logs.formats import FORMATS, read_line
from vllm_capacity.logs.reader import read_lines
from vllm_capacity.logs.record import Figures, Running

ALL = list(samples())
NO_FIGURES = {"refused_no_blocks", "load_oom", "non_default_args"}
"""Lines whose fact is that they stand there, or that `arguments.py` reads."""
OLDEST, NEWEST = "0.10.0", "0.33.0"


def figures_of(text: str) -> list[float | int | str]:
    found: list[float | int | str] = []
    for part in text.split("\n"):
        for _, values in read_line(part):
            found += values.values()
        failure = read_failure(part)
        if failure is not None:
            found += failure.values.values()
    return found


@pytest.mark.parametrize("sample", ALL, ids=lambda s: f"{s.name}-{s.releases[0]}-{s.level}")
def test_all_figures_of_a_vllm_line_are_read(sample: Sample) -> None:
    found = figures_of(sample.text)
    if sample.name not in NO_FIGURES:
        assert found, sample.text
    assert set(sample.figures) <= {float(value) for value in found if not isinstance(value, str)}, sample.text


@pytest.mark.parametrize(
    "sample", [s for s in ALL if s.figures], ids=lambda s: f"{s.name}-{s.releases[0]}-{s.level}"
)
def test_figures_reach_the_record(sample: Sample) -> None:
    """Nothing that a line's pattern finds is dropped on the way into the typed record."""
    record = read_lines(sample.text.split("\n"))
    start = record.last
    assert start is not None
    kept: set[float] = set()
    for model in (*start.processes.values(), start.running):
        kept |= {float(value) for value in model.model_dump().values() if isinstance(value, (int, float))}
    for failure in start.failures:
        kept |= {float(value) for value in failure.values.values() if isinstance(value, (int, float))}
    assert set(sample.figures) <= kept, sample.text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("refused_free", "free_below_requested"),
        ("refused_no_blocks", "no_kv_memory"),
        ("refused_request", "one_request_does_not_fit"),
        ("refused_mamba", "mamba_blocks_below_max_num_seqs"),
        ("oom_sampler", "sampler_warmup"),
        ("oom_pooler", "sampler_warmup"),
        ("refused_mm_ipc", "no_kv_memory"),
        ("load_oom", "one_request_does_not_fit"),
    ],
)
def test_refusals_have_the_reason_that_plan_gives(name: str, reason: str) -> None:
    mine = [sample for sample in ALL if sample.name == name]
    assert mine
    for sample in mine:
        found = read_failure(sample.text)
        assert found is not None, sample.text
        assert found.reason == reason


def test_a_locked_workspace_is_told_apart_from_out_of_memory() -> None:
    for sample in ALL:
        if sample.name == "workspace_locked":
            found = read_failure(sample.text)
            assert found is not None
            assert found.kind is FailureKind.WORKSPACE_LOCKED


_MEANING = {
    # expression that vLLM prints -> field of the record
    ("profile_result", "format_gib(self.torch_peak_increase)"): "activation_peak_gib",
    ("profile_result", "format_gib(self.non_torch_increase)"): "non_torch_gib",
    ("profile_result", "format_gib(self.total_consumed)"): "consumed_gib",
    ("profile_result", "format_gib(self.non_kv_cache_memory)"): "total_non_kv_gib",
    ("profile_result", "format_gib(self.weights_memory)"): "profiled_weights_gib",
    ("summary", "format_gib(self.init_snapshot.free_memory)"): "free_gib",
    ("summary", "format_gib(self.init_snapshot.total_memory)"): "cuda_total_gib",
    ("summary", "format_gib(self.requested_memory)"): "requested_gib",
    ("summary", "format_gib(self.model_runner.model_memory_usage)"): "profiled_weights_gib",
    ("summary", "format_gib(self.total_consumed)"): "consumed_gib",
    ("summary", "format_gib(self.peak_activation_memory)"): "activation_peak_gib",
    ("summary", "format_gib(self.non_torch_memory)"): "non_torch_gib",
    ("summary", "format_gib(cuda_graph_memory_bytes)"): "graph_actual_gib",
    ("summary", "kv_cache_memory_bytes_to_requested_limit"): "kv_to_requested_bytes",
    ("summary", "kv_cache_memory_bytes_to_gpu_limit"): "kv_to_gpu_bytes",
    ("summary", "format_gib(self.available_kv_cache_memory_bytes)"): "kv_in_use_gib",
    ("snapshot", "format_gib(self.free_memory)"): "snapshot_free_gib",
    ("snapshot", "format_gib(self.total_memory)"): "cuda_total_gib",
    ("snapshot", "format_gib(self.non_torch_memory)"): "snapshot_non_torch_gib",
    ("snapshot", "format_gib(self.torch_allocated)"): "snapshot_allocated_gib",
    ("model_loading", "format_gib(self.model_memory_usage)"): "weights_gib",
    ("model_loading", "format_gib(m.consumed_memory)"): "weights_gib",
    ("graph_pool", "GiB(cuda_graph_memory_bytes)"): "graph_actual_gib",
    ("graph_pool", "GiB(self.cudagraph_memory_estimate)"): "graph_estimate_gib",
    ("graph_equivalent", "current_util"): "gpu_memory_utilization",
    ("graph_equivalent", "equiv_util"): "equivalent_gpu_memory_utilization",
    ("graph_equivalent", "suggested_util"): "suggested_gpu_memory_utilization",
    ("capacity", "num_tokens"): "kv_cache_size_tokens",
    ("capacity", "max_model_len"): "concurrency_max_model_len",
    ("capacity", "max_concurrency"): "max_concurrency",
    ("concurrency", "max_concurrency"): "max_concurrency",
    ("auto_fit", "auto_fit_max"): "auto_fit_to",
}


@pytest.mark.parametrize(
    ("key", "field"), _MEANING.items(), ids=lambda v: "-".join(v) if isinstance(v, tuple) else v
)
def test_a_figure_is_stored_under_what_vllm_prints_there(key: tuple[str, str], field: str) -> None:
    """vLLM's own expression in the format string says what the figure is."""
    name, expression = key
    checked = 0
    for sample in ALL:
        if sample.name != name or expression not in sample.values:
            continue
        checked += 1
        start = read_lines(sample.text.split("\n")).last
        assert start is not None
        expected = sample.printed[expression]
        assert getattr(start.processes[""], field) == pytest.approx(float(expected.replace(",", ""))), (
            sample.text
        )
    assert checked


def test_every_release_is_covered() -> None:
    facts = data()
    assert facts["releases"][0] == OLDEST
    assert facts["releases"][-1] == NEWEST
    for name in (
        "model_loading",
        "available_kv",
        "capacity",
        "graph_capture",
        "profile_result",
        "refused_request",
        "refused_no_blocks",
        "oom_sampler",
        "summary",
        "engine_config",
    ):
        covered = {release for row in facts["lines"][name] for release in row["releases"]}
        assert covered == set(facts["releases"]), name


def test_every_field_of_a_pattern_has_a_place_in_the_record() -> None:
    places = set(Figures.model_fields) | {
        "kv_usage_percent",
        "running_reqs",
        "waiting_reqs",
        "swapped_reqs",
        "preempted_requests",
        "prompt_tokens_per_second",
        "generation_tokens_per_second",
        "prefix_hit_percent",
        "cpu_kv_usage_percent",
    }
    for item in FORMATS:
        if item.kind.startswith("iteration"):
            continue
        for name in item.fields:
            assert name.removesuffix("_text") in places, (item.kind, name)
    assert "iteration_context_tokens_max" in Running.model_fields
