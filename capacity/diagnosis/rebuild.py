"""The run behind a log: model, flags, GPU, other users of it and release, as far as the log shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import CapacityError, InputError
from vllm_capacity.inputs.gpus import find_device, list_devices
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.inputs.models import load_model, with_draft
from vllm_capacity.logs.arguments import as_flag_values
from vllm_capacity.logs.record import StartRecord
from vllm_capacity.releases import get_release, newest_release, supported_releases
from vllm_capacity.releases.release import Release, version_key
from vllm_capacity.units import GIB, MIB

OTHERS_WORTH_BYTES = 64 * MIB
"""Less than this between the logged and the planned free memory is the plan's own uncertainty."""

_CONFIG_FLAGS = {
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "decode_context_parallel_size": "decode_context_parallel_size",
    "max_seq_len": "max_model_len",
    "enforce_eager": "enforce_eager",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
}
"""Engine config line -> flag; used where no `non-default args` line says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user says beside the log."""

    model: str | None = None
    gpu: str | None = None
    vllm_version: str | None = None
    offline: bool = False
    load: Callable[[str, Mapping[str, Any]], ModelConfig] | None = None
    """Reads the model (name, overrides) in place of `load_model`."""
    read_files: bool = True
    """Whether the `--config FILE` of a command line in the log is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """Inputs of a plan. `plan` is that plan, without suggestions."""

    config: ModelConfig
    args: EngineArgs
    device: Device
    release: Release
    used_by_others_bytes: int
    plan: Plan

    def again(self, args: EngineArgs) -> Plan | RefusedPlan:
        """The plan with other arguments. Raises InputError."""
        return _plan(self.config, args, self.device, self.release, self.used_by_others_bytes)


def rebuild(start: StartRecord, given: Given) -> tuple[Rebuilt | None, tuple[str, ...], tuple[str, ...]]:
    """(the run, what is missing for it, what was assumed). The run is None where something essential is
    missing."""
    missing: list[str] = []
    assumed: list[str] = []
    release = choose_release(start, given, assumed)
    device = choose_device(start, given, assumed, missing)
    config = _config(start, given, missing)
    if device is None or config is None:
        return None, tuple(missing), tuple(assumed)
    args = engine_args(start, release, assumed, missing, read_files=given.read_files)
    if args is None:
        return None, tuple(missing), tuple(assumed)
    config = with_draft(config, args, offline=given.offline, bundled_only=given.load is not None)
    try:
        plan = _plan(config, args, device, release, 0)
        others = 0
        if isinstance(plan, Plan):
            others = _others(start, plan)
            if others:
                plan = _plan(config, args, device, release, others)
    except CapacityError as error:
        missing.append(f"a plan of this run: {error}")
        return None, tuple(missing), tuple(assumed)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # A log can hold any arguments; what the log itself says stays worth reporting without a plan.
        missing.append(
            f"a plan of this run: the planner failed ({type(error).__name__}: {error}); please report it"
        )
        return None, tuple(missing), tuple(assumed)
    if isinstance(plan, RefusedPlan):
        missing.append(f"a plan of this run: {plan.verdict.message}")
        return None, tuple(missing), tuple(assumed)
    rebuilt = Rebuilt(
        config=config, args=args, device=device, release=release, used_by_others_bytes=others, plan=plan
    )
    return rebuilt, tuple(missing), tuple(assumed)


def _plan(
    config: ModelConfig, args: EngineArgs, device: Device, release: Release, others: int
) -> Plan | RefusedPlan:
    from vllm_capacity.planner import make_plan

    return make_plan(
        config,
        args,
        device,
        release,
        release_source="the log",
        used_by_others_bytes=others,
        suggestions=False,
    )


def choose_release(start: StartRecord, given: Given, assumed: list[str]) -> Release:
    """The log's release, else the nearest one before it, else the newest that prints such lines."""
    version = given.vllm_version or start.version
    if version is None:
        if start.largest("profiled_weights_gib") is not None and start.largest("consumed_gib") is None:
            release = get_release("0.26.0")
            assumed.append(
                "vLLM's version is not in the log; its memory lines are those of 0.26.0 and before"
            )
        else:
            release = newest_release()
            assumed.append(f"vLLM's version is not in the log; planned with {release.version}")
        return release
    name = version.removeprefix("v").split("+")[0]
    known = supported_releases()
    if name in known:
        return get_release(name)
    try:
        key = version_key(name)
    except (ValueError, TypeError):
        key = ()
    older = [release for release in known if key and version_key(release) <= key]
    nearest = older[-1] if older else known[0]
    assumed.append(f"vLLM {version} is no release this tool plans; planned as {nearest}, the nearest one")
    return get_release(nearest)


