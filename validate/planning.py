"""The plan of a run: what `plan --json` says about the same model, flags and GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm_capacity.errors import InputError
from vllm_capacity.validate.record import GpuState, RunRequest

if TYPE_CHECKING:
    from vllm_capacity.calibration import Calibration


KEPT_OF_TERMS = ("name", "component", "allocator", "lifetime", "account", "bytes", "low_bytes", "high_bytes")
"""What a record keeps of a plan's terms: formulas and sources follow from the release."""


def plan_request(
    request: RunRequest, version: str | None, gpu: str | None, calibration: Calibration | str | None = None
) -> dict[str, Any]:
    """What `plan --json` says about a request, without suggestions. Raises InputError.

    `gpu` is a name (None: the local one), `calibration` one that is at hand, a file, 'none', or None for the
    user's.
    """
    from vllm_capacity.calibration import Calibration, load_calibration
    from vllm_capacity.inputs.engine_args import parse_engine_args
    from vllm_capacity.inputs.models import load_model
    from vllm_capacity.planner import make_plan
    from vllm_capacity.report.json_report import plan_to_dict
    from vllm_capacity.request import add_draft, choose_device, choose_release

    release, source = choose_release(version, None)
    flags = {k: v for k, v in request.flags.items() if v is not None}
    if request.config_changes:
        flags["hf_overrides"] = {**request.config_changes, **flags.get("hf_overrides", {})}
    # vLLM's rules for dummy weights differ where a checkpoint says what a draft shares with its target
    flags.setdefault("load_format", request.load_format)
    args = parse_engine_args({**flags, "usage": request.usage, "environment": request.env}, release=release)
    known = calibration if isinstance(calibration, Calibration) else load_calibration(calibration)
    answer = make_plan(
        add_draft(load_model(request.model, hf_overrides=args.hf_overrides), args, {}),
        args,
        choose_device({"gpu": gpu}),
        release,
        release_source=source,
        suggestions=False,
        calibration=known,
    )
    return slim(plan_to_dict(answer))


def slim(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan without the prose of its terms."""
    for rank in plan.get("ranks") or []:
        rank["terms"] = [{key: t[key] for key in KEPT_OF_TERMS if key in t} for t in rank.get("terms") or []]
    return plan


def planner_for(
    version: str | None,
    gpus: Sequence[GpuState],
    calibration: Calibration | str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Callable[[RunRequest], dict[str, Any]]:
    """A function that plans requests for one release on the GPU that runs will use.

    `environment` is what the machine sets beside the request: NCCL_NVLS_ENABLE, say, moves communication buffers.
    """
    gpu = gpus[0].name if gpus else None

    def plan(request: RunRequest) -> dict[str, Any]:
        env = {**(environment or {}), **request.env}
        return plan_request(request.model_copy(update={"env": env}), version, gpu, calibration)

    return plan


NO_CURRENT_FOLDER = "import sys; sys.path[:] = filter(None, sys.path)"
"""For `python -c`: else a module in the folder that the user stands in (a stranger's model) would be imported."""


def installed_vllm(python: str) -> Mapping[str, str | None]:
    """The vLLM version in an environment, without importing it; None where it has none."""
    code = (
        f"{NO_CURRENT_FOLDER}\n"
        "import importlib.metadata as m\n"
        "try: print(m.version('vllm'))\n"
        "except m.PackageNotFoundError: print('')"
    )
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"--python {python}: cannot be run ({error})") from None
    return {"vllm": done.stdout.strip().split("+")[0] or None}
