"""The library: `plan()` with vLLM's own argument names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.calibration import load_calibration
from vllm_capacity.device import Device
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.inputs.engine_args import parse_engine_args
from vllm_capacity.inputs.environment import check_environment
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.inputs.models import load_model
from vllm_capacity.planner import make_plan
from vllm_capacity.request import add_draft, add_headers, choose_device, choose_release, used_by_others


def plan(
    model: str | Mapping[str, Any] | ModelConfig,
    *,
    gpu: str | Device | None = None,
    vllm_version: str | None = None,
    free_memory: str | None = None,
    used_memory: str | None = None,
    concurrency: int | None = None,
    suggestions: bool = True,
    calibration: str | None = None,
    weights: str = "auto",
    **flags: Any,
) -> Plan | RefusedPlan:
    """Plans one model on one kind of GPU; a pure function of its arguments once the config is read.

    `model`: a folder, config.json, catalogue id or Hub id; a parsed config.json; or a `ModelConfig` (load it once with
    `vllm_capacity.inputs.models.load_model` to plan many times). `flags` are vLLM's engine arguments under their own names
    (`tensor_parallel_size=4`, `max_model_len="32k"`, `usage="offline"`, `environment={"VLLM_...": "1"}`).
    `weights` says whether a model named by text is sized by its config or its safetensors headers ("headers", "config",
    or "auto": headers where they are local or cached). Memory sizes are text ("60GiB"). Raises InputError for input that
    cannot be planned; what vLLM itself refuses comes back as a `RefusedPlan` or a verdict.
    """
    release, release_source = choose_release(vllm_version, None)
    args = parse_engine_args(flags, release=release)
    check_environment(args.environment, release, allow_unmodelled=bool(args.other("allow_unmodelled")))
    warnings: tuple[str, ...] = ()
    if isinstance(model, ModelConfig):
        config = model
    elif isinstance(model, str):
        config = load_model(model, hf_overrides=args.hf_overrides)
        config, warnings = add_headers(config, model, {"weights": weights})
    else:
        config = normalise("config", {**model, **args.hf_overrides}, source="a config given as a mapping")
    config = add_draft(config, args, {})
    device = gpu if isinstance(gpu, Device) else choose_device({"gpu": gpu})
    return make_plan(
        config,
        args,
        device,
        release,
        release_source=release_source,
        used_by_others_bytes=used_by_others(device, {"free_memory": free_memory, "used_memory": used_memory}),
        concurrency=concurrency,
        suggestions=suggestions,
        calibration=load_calibration(calibration),
        warnings=warnings,
    )