def choose_device(start: StartRecord, given: Given, assumed: list[str], missing: list[str]) -> Device | None:
    """--gpu, else the catalogue's GPU whose total is the one vLLM printed."""
    total = logged_total_bytes(start)
    if given.gpu:
        device = find_device(given.gpu)
        if total and abs(total - device.cuda_total_bytes) <= 0.03 * device.cuda_total_bytes:
            return _with_total(device, total)
        return device
    if total is None:
        missing.append(
            "the GPU: no line gives its total memory (vLLM 0.11 to 0.25 print it at DEBUG level); name it "
            "with --gpu"
        )
        return None
    derived = printed_total_bytes(start) is None
    # A share of two digits over a small utilisation can be off by much more than the total's own rounding.
    slack = round(0.006 / max(start.largest("gpu_memory_utilization") or 1.0, 0.01) * GIB) if derived else 0
    fitting = [device for device in list_devices() if _distance(device, total) <= slack]
    if not fitting:
        nearest = min(list_devices(), key=lambda device: _distance(device, total))
        if _distance(nearest, total) > 0.01 * total:
            missing.append(f"the GPU: none in the catalogue has {total / GIB:.2f} GiB; name it with --gpu")
            return None
        fitting = [nearest]
    if start.text("flash_attention") in ("3", "FA3"):
        fitting = [device for device in fitting if device.sm == 90] or fitting
    best = min(fitting, key=lambda device: ("MIG" in device.name, abs(device.cuda_total_bytes - total)))
    other_kinds = {
        d.sm: d.name
        for d in sorted(fitting, key=lambda d: -len(d.name))
        if d.sm != best.sm and "MIG" not in d.name
    }
    names = sorted(other_kinds.values())
    if names:
        assumed.append(
            f"a GPU with {total / GIB:.2f} GiB may be {best.name} or {', '.join(names)}; planned "
            f"as {best.name} "
            "(--gpu says which)"
        )
    return best if derived else _with_total(best, total)


def _with_total(device: Device, total: int) -> Device:
    """The device with the logged total where the catalogue's differs from it by more than vLLM's rounding."""
    if abs(device.cuda_total_bytes - total) <= 0.005 * GIB:
        return device
    return replace(device, cuda_total_bytes=total)


def _distance(device: Device, total: int) -> int:
    rounding = int(0.006 * GIB)
    low = (device.cuda_total_low_bytes or device.cuda_total_bytes) - rounding
    high = (device.cuda_total_high_bytes or device.cuda_total_bytes) + rounding
    return max(low - total, total - high, 0)


def logged_total_bytes(start: StartRecord) -> int | None:
    """The GPU's total: as printed, else the requested share over the utilisation."""
    total = printed_total_bytes(start)
    if total is not None:
        return total
    requested, utilization = start.largest("requested_gib"), start.largest("gpu_memory_utilization")
    return round(requested / utilization * GIB) if requested and utilization else None


def printed_total_bytes(start: StartRecord) -> int | None:
    """The GPU's total as printed: in vLLM's lines (GiB, two digits) or in an out-of-memory message."""
    gib = start.largest("cuda_total_gib")
    if gib is None:
        for failure in start.failures:
            if "cuda_total_gib" in failure.values:
                gib = float(failure.values["cuda_total_gib"])
                break
            if "cuda_total_bytes" in failure.values:
                return int(failure.values["cuda_total_bytes"])
    return round(gib * GIB) if gib else None


