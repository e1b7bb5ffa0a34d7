"""Measured constants: lookup by cause, a user's file before the built-in one, refusal of broken files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from recorded import H100, H200, run_named
from vllm_capacity import calibration as module
from vllm_capacity.calibration import (
    calibration,
    coverage,
    l2_cache,
    load_calibration,
    render,
    use_calibration,
)
from vllm_capacity.errors import InputError
from vllm_capacity.overheads import overhead_terms
from vllm_capacity.units import MIB

BUILT_IN = Path(module.__file__).with_name("calibration.yaml")


def test_the_fast_reader_agrees_with_yaml() -> None:
    entries = yaml.safe_load(BUILT_IN.read_text())["measurements"]
    read = {m.name: m for m in calibration().measurements}
    assert read.keys() == entries.keys()
    for name, fields in entries.items():
        m = read[name]
        assert (m.component, m.n_bytes, m.low, m.high) == tuple(
            fields[k] for k in ("component", "bytes", "low", "high")
        )
        assert (dict(m.when), list(m.runs), m.origin) == (fields["when"], fields["runs"], fields["origin"])


def test_every_measurement_says_where_it_comes_from() -> None:
    assert all(m.origin for m in calibration().measurements)


def test_the_device_decides_the_size_of_its_cache() -> None:
    assert l2_cache(H200).n_bytes == 60 * MIB
    assert l2_cache(H100).n_bytes == 50 * MIB
    assert l2_cache(replace(H100, name="NVIDIA L40S", compute_capability=(8, 9))).n_bytes == 96 * MIB
    assert l2_cache(replace(H100, name="NVIDIA L4", compute_capability=(8, 9))).n_bytes == 48 * MIB


def test_a_users_file_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "calibration.yaml"
    context = calibration().get("cuda_context", sm=90)
    path.write_text(render([replace(context, name="mine", n_bytes=600 * MIB, low=600 * MIB, high=600 * MIB)]))
    mine = load_calibration(path)
    with use_calibration(mine):
        terms = overhead_terms(run_named("h200/llama31-8b").context())
        assert next(t for t in terms if t.name == "cuda_context").n_bytes == 600 * MIB
        assert coverage(run_named("h200/llama31-8b").context()).source == str(path)
    assert calibration().source == "built-in"


@pytest.mark.parametrize(
    "text",
    [
        'measurements:\n  broken:\n    component: "nccl"\n    bytes: 5\n    low: 9\n    high: 9\n',
        'measurements:\n  broken:\n    component: "nccl"\n    bytes: oops\n    low: 0\n    high: 9\n',
        "measurements:\n  broken:\n    bytes: 5\n    low: 0\n    high: 9\n",
    ],
)
def test_a_broken_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"calibration file .*broken"):
        load_calibration(path)


def test_a_missing_file_that_was_asked_for_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_calibration(tmp_path / "none.yaml")


def test_coverage_names_what_no_run_stands_behind() -> None:
    ctx = run_named("h200/llama31-8b").context()
    assert coverage(ctx).outside_measured == ()
    elsewhere = replace(ctx, device=replace(H100, name="NVIDIA L40S", compute_capability=(8, 9)))
    assert any("L40S" in words for words in coverage(elsewhere).outside_measured)
