"""Runs one engine with a probe inside and makes a record of it, whatever happens to it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_capacity.errors import InputError
from vllm_capacity.validate import collect, gpu_state, logs, processes
from vllm_capacity.validate.record import RankRecord, RunRecord, RunRequest, RunStatus, write_file

ENGINE_SIDE = Path(__file__).resolve().parent / "engine_side"
RESOLVED_BY_USAGE = ("max_num_batched_tokens", "max_num_seqs")
"""Settings whose default differs between `vllm serve` and the LLM class (engine/arg_utils.py:
get_batch_defaults).
"""
DRAFTS_WITHOUT_MODEL = frozenset({"ngram", "[ngram]", "suffix"})
"""What may stand for a draft's model though there is none (config/speculative.py: SpeculativeConfig.__post_init__)."""
RECORDED_ENVIRONMENT = re.compile(r"^(VLLM|NCCL|TORCH|PYTORCH|CUDA|FLASHINFER|TRITON)_\w+$")
NOT_RECORDED = re.compile(r"_(DIR|PATH|ROOT|HOME|FILE|HOST|IP|PORT|TOKEN|KEY|DATE|URL)$|^CUDA_VERSION")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """Where and how runs are started. `plan` gives `plan --json` of a request, or raises InputError."""

    python: str = sys.executable
    work: Path
    """Logs and compile caches are kept here."""
    plan: Callable[[RunRequest], dict[str, Any]] | None = None
    tool_version: str = "unknown"
    nvidia_smi: str = "nvidia-smi"
    gpu_return_s: float = 90.0
    gpu_indices: tuple[int, ...] | None = None
    """Run on these GPUs only (CUDA_VISIBLE_DEVICES); None: all."""
    stop: threading.Event | None = None
    """Once set, runs end their processes and raise StoppedError."""


def run(
    request: RunRequest, settings: RunnerSettings, tick: Callable[[str, float], None] | None = None
) -> RunRecord:
    """Run one request. Never raises for what the engine does; InputError only for a request that cannot be
    started.

    `tick(phase, seconds)` is called while it runs.
    """
    plan, plan_error = _plan(request, settings)
    folder = Path(tempfile.mkdtemp(prefix="vllm-capacity-"))
    engines: list[processes.Engine] = []
    begin = time.monotonic()
    before = _gpus(settings)
    timed_out = False
    log_parts: list[Path] = []
    try:
        arguments = engine_arguments(
            request, model_location(request, settings.work), plan, draft_location(request, settings.work)
        )
        dp = int(request.flags.get("data_parallel_size") or 1)
        port = _free_port() if dp > 1 else 0
        for rank in range(dp):
            engines.append(_start(request, settings, arguments, folder / f"dp{rank}", rank, dp, port))
            log_parts.append(engines[-1].log)

        def progress(seconds: float) -> None:
            if tick is not None:
                events = collect.read_events(engines[0].probe_dir / "engine.jsonl")
                ranks = collect.read_events(engines[0].probe_dir / "rank0.jsonl")
                phases = [e["phase"] for e in (*events, *ranks) if e["event"] == "phase"]
                tick(phases[-1] if phases else "spawn", seconds)

        timed_out = processes.wait(engines, request.limit_s, progress, settings.stop)
        killed = sum(processes.end(engine) for engine in engines)
    except BaseException:
        with processes.undisturbed():
            for engine in engines:
                processes.end(engine)
            shutil.rmtree(folder, ignore_errors=True)
        raise
    returned = gpu_state.wait_for_return(before, settings.gpu_return_s, settings.nvidia_smi)
    wall = time.monotonic() - begin
    try:
        return _record(
            request, settings, engines, plan, plan_error, arguments, before, timed_out, returned, wall, killed
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def engine_arguments(
    request: RunRequest, model: str, plan: Mapping[str, Any] | None, draft: str | None = None
) -> dict[str, Any]:
    """Keyword arguments for `vllm.LLM`. The server's defaults are passed explicitly: the class has others. `draft`
    replaces the name of the speculative model.

    Raises InputError where they are needed and neither the request nor the plan says them.
    """
    arguments: dict[str, Any] = {
        "model": model,
        "load_format": request.load_format,
        "skip_tokenizer_init": True,
    }
    arguments |= {k: v for k, v in request.flags.items() if v is not None and k != "data_parallel_size"}
    if draft is not None:
        arguments["speculative_config"] = {**arguments["speculative_config"], "model": draft}
    backend = arguments.pop("attention_backend", None)
    if backend is not None:
        arguments["attention_config"] = {**arguments.get("attention_config", {}), "backend": backend}
    if request.usage == "server":
        resolved = (plan or {}).get("engine") or {}
        for name in RESOLVED_BY_USAGE:
            if arguments.get(name) is None:
                if resolved.get(name) is None:
                    raise InputError(
                        f"{request.name}: the server's default of --{name.replace('_', '-')} is not known "
                        "without a plan; give it explicitly or use --usage offline"
                    )
                arguments[name] = resolved[name]
    return arguments


def _plan(request: RunRequest, settings: RunnerSettings) -> tuple[dict[str, Any] | None, str | None]:
    if settings.plan is None:
        return None, "no planner given"
    try:
        return settings.plan(request), None
    except InputError as error:
        return None, str(error)
    except Exception as error:  # a broken plan must not cost a measurement
        return None, f"{type(error).__name__}: {error}"[:400]


def model_location(request: RunRequest, work: Path) -> str:
    """With dummy weights a folder that holds config.json alone; else what the user named.

    The folder's name follows from its content: vLLM's compile cache is keyed by the path of the model among others
    (config/model.py: ModelConfig.compute_hash), so a start from another folder is a cold one whatever the cache holds.
    """
    if request.load_format != "dummy":
        if request.config_changes:
            raise InputError(f"{request.name}: config_changes needs --load-format dummy")
        return request.model
    return _config_folder(request.model, request.config_changes, work)


def draft_location(request: RunRequest, work: Path) -> str | None:
    """The same for the model that `speculative_config` names, if it names one and the weights are dummies."""
    speculative = request.flags.get("speculative_config")
    model = speculative.get("model") if isinstance(speculative, dict) else None
    if request.load_format != "dummy" or not model or model in DRAFTS_WITHOUT_MODEL:
        return None
    return _config_folder(model, {}, work)


def _config_folder(model: str, changes: Mapping[str, Any], work: Path) -> str:
    files = config_files(model)
    files["config.json"] = {**files["config.json"], **changes}
    texts = {name: json.dumps(content, sort_keys=True) for name, content in files.items()}
    digest = hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:16]
    target = work.resolve() / "models" / digest / "model"
    target.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_file(target / name, text)
    return str(target)