def _config(start: StartRecord, given: Given, missing: list[str]) -> ModelConfig | None:
    model = given.model or start.model or start.text("loaded_model")
    if model is None:
        missing.append("the model: no line names it; name it with --model")
        return None
    logged = start.non_default.get("hf_overrides")
    overrides = logged if isinstance(logged, Mapping) else {}
    try:
        if given.load is not None:
            return given.load(model, overrides)
        return load_model(model, hf_overrides=overrides, offline=given.offline)
    except CapacityError as error:
        missing.append(f"the model's config: {error}")
        return None


def engine_args(
    start: StartRecord,
    release: Release,
    assumed: list[str],
    missing: list[str],
    *,
    read_files: bool = True,
) -> EngineArgs | None:
    """The log's flags as `EngineArgs`; flags the release does not have are named and left out."""
    from vllm_capacity.inputs.command_line import parse_command_line
    from vllm_capacity.inputs.engine_args import parse_engine_args
    from vllm_capacity.inputs.flags import flags_for

    values: dict[str, Any] = {}
    if start.non_default:
        values = as_flag_values(start.non_default)
    elif start.command:
        try:
            line = parse_command_line(start.command, release=release, read_files=read_files)
            return _with_logged(line.args, start)
        except CapacityError as error:
            assumed.append(f"the command line in the log could not be read: {error}")
    if not start.non_default:
        values = {
            flag: start.engine_config[name]
            for name, flag in _CONFIG_FLAGS.items()
            if name in start.engine_config
        }
        if not values and not start.engine_config:
            assumed.append(
                "no line gives the engine's arguments; vLLM's defaults are taken where no other line says "
                "more"
            )
    known = flags_for(release)
    flags = {
        name: value for name, value in values.items() if name in known and name not in ("model", "config")
    }
    flags["usage"] = "server" if _is_server(start) else "offline"
    flags["allow_unmodelled"] = True
    while True:
        try:
            args = parse_engine_args(flags, release=release)
        except InputError as error:
            culprit = next(
                (name for name in flags if name.replace("_", "-") in str(error) or name in str(error)), None
            )
            if culprit is None or culprit in ("usage", "allow_unmodelled"):
                missing.append(f"the engine's arguments: {error}")
                return None
            assumed.append(f"--{culprit.replace('_', '-')} is left out: {error}")
            del flags[culprit]
            continue
        return _with_logged(args, start)


def _with_logged(args: EngineArgs, start: StartRecord) -> EngineArgs:
    """Settings that other lines print, where the arguments leave them open."""
    utilization = start.largest("gpu_memory_utilization")
    if utilization is None:
        utilization = next(
            (
                float(f.values["gpu_memory_utilization"])
                for f in start.failures
                if "gpu_memory_utilization" in f.values
            ),
            None,
        )
    if args.gpu_memory_utilization is None and utilization and 0 < utilization <= 1:
        args = replace(args, gpu_memory_utilization=utilization)
    tokens = start.count("max_num_batched_tokens")
    if args.max_num_batched_tokens is None and tokens:
        args = replace(args, max_num_batched_tokens=tokens)
    length = start.count("max_model_len") or start.count("concurrency_max_model_len")
    if length is None:
        length = next(
            (int(f.values["max_model_len"]) for f in start.failures if "max_model_len" in f.values), None
        )
    if args.max_model_len is None and length:
        args = replace(args, max_model_len=length)
    return args


def _is_server(start: StartRecord) -> bool:
    return (
        start.command is not None
        or any("APIServer" in name for name in start.processes)
        or ("version" in start.evidence and "API server" in start.evidence["version"].text)
        or any(
            name in start.non_default
            for name in ("model_tag", "host", "port", "served_model_name", "api_server_count")
        )
        or not start.non_default
    )


def _others(start: StartRecord, plan: Plan) -> int:
    """What other processes held when vLLM looked: planned free memory less the logged one."""
    free = logged_free_gib(start)
    if free is None:
        return 0
    planned = min(rank.budget.free_bytes for rank in plan.ranks)
    others = planned - round(free * GIB)
    return others if others > OTHERS_WORTH_BYTES else 0


def logged_free_gib(start: StartRecord) -> float | None:
    """Free memory when vLLM started, of the fullest GPU."""
    free = start.smallest("free_gib")
    for failure in start.failures:
        if "free_gib" in failure.values:
            value = float(failure.values["free_gib"])
            free = value if free is None else min(free, value)
    return free
