"""The plan of a run: what `plan --json` says about the same model, flags and GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from vllm_capacity.errors import InputError
from vllm_capacity.validate.record import GpuState, RunRequest


def plan_arguments(request: RunRequest) -> list[str]:
    """The command-line flags of `plan` that say what a request says."""
    arguments = ["--model", request.model, "--usage", request.usage]
    flags = dict(request.flags)
    if request.config_changes:
        flags["hf_overrides"] = {**request.config_changes, **flags.get("hf_overrides", {})}
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is False:
            arguments.append("--no-" + flag[2:])
        elif isinstance(value, (dict, list)):
            arguments += [flag, json.dumps(value)]
        elif value is not None:
            arguments += [flag, str(value)]
    for name, value in request.env.items():
        arguments += ["--env", f"{name}={value}"]
    return arguments


def planner_for(
    version: str | None, gpus: list[GpuState], calibration: str | None = None
) -> Callable[[RunRequest], dict[str, Any]]:
    """A function that plans a request for one release on the GPU that runs will use."""

    def plan(request: RunRequest) -> dict[str, Any]:
        extra = ["--vllm-version", version] if version else []
        if gpus:
            extra += ["--gpu", gpus[0].name.removeprefix("NVIDIA ")]
        if calibration:
            extra += ["--calibration", calibration]
        return plan_json([*plan_arguments(request), *extra])

    return plan


def plan_json(arguments: list[str]) -> dict[str, Any]:
    """Run `plan --json` in a process of its own. Raises InputError with its one line where it refuses the input."""
    command = [
        sys.executable,
        "-c",
        "from vllm_capacity.cli import main; main()",
        "plan",
        "--json",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, 1, 3):
        raise InputError((done.stderr.strip() or f"plan ended with {done.returncode}").splitlines()[-1][:400])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def installed_vllm(python: str) -> Mapping[str, str | None]:
    """The vLLM version in an environment, without importing it; None where it has none."""
    code = "import importlib.metadata as m\ntry: print(m.version('vllm'))\nexcept m.PackageNotFoundError: print('')"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"--python {python}: cannot be run ({error})") from None
    return {"vllm": done.stdout.strip().split("+")[0] or None}
