"""Scenario logs (tests/data/logs/scenarios): cause, component, evidence, figures, and remedies that hold
when planned again."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.answer import Plan
from vllm_capacity.diagnosis import Confidence, Diagnosis
from vllm_capacity.diagnosis.causes import Basis
from vllm_capacity.diagnosis.diagnose import diagnose_with_run
from vllm_capacity.diagnosis.margins import BUDGET, margin
from vllm_capacity.diagnosis.rebuild import Given, Rebuilt
from vllm_capacity.inputs.command_line import parse_flags
from vllm_capacity.inputs.engine_args import merge_engine_args
from vllm_capacity.logs import LogRecord, read_log
from vllm_capacity.logs.failures import Phase
from vllm_capacity.report.explain_text import diagnosis_to_dict, explain_lines
from vllm_capacity.units import GIB

FOLDER = Path(__file__).parents[1] / "data" / "logs" / "scenarios"
DOCS = Path(__file__).parents[2] / "docs" / "errors"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
NAMES = sorted(EXPECTED)


@cache
def read(name: str) -> LogRecord:
    with (FOLDER / name).open("rb") as file:
        return read_log(file)


@cache
def answer(name: str) -> tuple[Diagnosis, Rebuilt | None]:
    return diagnose_with_run(read(name), Given(offline=True))


def test_there_are_enough_scenarios() -> None:
    assert len(NAMES) >= 30
    assert len({facts["cause"] for facts in EXPECTED.values()}) >= 17


@pytest.mark.parametrize("name", NAMES)
def test_cause_component_and_confidence(name: str) -> None:
    facts, (diagnosis, _) = EXPECTED[name], answer(name)
    finding = diagnosis.finding
    if facts["cause"] is None:
        assert finding is None
        assert diagnosis.exit_code == 0
        return
    assert finding is not None
    assert finding.cause.value == facts["cause"]
    assert (finding.component.value if finding.component else None) == facts["component"]
    assert finding.confidence == Confidence(facts["confidence"])
    assert diagnosis.exit_code == 1


@pytest.mark.parametrize("name", [name for name in NAMES if EXPECTED[name]["cause"]])
def test_figures_and_evidence(name: str) -> None:
    facts, (diagnosis, _) = EXPECTED[name], answer(name)
    finding = diagnosis.finding
    assert finding is not None
    for field, value in facts["figures"].items():
        assert finding.figures[field] == pytest.approx(value), field
    if facts["missing_gib"] is not None:
        assert finding.missing_bytes is not None
        assert finding.missing_bytes / GIB == pytest.approx(facts["missing_gib"], abs=0.006)
    assert finding.evidence
    shown = " ".join(evidence.text for evidence in finding.evidence)
    assert (facts["evidence"] or "") in shown
    assert not re.search(r"pid=\d+\)", shown), "prefixes are no evidence"


@pytest.mark.parametrize("name", NAMES)
def test_observations(name: str) -> None:
    facts, (diagnosis, _) = EXPECTED[name], answer(name)
    if facts["observation"]:
        assert facts["observation"] in [observation.topic for observation in diagnosis.observations]


@pytest.mark.parametrize("name", [name for name in NAMES if EXPECTED[name]["flags"]])
def test_expected_remedies_are_offered(name: str) -> None:
    diagnosis, _ = answer(name)
    offered = [remedy.flags[0] for remedy in diagnosis.remedies if remedy.flags]
    for flag in EXPECTED[name]["flags"]:
        assert flag in offered


@pytest.mark.parametrize("name", NAMES)
def test_no_remedy_without_a_number(name: str) -> None:
    for remedy in answer(name)[0].remedies:
        if remedy.flags and remedy.flags[0].startswith("--gpu-memory-utilization"):
            assert re.fullmatch(r"0\.\d+|1", remedy.flags[1])
        if remedy.flags and remedy.flags[0] not in (
            "--enforce-eager",
            "VLLM_DEBUG_WORKSPACE=1",
            "--language-model-only",
        ):
            assert re.search(r"\d", " ".join(remedy.flags[1:])), remedy
        if remedy.basis is Basis.PLANNED:
            assert re.search(r"\d", remedy.effect), remedy


@pytest.mark.parametrize("name", NAMES)
def test_a_planned_remedy_holds_when_planned_again(name: str) -> None:
    """The flags as printed, parsed by vLLM's rules and planned: the freed bytes are those that were
    promised."""
    diagnosis, run = answer(name)
    finding = diagnosis.finding
    if finding is None or run is None:
        return
    for remedy in diagnosis.remedies:
        if remedy.basis is not Basis.PLANNED or remedy.spare_bytes is None:
            continue
        flags = parse_flags(remedy.flags, release=run.release)
        plan = run.again(
            merge_engine_args(run.args, {**flags, "allow_unmodelled": True}, release=run.release)
        )
        assert isinstance(plan, Plan)
        before, after = (margin(p, finding.cause, finding.phase) for p in (run.plan, plan))
        assert after - before == remedy.frees_bytes
        assert remedy.starts == (remedy.spare_bytes >= 0) or not remedy.starts
        if remedy.starts and finding.cause not in BUDGET and finding.phase is not Phase.REQUEST:
            assert plan.verdict.reason in (None, finding.cause, run.plan.verdict.reason)


@pytest.mark.parametrize("name", [name for name in NAMES if EXPECTED[name]["cause"]])
def test_the_page_of_the_scenario_quotes_the_error(name: str) -> None:
    """A person finds the page by the text of the error, and the report names it."""
    finding = answer(name)[0].finding
    assert finding is not None
    page = (DOCS / Path(finding.page).name).read_text(encoding="utf-8")
    assert f"`{finding.cause.value}`" in page
    words = re.findall(r"\w+", page)
    shared = {" ".join(words[i : i + 3]) for i in range(len(words) - 2)}
    log = re.findall(r"\w+", " ".join(evidence.text for evidence in finding.evidence))
    assert any(" ".join(log[i : i + 3]) in shared for i in range(len(log) - 2))


@pytest.mark.parametrize("name", NAMES)
def test_report_and_json_can_be_written(name: str) -> None:
    record, (diagnosis, _) = read(name), answer(name)
    lines = list(explain_lines(record, diagnosis))
    assert lines[0]
    data = json.loads(json.dumps(diagnosis_to_dict(record, diagnosis)))
    assert data["verdict"] == ("problem" if EXPECTED[name]["cause"] else "healthy")
    if diagnosis.finding:
        assert diagnosis.finding.headline + "." == lines[0]
        assert data["finding"]["cause"] == EXPECTED[name]["cause"]


@pytest.mark.parametrize(
    "name",
    [
        "carrier_kubectl.log",
        "carrier_docker_json.log",
        "carrier_compose_colours.log",
        "carrier_interleaved_ranks.log",
    ],
)
def test_a_carrier_changes_nothing(name: str) -> None:
    plain, carried = answer("sampler_warmup.log")[0], answer(name)[0]
    assert plain.finding is not None
    assert carried.finding is not None
    assert carried.finding.headline == plain.finding.headline
    assert carried.finding.figures == plain.finding.figures
    assert [r.flags for r in carried.remedies] == [r.flags for r in plain.remedies]


def test_the_last_start_counts() -> None:
    diagnosis, _ = answer("crash_loop.log")
    assert diagnosis.start_count == 3
    assert diagnosis.finding is not None
    assert diagnosis.finding.figures["free_gib"] == 62.0


_BUDGET = re.compile(
    r"Total non KV cache memory: ([\d.]+)GiB; torch peak memory increase: ([\d.]+)GiB; "
    r"non-torch forward increase memory: "
    r"([\d.]+)GiB; weights memory: ([\d.]+)GiB"
)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".log")])
def test_scenarios_are_possible_by_vllms_formulas(name: str) -> None:
    """requested = total x share; non-KV = weights + peak + non-torch; available = requested - non-KV - graph
    estimate."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    for total, share, requested in re.findall(
        r"/([\d.]+) GiB\) on startup(?: is less than desired GPU memory utilization|\. Desired GPU memory "
        r"utilization is) \(([\d.]+), ([\d.]+) GiB",
        text,
    ):
        assert float(requested) == pytest.approx(float(total) * float(share), abs=0.0051)
    for whole, peak, other, weights in _BUDGET.findall(text):
        assert float(whole) == pytest.approx(float(peak) + float(other) + float(weights), abs=0.0151)
    requested = re.search(r"Requested memory: [\d.]+ \(util\), ([\d.]+) GiB", text)
    budget = _BUDGET.search(text)
    available = re.search(r"Available KV cache memory: (-?[\d.]+) GiB", text)
    if requested and budget and available and name.startswith(("no_kv", "one_request")):
        graphs = re.search(r"Estimated CUDA graph memory: (-?[\d.]+) GiB", text)
        expected = float(requested[1]) - float(budget[1]) - (float(graphs[1]) if graphs else 0.0)
        assert float(available[1]) == pytest.approx(expected, abs=0.02)
    for tried, free in re.findall(r"Tried to allocate ([\d.]+) MiB.*?of which ([\d.]+) MiB is free", text):
        assert float(tried) > float(free)
