"""Dry-runs every eager run of the recorded starts and writes what came out beside what was measured.

usage: python tools/dry_run_records.py RECORDS.jsonl PYTHON [NAME...]

RECORDS is a file of `validate` (tests/data/records), PYTHON one that has the same vLLM. The result goes to
tests/data/dry_run/eager_VERSION.jsonl, one line a run; tests/dry_run/test_eager_records.py holds it to the records.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vllm_capacity.calibration import load_calibration
from vllm_capacity.inputs.engine_args import parse_engine_args
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.models import load_model
from vllm_capacity.releases import get_release
from vllm_capacity.request import Inputs
from vllm_capacity.validate.dry_run import as_plan
from vllm_capacity.validate.dry_run.command import installed_release
from vllm_capacity.validate.dry_run.run import dry_run
from vllm_capacity.validate.record import RunRecord, read_records

OUTPUT = Path(__file__).resolve().parents[1] / "tests" / "data" / "dry_run"


def is_eager(record: RunRecord) -> bool:
    """Eager, and profiled: with `kv_cache_memory_bytes` vLLM runs no profile."""
    profiled = [rank.profiling.result for rank in record.ranks if rank.profiling is not None]
    return bool(record.request.flags.get("enforce_eager")) and any(r is not None for r in profiled)


def inputs_of(record: RunRecord, version: str) -> Inputs:
    request = record.request
    release = get_release(version)
    flags: dict[str, Any] = {name: value for name, value in request.flags.items() if value is not None}
    if request.config_changes:
        flags["hf_overrides"] = {**request.config_changes, **flags.get("hf_overrides", {})}
    environment = {**record.environment, **request.env}
    args = parse_engine_args({**flags, "usage": request.usage, "environment": environment}, release=release)
    return Inputs(
        model=request.model,
        config=load_model(request.model, hf_overrides=args.hf_overrides),
        args=args,
        degrees=(args.tensor_parallel_size,),
        device=find_device(record.gpus[0].name),
        used_by_others_bytes=0,
        release=release,
        release_source="installed in PYTHON",
        concurrency=None,
        calibration=load_calibration(None),
        warnings=(),
    )


def main(records: Path, python: str, names: list[str]) -> None:
    version = installed_release(python)
    output = OUTPUT / f"eager_{version}.jsonl"
    lines = output.read_text().splitlines() if output.exists() else []
    kept = {row["name"]: row for row in map(json.loads, lines)}
    for record in read_records(records):
        name = record.request.name
        if record.versions.get("vllm") != version or not is_eager(record) or (names and name not in names):
            continue
        inputs = inputs_of(record, version)
        answer = as_plan.to_dict(dry_run(inputs, inputs.args, python, ranks="all", top=0))
        kept[name] = {
            "name": name,
            "activation_peak_bytes": [rank["activation_peak_bytes"] for rank in answer["ranks"]],
            "not_exact": answer["dry_run"]["not_exact"],
        }
        print(
            name, kept[name]["activation_peak_bytes"], [measured(rank) for rank in record.ranks], flush=True
        )
        output.write_text("".join(json.dumps(row) + "\n" for _, row in sorted(kept.items())))


def measured(rank: Any) -> int | None:
    result = rank.profiling.result if rank.profiling is not None else None
    return None if result is None else int(result["torch_peak_increase"])


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
