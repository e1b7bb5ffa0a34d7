"""Correction factors from recorded runs: only for what no source code tells, keyed by what causes it.

A plan is linear in each entry of the calibration file. So each run gives equations: what it measured (CUDA
context, communication before the baseline, growth of non-torch memory) = what the plan says with the entries
as unknowns. Exact terms stand on the plan's side and are never touched.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from vllm_capacity.calibration import Calibration, Measurement, user_file
from vllm_capacity.errors import InputError
from vllm_capacity.validate.compare import compare
from vllm_capacity.validate.fit import Equation, solve
from vllm_capacity.validate.record import RunRecord, RunStatus, append_record, read_records, write_file

NOT_FITTED = frozenset({"l2_cache", "allocator_fragmentation"})
"""Constants of the calibration file that are facts of the device."""
QUANTITIES = (
    "cuda_context", "communication", "first_kernels", "kernel_modules", "graph_probe", "graph_estimate", "non_torch",
)  # fmt: skip
"""Rows of a comparison that empirical terms add up to."""
_NCCL = ("sm", "torch", "world")
CAUSES: Mapping[str, tuple[str, ...]] = {
    "collectives": ("sm", "torch", "tp", "fused_all_reduce", "nvls"),
    "nccl": _NCCL,
    "nccl_world": _NCCL,
    "pipeline_transfers": _NCCL,
}
"""What an entry is keyed by; other components by compute capability and PyTorch (which pins CUDA and NCCL).
"""
DEFAULT_CAUSES = ("sm", "torch")
MINIMUM_RUNS = 3
UNEXPLAINED_LIMIT = 0.005
"""The part of the device that may stay unexplained."""
STEP = 1 << 20

Predict = Callable[[RunRecord, Calibration], Mapping[str, Any]]
"""Plans a recorded run again with a calibration; gives what `plan --json` prints."""


@dataclass(frozen=True, slots=True)
class Refinement:
    """What a refit found. Errors are bytes, absolute."""

    entries: tuple[Measurement, ...]
    refused: Mapping[str, str]
    """Entry to why it was left as it is."""
    runs: tuple[str, ...]
    in_sample_mean: float
    left_out_mean: float | None
    """Mean error on each model with the factors fitted without it; None with one model."""
    left_out_worst: float | None
    unexplained: int
    """Median of what is left over, before the limit; bytes."""
    by_model: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Observation:
    quantity: str
    measured: int
    predicted: int
    slopes: Mapping[str, float]
    """Entry name to how many bytes the prediction moves per byte of the entry."""
    record: RunRecord
    device_bytes: int


def facts_of(record: RunRecord, plan: Mapping[str, Any]) -> dict[str, Any]:
    """What calibration entries are looked up by (`vllm_capacity.calibration.facts`), from a record and its
    plan.
    """
    major, _, minor = str(plan["gpu"]["compute_capability"]).partition(".")
    engine = plan["engine"]
    sizes = [int(engine.get(f"{kind}_parallel_size") or 1) for kind in ("tensor", "pipeline", "data")]
    passes = (record.request.flags.get("compilation_config") or {}).get("pass_config") or {}
    able = sizes[0] > 1 and not engine.get("enforce_eager")
    env = {**record.environment, **record.request.env}
    return {
        "device": plan["gpu"]["name"],
        "sm": int(major) * 10 + int(minor),
        "tp": plan["engine"]["tensor_parallel_size"],
        "torch": (record.versions.get("torch") or "").split("+")[0] or None,
        "model_runner": plan["engine"].get("model_runner"),
        "world": math.prod(sizes),
        "nvls": env.get("NCCL_NVLS_ENABLE", "1") != "0",
        "fused_all_reduce": bool(passes.get("fuse_allreduce_rms", able)),
    }


def refine(
    records: Sequence[RunRecord], predict: Predict, base: Calibration, *, minimum_runs: int = MINIMUM_RUNS
) -> Refinement:
    """Fit the empirical entries of `base` to the records that ran. Raises InputError with too few of them."""
    usable = [r for r in records if r.status is RunStatus.OK and r.ranks]
    if len({r.name for r in usable}) < minimum_runs:
        raise InputError(
            f"{len(usable)} usable runs; at least {minimum_runs} are needed to fit anything "
            "(record more with `validate --matrix`)"
        )
    observations, prior, when, owner = _observe(usable, predict, base)
    counts = {n: len({o.record.name for o in observations if n in o.slopes}) for n in prior}
    refused = {
        n: f"{count} runs, {minimum_runs} needed" for n, count in counts.items() if count < minimum_runs
    }
    unknown = {n: v for n, v in prior.items() if n not in refused}
    if not unknown:
        raise InputError(
            "no entry has enough runs behind it: "
            + "; ".join(f"{name}: {why}" for name, why in refused.items())
        )
    equations = [_equation(o, unknown, prior) for o in observations]
    equations = [e for e in equations if e.coefficients]
    solution = solve(equations, unknown)
    residuals = [abs(e.residual(solution)) for e in equations]
    by_model = _left_out(equations, unknown)
    rest = _unexplained(observations, prior, {**prior, **solution})
    entries = [_entry(n, owner[n], solution[n], when[n], equations, solution) for n in unknown]
    limit = min((o.device_bytes for o in observations), default=0) * UNEXPLAINED_LIMIT
    kept = int(min(max(rest, 0), limit))
    if kept:
        entries.append(
            Measurement(
                "unexplained",
                "unexplained",
                kept,
                0,
                kept,
                f"median rest of {len(usable)} runs, at most {UNEXPLAINED_LIMIT:.1%} of the device",
                tuple(sorted({r.name for r in usable})),
                {},
                "refined",
            )
        )
    return Refinement(
        tuple(entries),
        refused,
        tuple(sorted({r.name for r in usable})),
        _mean(residuals),
        _mean(list(by_model.values())) if by_model else None,
        max(by_model.values(), default=None),
        int(rest),
        by_model,
    )


def _observe(
    records: Sequence[RunRecord], predict: Predict, base: Calibration
) -> tuple[list[_Observation], dict[str, float], dict[str, dict[str, Any]], dict[str, str]]:
    """Observations, and per entry its value before, its conditions and its component."""
    components = sorted({m.component for m in base.measurements} - NOT_FITTED)
    observations: list[_Observation] = []
    prior: dict[str, float] = {}
    when: dict[str, dict[str, Any]] = {}
    owner: dict[str, str] = {}
    for record in records:
        plan = predict(record, base)
        facts = facts_of(record, plan)
        rows = {(r.name, r.rank): r for r in compare(plan, record).rows if r.name in QUANTITIES}
        moved: dict[str, Mapping[tuple[str, int | None], int | None]] = {}
        for component in components:
            used = base.find(component, **facts)
            if used is None:
                continue
            more = Measurement(
                "step", component, used.n_bytes + STEP, used.low, used.high + STEP, "", (), {}, "refine"
            )
            stepped = predict(record, Calibration((more, *base.measurements), "refine"))
            again = {
                (r.name, r.rank): r.predicted for r in compare(stepped, record).rows if r.name in QUANTITIES
            }
            name, causes = _key(component, facts)
            changed = {
                key: (value or 0) - (rows[key].predicted or 0)
                for key, value in again.items()
                if key in rows and rows[key].predicted is not None and value != rows[key].predicted
            }
            if changed:
                moved[name] = changed
                prior.setdefault(name, float(used.n_bytes))
                when[name] = causes
                owner[name] = component
        device = int(plan["gpu"]["cuda_total_bytes"])
        for key, row in rows.items():
            if row.measured is None or row.predicted is None:
                continue
            slopes = {
                name: (changes.get(key) or 0) / STEP for name, changes in moved.items() if changes.get(key)
            }
            observations.append(_Observation(key[0], row.measured, row.predicted, slopes, record, device))
    return observations, prior, when, owner


def _key(component: str, facts: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and conditions of the entry that a fact belongs to."""
    causes: dict[str, Any] = {}
    for cause in CAUSES.get(component, DEFAULT_CAUSES):
        value = facts.get(cause)
        if value is None:
            continue
        causes[cause] = ".".join(str(value).split(".")[:2]) if cause == "torch" else [value]
    parts = [f"{c}{causes[c] if c == 'torch' else causes[c][0]}" for c in causes]
    return "-".join([component, *parts]).replace("_", "-"), causes


