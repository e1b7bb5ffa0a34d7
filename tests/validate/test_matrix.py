from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vllm_capacity.validate
from vllm_capacity.errors import InputError
from vllm_capacity.validate.matrix import expected_seconds, load_matrix, run_matrix, seconds_left
from vllm_capacity.validate.record import RunRecord, RunRequest, RunStatus, read_records
from vllm_capacity.validate.runner import RunnerSettings, run

MATRICES = Path(vllm_capacity.validate.__file__).parent / "matrices"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_defaults_runs_and_sweeps_become_requests(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.yaml",
        """
defaults: {limit_s: 99, flags: {max_model_len: 4096, max_num_seqs: 8}, env: {A: "1"}}
runs:
  - {name: one, model: m/one, flags: {max_num_seqs: 16}}
sweeps:
  - models: {x: m/x, y: m/y}
    variants:
      eager: {flags: {enforce_eager: true}}
      plain: {}
""",
    )
    requests = load_matrix(path)
    assert [r.name for r in requests] == ["one", "x-eager", "x-plain", "y-eager", "y-plain"]
    assert requests[0].flags == {"max_model_len": 4096, "max_num_seqs": 16}
    assert requests[1].flags == {"max_model_len": 4096, "max_num_seqs": 8, "enforce_eager": True}
    assert all(r.limit_s == 99 and r.env == {"A": "1"} for r in requests)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("runs: [{name: a}]", "run 'a': model"),
        ("runs: [{name: a, model: m}, {name: a, model: m}]", "twice: a"),
        ("runs: [{name: a, model: m, colour: red}]", "colour"),
        ("other: 1", "other"),
        ("runs: [", "not YAML"),
    ],
)
def test_a_bad_matrix_is_one_line_that_names_the_place(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        load_matrix(write(tmp_path / "m.yaml", text))


@pytest.mark.parametrize("path", sorted(MATRICES.glob("*.yaml")), ids=lambda p: p.stem)
def test_bundled_matrices_name_catalogue_models_and_say_the_server_defaults(path: Path) -> None:
    from vllm_capacity.inputs.catalogue import find_entry
    from vllm_capacity.validate.runner import engine_arguments

    for request in load_matrix(path):
        assert find_entry(request.model) is not None, request.model
        engine_arguments(request, "folder", None)


class Clockwork:
    """Runs that take as long as they say, with a note of what ran beside what."""

    def __init__(self, seconds: dict[str, float], returned: bool = True) -> None:
        self.seconds, self.returned = seconds, returned
        self.now: set[str] = set()
        self.seen: list[tuple[str, tuple[int, ...], frozenset[str]]] = []
        self.limits: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, request: RunRequest, settings: RunnerSettings, _tick: Any) -> RunRecord:
        with self._lock:
            self.seen.append((request.name, settings.gpu_indices or (), frozenset(self.now)))
            self.now.add(request.name)
        self.limits[request.name] = request.limit_s
        time.sleep(self.seconds.get(request.name, 0.05))
        with self._lock:
            self.now.discard(request.name)
        return RunRecord(
            tool_version="0",
            request=request,
            status=RunStatus.OK,
            durations={"total_s": 1.0},
            gpu_memory_returned=self.returned,
        )


def requests(*names: str, **fields: Any) -> list[RunRequest]:
    return [RunRequest(name=n, model=f"m/{n}", expect_s=1.0, **fields) for n in names]


def test_runs_fill_the_gpus_and_a_run_of_two_gpus_has_them_to_itself(
    tmp_path: Path, settings: RunnerSettings
) -> None:
    clockwork = Clockwork({"a": 0.5, "b": 0.5})
    wide = RunRequest(name="wide", model="m", flags={"tensor_parallel_size": 2}, expect_s=1.0)
    report = run_matrix(
        [*requests("a", "b"), wide, *requests("c")],
        settings,
        tmp_path / "r.jsonl",
        gpus=[0, 1],
        run=clockwork,
    )
    assert [r.name for r in report.done] != []
    seen = {name: (gpus, beside) for name, gpus, beside in clockwork.seen}
    assert seen["b"] == ((1,), frozenset({"a"}))
    assert seen["wide"] == ((0, 1), frozenset())
    assert [name for name, _, _ in clockwork.seen].index("c") == 3


