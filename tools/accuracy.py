"""Every recorded run beside what this version plans for it: the rows of docs/accuracy.md and of its tests.

Runs come from `tests/data/records` (records of `vllm-capacity validate`) and `tests/data/runs` (facts of public runs with
their URL, and of our own first ones). Plans are made with the built-in calibration, whose entries name the runs behind
them: no run of a model in the `unseen` half of `tests/data/records/split.yaml` may be among those.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from vllm_capacity.calibration import load_calibration
from vllm_capacity.errors import CapacityError
from vllm_capacity.inputs.engine_args import parse_engine_args
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.models import load_model, with_draft
from vllm_capacity.planner import make_plan
from vllm_capacity.releases import get_release
from vllm_capacity.report.json_report import plan_to_dict
from vllm_capacity.units import GIB
from vllm_capacity.validate.compare import compare
from vllm_capacity.validate.record import RunRecord, read_records
from vllm_capacity.validate.refine import predict_again

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"

TERMS = (
    "weights", "activation_peak", "non_torch", "graph_estimate", "graph_actual", "available_kv", "baseline", "device_used",
)  # fmt: skip
"""Figures that are compared, under the names that `validate` prints."""

_PRINTED = {
    "weights_gib": "weights",
    "activation_peak_gib": "activation_peak",
    "non_torch_gib": "non_torch",
    "cudagraph_estimated_gib": "graph_estimate",
    "cudagraph_pool_actual_gib": "graph_actual",
    "available_kv_gib": "available_kv",
}
_MEASURED = {
    "model_memory_usage": "weights",
    "peak_activation": "activation_peak",
    "non_torch": "non_torch",
    "cudagraph_estimate": "graph_estimate",
    "available_kv": "available_kv",
}
_PLANNED = {
    "weights": "weights_bytes",
    "activation_peak": "activation_peak_bytes",
    "non_torch": "non_torch_bytes",
    "graph_estimate": "graph_estimate_bytes",
    "graph_actual": "graph_actual_bytes",
    "available_kv": "available_kv_bytes",
    "device_used": "device_used_bytes",
}


@dataclass(frozen=True)
class Figure:
    """One figure of one rank, in bytes. `printed`: measured with two decimals of a GiB only."""

    term: str
    rank: int
    predicted: int
    measured: int
    printed: bool

    @property
    def error(self) -> int:
        return self.predicted - self.measured


@dataclass(frozen=True)
class Case:
    """One recorded run. `problem` says why there is no plan or no figure; else empty."""

    name: str
    model: str
    family: str
    release: str
    device: str
    device_bytes: int
    layout: str
    status: str
    origin: str
    unseen: bool
    figures: tuple[Figure, ...]
    problem: str = ""

    def figure(self, term: str) -> Figure | None:
        """The figure of that term with the largest error over the ranks."""
        found = [f for f in self.figures if f.term == term]
        return max(found, key=lambda f: abs(f.error), default=None)


@cache
def split() -> dict[str, list[str]]:
    """Models whose runs may stand behind a factor (`fit`) and those that only test them (`unseen`)."""
    loaded: dict[str, list[str]] = yaml.safe_load((DATA / "records" / "split.yaml").read_text())
    return loaded


@cache
def explained() -> list[dict[str, str]]:
    """Misses by name: run, term, why."""
    loaded: list[dict[str, str]] = yaml.safe_load((DATA / "records" / "explained.yaml").read_text())
    return loaded


def why(case: Case, term: str) -> str:
    """The explanation of a miss; empty where there is none."""
    return next((e["why"] for e in explained() if e["run"] == case.name and e["term"] == term), "")


@cache
def cases() -> tuple[Case, ...]:
    """All runs, none left out; records first, then the files of tests/data/runs."""
    return (*_records(), *_own_and_public(), *_others())


def _unseen(model: str) -> bool:
    known = split()
    bare = model.lower()
    if bare in map(str.lower, known["unseen"]):
        return True
    if bare in map(str.lower, known["fit"]):
        return False
    raise SystemExit(f"{model} is in neither half of tests/data/records/split.yaml")


# -- records of `validate`
def _records() -> Iterator[Case]:
    seen: dict[str, int] = {}
    for path in sorted((DATA / "records").glob("*.jsonl")):
        for record in read_records(path, tolerate_tail=False):
            seen[record.name] = seen.get(record.name, 0) + 1
            again = seen[record.name]
            yield _record(record, record.name if again == 1 else f"{record.name} ({again})")


def _record(record: RunRecord, name: str) -> Case:
    problem, figures, family = "", [], ""
    try:
        plan = predict_again(record, load_calibration("none"))
        family = plan["model"]["architecture"]
        figures = [
            Figure(row.name, row.rank, row.predicted, row.measured, printed=False)
            for row in compare(plan, record).rows
            if row.name in TERMS
            and row.rank is not None
            and row.predicted is not None
            and row.measured is not None
        ]
    except CapacityError as error:
        problem = f"no plan: {error}"
    device = next((r.device for r in record.ranks if r.device), None) or {"name": "", "cuda_total_bytes": 0}
    flags = record.request.flags
    if not any(f.term == "available_kv" for f in figures) and not problem:
        given = flags.get("kv_cache_memory_bytes")
        problem = (
            f"the KV cache was given ({given:,} bytes), so vLLM measured nothing for it"
            if given
            else f"{record.status.value} in {record.phase}, before the KV cache was sized"
        )
    return Case(
        name=name,
        model=record.request.model,
        family=family,
        release=record.versions.get("vllm") or "",
        device=str(device["name"]).removeprefix("NVIDIA "),
        device_bytes=int(device["cuda_total_bytes"]),
        layout=_layout(flags),
        status=record.status.value,
        origin="own",
        unseen=_unseen(record.request.model),
        figures=tuple(figures),
        problem=problem,
    )


def _layout(flags: Mapping[str, Any]) -> str:
    short = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp"}
    parts = [f"{short[k]}{flags[k]}" for k in short if int(flags.get(k) or 1) > 1]
    return " ".join([*parts, *(["ep"] if flags.get("enable_expert_parallel") else [])]) or "tp1"


# -- tests/data/runs
def _own_and_public() -> Iterator[Case]:
    sys.path.insert(0, str(ROOT / "tests"))
    from recorded import Run, ranks, runs

    stages: Run
    for stages in runs():
        facts = stages.facts
        measured: list[tuple[int, str, int, bool]] = []
        if "ranks" in facts["measured"]:
            for rank, found in enumerate(facts["measured"]["ranks"]):
                measured += [(rank, term, int(found[key]), False) for key, term in _MEASURED.items()]
                measured.append((rank, "baseline", int(found["init_total"] - found["init_free"]), False))
        else:
            for key, term in _PRINTED.items():
                if facts["measured"].get(key) is not None:
                    measured.append((0, term, round(facts["measured"][key] * GIB), True))
            for stage, _, figures in ranks(stages):
                if stage:
                    measured += [
                        (stage * stages.tp, term, round(figures[key] * GIB), True)
                        for key, term in (("weights", "weights"), ("activation", "activation_peak"))
                        if key in figures
                    ]
        yield _planned(
            facts["name"], facts["model"], facts["release"], facts["device"], facts["args"], measured,
            config=stages.config(), usage=facts["usage"], environment=_environment(facts), url=facts.get("url", "own"),
        )  # fmt: skip


def _environment(facts: Mapping[str, Any]) -> dict[str, str]:
    """Our own first runs had NVLink multicast off; public ones say what they set."""
    own = {"NCCL_NVLS_ENABLE": "0"} if facts["name"].startswith("h200/") else {}
    return {**own, **facts.get("environment", {})}


def _others() -> Iterator[Case]:
    for name in ("l40s_vllm_0.29.0.json", "public_others.json"):
        for facts in json.loads((DATA / "runs" / name).read_text()):
            gpu = "L40S" if "L40S" in facts["gpu"] else facts["gpu"]
            printed = {**facts["measured"]}
            if "model_loading_gib" in printed:
                printed["weights_gib"] = printed.pop("model_loading_gib")
            measured = [
                (0, term, round(printed[key] * GIB), True) for key, term in _PRINTED.items() if key in printed
            ]
            config = load_model(facts["config_of"], offline=True) if "config_of" in facts else None
            if config and "quantization" in facts:
                config = replace(config, quantization=facts["quantization"])
            yield _planned(
                facts["id"],
                facts["model"],
                facts["release"],
                gpu,
                facts["args"],
                measured,
                config=config,
                usage=facts.get("usage", "server"),
                url=facts["url"],
            )


def _planned(
    name: str, model: str, release_name: str, gpu: str, flags: Mapping[str, Any], measured: list[tuple[int, str, int, bool]],
    *, config: Any = None, usage: str = "server", environment: Mapping[str, str] | None = None, url: str,
) -> Case:  # fmt: skip
    release, device = get_release(release_name), find_device(gpu)
    figures: list[Figure] = []
    problem = family = ""
    try:
        given = {k: v for k, v in flags.items() if v is not None}
        args = parse_engine_args(
            {**given, "usage": usage, "environment": dict(environment or {})}, release=release
        )
        plan = make_plan(
            with_draft(config or load_model(model, offline=True), args, offline=True), args, device, release,
            suggestions=False, calibration=load_calibration("none"),
        )  # fmt: skip
        report = plan_to_dict(plan)
        family = report["model"]["architecture"]
        for rank, term, value, printed in measured:
            predicted = _of_plan(report, rank, term)
            if predicted is not None:
                figures.append(Figure(term, rank, predicted, value, printed))
    except CapacityError as error:
        problem = f"no plan: {error}"
    return Case(
        name=name, model=model, family=family, release=release_name,
        device=device.name, device_bytes=device.cuda_total_bytes, layout=_layout(flags),
        status="ok", origin=url, unseen=_unseen(model),
        figures=tuple(figures), problem=problem,
    )  # fmt: skip


def _of_plan(report: Mapping[str, Any], rank: int, term: str) -> int | None:
    planned = next((r for r in report["ranks"] if r["rank"] == rank), None)
    if planned is None:
        return None
    if term == "baseline":
        before = [
            t for t in planned["terms"] if t["lifetime"] == "before_snapshot" and t["allocator"] != "host"
        ]
        return sum(t["bytes"] for t in before)
    return int(planned[_PLANNED[term]])