def _equation(o: _Observation, unknown: Mapping[str, float], prior: Mapping[str, float]) -> Equation:
    """Exact terms and refused entries stay on the known side."""
    mine = {name: slope for name, slope in o.slopes.items() if name in unknown}
    known = o.predicted - sum(slope * prior[name] for name, slope in mine.items())
    return Equation(mine, o.measured - known, o.record.name, o.record.request.model)


def _left_out(equations: Sequence[Equation], unknown: Mapping[str, float]) -> dict[str, float]:
    models = sorted({e.model for e in equations})
    if len(models) < 2:
        return {}
    errors = {}
    for model in models:
        solution = solve([e for e in equations if e.model != model], unknown)
        errors[model] = _mean([abs(e.residual(solution)) for e in equations if e.model == model])
    return errors


def _unexplained(
    observations: Sequence[_Observation], prior: Mapping[str, float], values: Mapping[str, float]
) -> float:
    """Median over runs of the non-torch memory (on the fullest rank) that neither exact terms nor entries explain."""
    rests: dict[str, float] = {}
    for o in observations:
        if o.quantity == "non_torch":
            fitted = o.predicted + sum(slope * (values[n] - prior[n]) for n, slope in o.slopes.items())
            rests[o.record.name] = max(rests.get(o.record.name, -math.inf), o.measured - fitted)
    return median(rests.values()) if rests else 0.0