def test_runs_that_share_a_compile_cache_never_overlap(tmp_path: Path, settings: RunnerSettings) -> None:
    clockwork = Clockwork({"cold": 0.5})
    runs = [*requests("cold", "warm", compile_cache="x"), *requests("other")]
    run_matrix(runs, settings, tmp_path / "r.jsonl", gpus=[0, 1], run=clockwork)
    assert next(beside for name, _, beside in clockwork.seen if name == "warm") <= {"other"}
    assert [name for name, _, _ in clockwork.seen] == ["cold", "other", "warm"]


def test_a_budget_never_starts_a_run_that_would_not_finish(tmp_path: Path, settings: RunnerSettings) -> None:
    clockwork = Clockwork({})
    runs = [RunRequest(name=n, model=n, expect_s=s) for n, s in (("short", 5), ("long", 500), ("brief", 5))]
    report = run_matrix(runs, settings, tmp_path / "r.jsonl", gpus=[0], budget_s=60, run=clockwork)
    assert [r.name for r in report.done] == ["short", "brief"]
    assert report.skipped == {"long": "not enough time left"}
    assert clockwork.limits["short"] <= 50


def test_a_second_call_resumes(tmp_path: Path, settings: RunnerSettings) -> None:
    path = tmp_path / "r.jsonl"
    run_matrix(requests("a", "b"), settings, path, gpus=[0], run=Clockwork({}))
    again = run_matrix(requests("a", "b", "c"), settings, path, gpus=[0], run=Clockwork({}))
    assert [r.name for r in again.done] == ["c"]
    assert again.skipped == {"a": "recorded before", "b": "recorded before"}
    assert [r.name for r in read_records(path)] == ["a", "b", "c"]


def test_a_run_whose_flags_changed_is_run_again(tmp_path: Path, settings: RunnerSettings) -> None:
    path = tmp_path / "r.jsonl"
    run_matrix(requests("a"), settings, path, gpus=[0], run=Clockwork({}))
    changed = run_matrix(
        requests("a", flags={"max_num_seqs": 1}), settings, path, gpus=[0], run=Clockwork({})
    )
    assert [r.name for r in changed.done] == ["a"]


def test_a_gpu_whose_memory_did_not_come_back_is_not_used_again(
    tmp_path: Path, settings: RunnerSettings
) -> None:
    report = run_matrix(
        requests("a", "b"), settings, tmp_path / "r.jsonl", gpus=[0], run=Clockwork({}, returned=False)
    )
    assert [r.name for r in report.done] == ["a"]
    assert report.skipped == {"b": "a GPU's memory did not come back"}


def test_expectations_come_from_earlier_records_first() -> None:
    request = RunRequest(name="a", model="m", expect_s=30)
    earlier = RunRecord(tool_version="0", request=request, status=RunStatus.OK, durations={"total_s": 77.0})
    assert expected_seconds(request, []) == 30
    assert expected_seconds(request, [earlier]) == 77
    sibling = RunRequest(name="b", model="m")
    assert expected_seconds(sibling, [earlier]) == 77
    assert seconds_left([request, sibling], [earlier], 1) == 77


def test_a_matrix_goes_through_real_processes_and_failures(
    tmp_path: Path, settings: RunnerSettings, make_request: Callable[..., RunRequest]
) -> None:
    runs = [make_request("good"), make_request("bad", die="load_model:kill"), make_request("good-too")]
    path = tmp_path / "r.jsonl"
    run_matrix(runs, settings, path, gpus=[0, 1], run=run)
    assert {r.name: r.status.value for r in read_records(path)} == {
        "good": "ok",
        "bad": "failed",
        "good-too": "ok",
    }
    again = run_matrix(runs, settings, path, gpus=[0], run=run)
    assert [r.name for r in again.done] == ["bad"]
