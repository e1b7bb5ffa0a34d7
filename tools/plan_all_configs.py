"""Plans every model of the bundled catalogue, and every config.json of the folders given.

    python tools/plan_all_configs.py [FOLDER ...] [--gpu H200] [--tp N] [--quiet]

Each is planned on the newest supported release that runs it: where vLLM refuses the architecture, the release before
is asked. The tensor-parallel size is the smallest of 1, 2, 4, 8 with which it starts (else the largest that vLLM
accepts). A folder may hold `<owner>--<name>.json` files; a side file of the same name in a folder `hf_quant_configs`
beside it is its hf_quant_config.json. Exit status 1 where a config is neither planned nor refused by vLLM.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from vllm_capacity.answer import Plan, RefusedPlan, Status
from vllm_capacity.calibration import load_calibration
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError, Reason
from vllm_capacity.inputs.catalogue import entries, find_entry, load_entry
from vllm_capacity.inputs.config_json import normalise, read_json
from vllm_capacity.inputs.engine_args import parse_engine_args
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.planner import make_plan
from vllm_capacity.releases import get_release, supported_releases
from vllm_capacity.releases.release import Release, version_key

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)


class Outcome(StrEnum):
    PLANNED = "planned"
    REFUSED = "refused by vLLM"
    NOT_MODELLED = "not modelled"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one config. `release`, `tp` and `plan` are those of the plan; `text` says why there is none."""

    name: str
    architecture: str
    outcome: Outcome
    release: str
    tp: int = 0
    plan: Plan | None = None
    text: str = ""

    def row(self) -> str:
        if self.plan is None:
            what = self.text
        else:
            status, reason = self.plan.verdict.status, self.plan.verdict.reason
            what = f"tp{self.tp} {status}" + (f" ({reason})" if reason else "")
            what += f", {self.plan.parameters:,} parameters, {self.plan.kv_cache.num_blocks:,} blocks"
        return f"{self.name:<66} {self.architecture:<40} {self.outcome:<16} {self.release:<7} {what}"


def plan_on_newest(
    config: ModelConfig,
    device: Device,
    *,
    sizes: Sequence[int] = TENSOR_PARALLEL_SIZES,
    releases: Sequence[Release] | None = None,
) -> Result:
    """The plan of `config` on the newest release that runs it, with the smallest size with which it starts."""
    refusal = ""
    newest_first = newest_to_oldest() if releases is None else releases
    architecture = config.architectures[0] if config.architectures else "(none)"
    for release in newest_first:
        try:
            found = _smallest(config, device, release, sizes)
        except InputError as error:
            return Result(config.name, architecture, Outcome.NOT_MODELLED, release.version, text=str(error))
        if isinstance(found, RefusedPlan):
            refusal = refusal or found.verdict.message
            if found.verdict.reason is Reason.UNSUPPORTED_BY_RELEASE:
                continue
            return Result(
                config.name, architecture, Outcome.REFUSED, release.version, text=found.verdict.message
            )
        tp = found.engine.parallel.tp
        return Result(config.name, architecture, Outcome.PLANNED, release.version, tp, found)
    return Result(config.name, architecture, Outcome.REFUSED, newest_first[0].version, text=refusal)


def newest_to_oldest() -> tuple[Release, ...]:
    versions = sorted((str(version) for version in supported_releases()), key=version_key, reverse=True)
    return tuple(get_release(version) for version in versions)


def _smallest(
    config: ModelConfig, device: Device, release: Release, sizes: Sequence[int]
) -> Plan | RefusedPlan:
    best: Plan | RefusedPlan | None = None
    for tp in sizes:
        args: EngineArgs = parse_engine_args({"tensor_parallel_size": tp}, release=release)
        plan = make_plan(config, args, device, release, suggestions=False, calibration=load_calibration(None))
        if isinstance(plan, RefusedPlan):
            if best is None or plan.verdict.reason is Reason.UNSUPPORTED_BY_RELEASE:
                best = plan
            continue
        best = plan
        if plan.verdict.status is Status.STARTS:
            break
    assert best is not None
    return best


def catalogue_configs() -> Iterator[ModelConfig]:
    """Every entry of models.yaml."""
    for entry in entries():
        yield load_entry(entry, {})


def folder_configs(folder: Path) -> Iterator[ModelConfig]:
    """Every `*.json` of a folder; `owner--name.json` is named owner/name."""
    for path in sorted(folder.glob("*.json")):
        root = read_json(path)
        side = folder.parent / "hf_quant_configs" / path.name
        name = path.stem.replace("--", "/", 1)
        entry = find_entry(name)
        if entry is not None and not root.get("architectures"):
            # an incomplete copy: the catalogue names its class
            root = {**root, **{key: entry.config[key] for key in ("architectures", "model_type")}}
        quantization = read_json(side) if root.get("quantization_config") is None and side.is_file() else None
        yield normalise(name, root, source=f"local file {path}", quantization=quantization)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--tp", type=int, help="one tensor-parallel size instead of the smallest that starts")
    parser.add_argument("--quiet", action="store_true", help="only what is not planned, and the counts")
    options = parser.parse_args(argv)
    configs: Iterable[ModelConfig] = (
        (config for folder in options.folders for config in folder_configs(folder))
        if options.folders
        else catalogue_configs()
    )
    device = find_device(options.gpu)
    sizes = (options.tp,) if options.tp else TENSOR_PARALLEL_SIZES
    counts = dict.fromkeys(Outcome, 0)
    for config in configs:
        result = plan_on_newest(config, device, sizes=sizes)
        counts[result.outcome] += 1
        if not options.quiet or result.outcome is not Outcome.PLANNED:
            print(result.row(), flush=True)
    print(", ".join(f"{outcome}: {count}" for outcome, count in counts.items()))
    return 1 if counts[Outcome.NOT_MODELLED] else 0


if __name__ == "__main__":
    sys.exit(main())