def _entry(
    name: str,
    component: str,
    value: float,
    when: Mapping[str, Any],
    equations: Sequence[Equation],
    solution: Mapping[str, float],
) -> Measurement:
    """The entry with the spread that its runs imply when all of their rest is put on it."""
    mine = [e for e in equations if name in e.coefficients]
    implied = [value + e.residual(solution) / e.coefficients[name] for e in mine]
    n_bytes = round(value)
    return Measurement(
        name,
        component,
        n_bytes,
        max(0, min(n_bytes, int(min(implied)))),
        max(n_bytes, int(max(implied)) + 1),
        f"fitted to {len(mine)} observations of {len({e.run for e in mine})} runs",
        tuple(sorted({e.run for e in mine})),
        dict(when),
        "refined",
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


# -- files and text
# --------------------------------------------------------------------------------------------------
def to_yaml(refinement: Refinement) -> str:
    """Entries in the form of `capacity/calibration.yaml`."""
    lines = [
        "# Written by `vllm-capacity refine`; entries here come before the built-in ones.",
        f"# {len(refinement.runs)} runs; mean error {refinement.in_sample_mean / 2**20:.1f} MiB in sample"
        + (
            ""
            if refinement.left_out_mean is None
            else f", {refinement.left_out_mean / 2**20:.1f} MiB on models left out"
        ),
        "measurements:",
    ]
    for m in refinement.entries:
        lines.append(f"  {m.name}:")
        fields = {
            "component": m.component,
            "when": dict(m.when),
            "bytes": m.n_bytes,
            "low": m.low,
            "high": m.high,
            "runs": list(m.runs),
            "origin": m.origin,
        }
        lines += [f"    {key}: {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(lines) + "\n"


def summary(refinement: Refinement) -> list[str]:
    """What was fitted and how well, in lines."""
    lines = [
        f"{m.name}: {_shown(m.n_bytes)} ({_shown(m.low)} to {_shown(m.high)}), {m.origin}"
        for m in refinement.entries
    ]
    lines += [f"{name}: not refitted ({why})" for name, why in refinement.refused.items()]
    lines.append(f"mean error in sample {refinement.in_sample_mean / 2**20:.1f} MiB")
    if refinement.left_out_mean is not None:
        lines.append(
            f"leave-one-model-out: mean {refinement.left_out_mean / 2**20:.1f} MiB, worst "
            f"{(refinement.left_out_worst or 0) / 2**20:.1f} MiB"
        )
    lines.append(f"unexplained: {refinement.unexplained / 2**20:.1f} MiB")
    return lines


def _shown(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB" if n_bytes >= 1 << 20 or not n_bytes else f"{n_bytes:,} B"


def predict_again(record: RunRecord, calibration: Calibration) -> Mapping[str, Any]:
    """Plan a recorded run with a calibration, by this version of the tool."""
    from vllm_capacity.validate.planning import plan_request

    gpu = record.gpus[0].name if record.gpus else None
    if gpu is None and record.ranks and record.ranks[0].device:
        gpu = record.ranks[0].device["name"]
    env = {**record.environment, **record.request.env}
    request = record.request.model_copy(update={"env": env})
    return plan_request(request, record.versions.get("vllm"), gpu, calibration)


def refit_user_file(
    new: Sequence[RunRecord], predict: Predict = predict_again, base: Calibration | None = None
) -> str:
    """Keep records beside the user's calibration file and refit it from all of them; says what happened."""
    from vllm_capacity.calibration import load_calibration

    path = user_file()
    kept = path.with_name("records.jsonl")
    for record in new:
        append_record(kept, record)
    try:
        refinement = refine(read_records(kept), predict, base or load_calibration("none"))
    except InputError as error:
        return f"{path} not refitted: {error}"
    write_file(path, to_yaml(refinement))
    return "\n".join([f"refitted {path}", *summary(refinement)])