def config_files(model: str) -> dict[str, Mapping[str, Any]]:
    """config.json (and hf_quant_config.json where there is one) of a folder, a file, a catalogue id or a Hub
    id.

    As it was published, not normalised: the engine is to see what it would see in a checkpoint.
    """
    from vllm_capacity.inputs.catalogue import find_entry
    from vllm_capacity.inputs.config_json import read_json

    path = Path(model)
    if path.is_dir() or path.suffix == ".json":
        file = path / "config.json" if path.is_dir() else path
        beside = file.parent / "hf_quant_config.json"
        files: dict[str, Mapping[str, Any]] = {"config.json": read_json(file)}
        return files | ({"hf_quant_config.json": read_json(beside)} if beside.exists() else {})
    entry = find_entry(model)
    if entry is not None:
        beside_entry = {"hf_quant_config.json": entry.quantization} if entry.quantization else {}
        return {"config.json": entry.config, **beside_entry}
    from vllm_capacity.inputs.hub import fetch_config

    fetched = fetch_config(model, revision=None, offline=False, hint="")
    found: dict[str, Mapping[str, Any]] = {"config.json": fetched.config}
    return found | ({"hf_quant_config.json": fetched.quantization} if fetched.quantization else {})


def _start(
    request: RunRequest,
    settings: RunnerSettings,
    arguments: dict[str, Any],
    probe: Path,
    rank: int,
    dp: int,
    port: int,
) -> processes.Engine:
    probe.mkdir(parents=True)
    file = probe / "request.json"
    file.write_text(json.dumps({"engine": arguments, "requests": request.requests.model_dump()}))
    log = settings.work / "logs" / f"{request.name}{f'.dp{rank}' if dp > 1 else ''}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    environment = child_environment(request, settings, probe)
    if dp > 1:
        environment |= {
            "VLLM_DP_RANK": str(rank),
            "VLLM_DP_RANK_LOCAL": str(rank),
            "VLLM_DP_SIZE": str(dp),
            "VLLM_DP_MASTER_IP": "127.0.0.1",
            "VLLM_DP_MASTER_PORT": str(port),
        }
    command = [settings.python, "-m", "vllm_capacity_probe.child", str(file)]
    return processes.start(command, environment=environment, folder=probe, log=log)


