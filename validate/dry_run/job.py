"""What the engine side is asked to run: a model's published files, vLLM's own flags, one rank."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.inputs.command_line import emit_command_line
from vllm_capacity.inputs.models import WITHOUT_CONFIG
from vllm_capacity.releases.release import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One model in one layout with one set of flags."""

    model: str
    """Folder that holds config.json."""
    flags: tuple[str, ...]
    usage: str
    environment: Mapping[str, str]

    def message(self, rank: int, *, profile: bool, force_eager: bool, top: int) -> dict[str, Any]:
        return {
            "op": "rank",
            "model": self.model,
            "flags": list(self.flags),
            "usage": self.usage,
            "environment": dict(self.environment),
            "rank": rank,
            "profile": profile,
            "force_eager": force_eager,
            "top": top,
        }


def make_job(folder: Path, args: EngineArgs, release: Release) -> Job:
    """The flags as the release's own parser takes them. Raises InputError for one that it does not have."""
    line = shlex.split(emit_command_line("model", replace(args, environment={}), release))
    return Job(model=str(folder), flags=tuple(line[3:]), usage=args.usage, environment=args.environment)


def with_draft_folder(args: EngineArgs, folder: Path) -> EngineArgs:
    """The draft model that `--speculative-config` names as a folder below `folder`, as vLLM finds no Hub. Raises InputError."""
    given = args.other("speculative_config")
    name = given.get("model") if isinstance(given, Mapping) else None
    if not isinstance(name, str) or name.strip("[]") in WITHOUT_CONFIG:
        return args
    # vLLM looks for the method in the name
    draft = write_model(name, folder / Path(name).name)
    return replace(args, others={**args.others, "speculative_config": {**given, "model": str(draft)}})


def write_model(model: str, folder: Path) -> Path:
    """config.json (and hf_quant_config.json) as published, in a folder of their own. Raises InputError."""
    from vllm_capacity.validate.runner import config_files

    folder.mkdir(parents=True, exist_ok=True)
    for name, content in config_files(model).items():
        (folder / name).write_text(json.dumps(content))
    return folder


def describe_gpu(device: Device) -> dict[str, Any]:
    """The device as the engine side imitates it. vLLM looks tuned kernels up under nvidia-smi's product name."""
    product = next((name for name in device.aliases if name.startswith(("NVIDIA ", "Tesla "))), device.name)
    return {
        "product_name": product,
        "compute_capability": list(device.compute_capability),
        "cuda_total_bytes": device.cuda_total_bytes,
        "nvml_total_bytes": device.nvml_total_bytes,
        "num_sms": device.num_sms,
        "integrated": device.integrated,
    }