def child_environment(request: RunRequest, settings: RunnerSettings, probe: Path) -> dict[str, str]:
    """The environment of the engine's processes: ours, the probe, and what the request sets (which wins)."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ENGINE_SIDE), environment.get("PYTHONPATH")])
    )
    environment |= {
        "VLLM_CAPACITY_PROBE_DIR": str(probe),
        "VLLM_DEBUG_WORKSPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if request.load_format == "dummy":
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if request.peak_tensors:
        environment["VLLM_CAPACITY_PROBE_PEAK_TENSORS"] = "1"
    if request.debug_oom:
        environment |= {"VLLM_CAPACITY_PROBE_HISTORY": "1", "VLLM_LOGGING_LEVEL": "DEBUG"}
    if settings.gpu_indices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, settings.gpu_indices))
    if request.compile_cache is not None:
        cache = settings.work / "compile_caches" / request.compile_cache
        if request.wipe_cache:
            shutil.rmtree(cache, ignore_errors=True)
        environment |= {
            "VLLM_CACHE_ROOT": str(cache / "vllm"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        }
    return environment | request.env


def _gpus(settings: RunnerSettings) -> list[Any]:
    states = gpu_state.query_gpus(settings.nvidia_smi)
    chosen = settings.gpu_indices if settings.gpu_indices is not None else gpu_state.visible_indices(states)
    return [state for state in states if state.index in chosen]


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def recorded_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change memory, without those that hold paths, addresses or secrets."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if RECORDED_ENVIRONMENT.match(name)
        and not NOT_RECORDED.search(name)
        and "/" not in value
        and not name.startswith(("VLLM_CAPACITY_", "VLLM_DP_"))
    }


def _record(
    request: RunRequest,
    settings: RunnerSettings,
    engines: list[processes.Engine],
    plan: dict[str, Any] | None,
    plan_error: str | None,
    arguments: dict[str, Any],
    before: list[Any],
    timed_out: bool,
    returned: bool | None,
    wall: float,
    killed: int,
) -> RunRecord:
    journals = [collect.engine_journal(collect.read_events(e.probe_dir / "engine.jsonl")) for e in engines]
    ranks: list[RankRecord] = []
    versions: dict[str, str | None] = {}
    for dp_rank, engine in enumerate(engines):
        for path in sorted(
            engine.probe_dir.glob("rank*.jsonl"), key=lambda p: int(p.stem.removeprefix("rank"))
        ):
            rank, seen = collect.rank_record(
                int(path.stem.removeprefix("rank")), dp_rank, collect.read_events(path)
            )
            ranks.append(rank)
            versions = versions or seen
    lines = [line for e in engines for line in e.log.read_text(errors="replace").splitlines()]
    result = collect.outcome(
        journals,
        ranks,
        "\n".join(lines[-400:]),
        timed_out=timed_out,
        exit_codes=[e.process.poll() for e in engines],
    )
    starts = [j.started_s for j in journals if j.started_s is not None]
    drivers = {state.driver for state in before if state.driver}
    public = _public_request(request)
    tail = [] if result.status is RunStatus.OK else [logs.anonymous(line)[:400] for line in lines[-25:]]
    return RunRecord(
        tool_version=settings.tool_version,
        request=public,
        status=result.status,
        reason=result.reason,
        error=result.error,
        phase=result.phase,
        versions={**versions, "driver": next(iter(drivers), None)},
        gpus=before,
        engine={
            k: public.flags[k] if k == "speculative_config" else v
            for k, v in arguments.items()
            if k != "model"
        },
        environment=recorded_environment(child_environment_view(request)),
        plan=plan,
        plan_error=plan_error,
        ranks=ranks,
        printed=logs.printed(lines),
        requests_done=journals[0].requests if journals else None,
        durations={
            "total_s": round(wall, 1),
            **({"start_s": max(starts)} if starts else {}),
            "killed": float(killed),
        },
        gpu_memory_returned=returned,
        log=[*logs.memory_lines(lines), *tail],
    )


def child_environment_view(request: RunRequest) -> dict[str, str]:
    """What of this process's environment the engine saw, with the request's additions."""
    return {**os.environ, **request.env}


def _public_request(request: RunRequest) -> RunRequest:
    """The request as it is recorded: the models that it names are ids, not paths."""
    flags = dict(request.flags)
    draft = flags.get("speculative_config")
    if isinstance(draft, dict) and draft.get("model"):
        flags["speculative_config"] = {**draft, "model": _public_model(draft["model"])}
    return request.model_copy(update={"model": _public_model(request.model), "flags": flags})


def _public_model(model: str) -> str:
    """A path becomes its last part; a catalogue or Hub id stays."""
    path = Path(model)
    if path.suffix == ".json" or path.is_dir():
        return path.parent.name if path.name == "config.json" else path.stem.replace("--", "/")
    return model
