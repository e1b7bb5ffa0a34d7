"""The record of one run: a versioned schema, one JSON line each, written so that a crash never leaves half a
line behind.
"""

from __future__ import annotations

import json
import os
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from vllm_capacity import whole_files
from vllm_capacity.errors import InputError
from vllm_capacity.vocabulary import add_meanings

SCHEMA_VERSION = 1
MAX_RECORD_BYTES = 256 << 20
"""One line; the largest record known (8 ranks with the tensors at the peak) has 2 MB."""


class RunStatus(StrEnum):
    OK = "ok"
    REFUSED = "refused"
    """vLLM itself said no: too little memory, an impossible layout."""
    OOM = "oom"
    FAILED = "failed"
    TIMEOUT = "timeout"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra=add_meanings)


class Requests(_Model):
    """The first batch of real requests."""

    count: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(default=512, ge=1)
    output_tokens: int = Field(default=16, ge=1)


class RunRequest(_Model):
    """What to run."""

    name: str = Field(description="Of the run.")
    model: str = Field(description="A folder, a config.json, a catalogue id, or a Hugging Face id.")
    flags: dict[str, Any] = Field(
        default_factory=dict, description="vLLM's flags by their long names in snake case."
    )
    usage: str = Field(
        default="server", pattern="^(server|offline)$", description="vllm serve or the LLM class."
    )
    load_format: str = Field(default="dummy", description="vLLM's --load-format; dummy needs no weights.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the server.")
    config_changes: dict[str, Any] = Field(
        default_factory=dict,
        description="Keys of config.json that are replaced (fewer layers, so that a large model fits).",
    )
    requests: Requests = Field(default_factory=Requests, description="The first batch.")
    compile_cache: str | None = Field(
        default=None, description="The run uses a torch.compile cache of that name; null: vLLM's own."
    )
    wipe_cache: bool = Field(default=False, description="That cache is emptied first (a cold start).")
    limit_s: float = Field(default=600.0, gt=0)
    expect_s: float | None = None
    peak_tensors: bool = Field(
        default=False, description="Which tensors were alive at the profiling peak is recorded."
    )
    debug_oom: bool = Field(default=False, description="What grew when memory ran out is recorded.")
    note: str = Field(default="", description="Why this run.")

    @property
    def gpus(self) -> int:
        flags = self.flags
        names = (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "prefill_context_parallel_size",
        )
        product = 1
        for name in names:
            product *= int(flags.get(name) or 1)
        return product


class GpuState(_Model):
    """One GPU as nvidia-smi sees it."""

    index: int
    name: str = Field(description="nvidia-smi's.")
    nvml_total_bytes: int
    used_before_bytes: int
    used_after_bytes: int | None = None
    driver: str | None = Field(default=None, description="Version of the driver.")


class Profiling(_Model):
    """What `determine_available_memory` added up."""

    requested_memory: int
    graph_estimate: int
    graph_applied: int
    available_kv_cache_memory_bytes: int | None
    returned: int
    result: dict[str, Any] | None = Field(
        description="vLLM's `MemoryProfilingResult` with its snapshots; null where `kv_cache_memory_bytes` skipped it."
    )


class RankRecord(_Model):
    """What one rank measured, under vLLM's names."""

    rank: int
    dp_rank: int = 0
    tp_rank: int | None = None
    pp_rank: int | None = None
    model_runner: str | None = Field(default=None, description="V1 or V2.")
    stages: dict[str, dict[str, float | int]] = Field(default_factory=dict)
    requested_memory: int | None = None
    model_memory_usage: int | None = None
    profiling: Profiling | None = Field(default=None, description="The profile run.")
    graph_actual: int | None = None
    kv_cache: dict[str, Any] | None = Field(default=None, description="vLLM's KVCacheConfig.")
    workspaces: dict[str, list[int]] = Field(default_factory=dict)
    model: dict[str, Any] | None = Field(default=None, description="Parameters and buffers of the model.")
    buffers: dict[str, dict[str, int]] = Field(default_factory=dict)
    attention_backends: dict[str, int] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(
        default_factory=dict, description="vLLM's resolved settings, under its names."
    )
    device: dict[str, Any] | None = Field(default=None, description="The GPU as torch sees it.")
    peak_tensors: dict[str, Any] | None = Field(
        default=None, description="Tensors alive at the profiling peak, where asked for."
    )
    error: dict[str, str] | None = Field(default=None, description="{phase, type, message}.")
    probe_errors: list[str] = Field(default_factory=list, description="What could not be measured, and why.")
    absent: list[str] = Field(default_factory=list, description="What the release lacks.")
    phase_seconds: dict[str, float] = Field(default_factory=dict)


class Printed(_Model):
    """What vLLM printed about its KV cache and its compile cache."""

    kv_cache_size_tokens: int | None = None
    max_concurrency: float | None = None
    available_kv_gib: float | None = None
    compile_cache_hit: bool | None = Field(
        default=None,
        description="True: compiled code was loaded (a warm start); false: it was compiled; null: neither was printed.",
    )


class RunRecord(_Model):
    """One run of the real engine, whatever became of it: a line of `records.jsonl`."""

    schema_version: int = Field(
        default=SCHEMA_VERSION, json_schema_extra={"const": SCHEMA_VERSION}, description="Of this form."
    )
    tool_version: str = Field(description="Of vllm-capacity.")
    request: RunRequest = Field(description="What was asked for.")
    status: RunStatus = Field(description="What became of it.")
    reason: str | None = Field(default=None, description="A verdict's reason, when refused.")
    error: dict[str, str] | None = Field(default=None, description="{phase, type, message}.")
    phase: str = Field(default="", description="How far the engine came.")
    versions: dict[str, str | None] = Field(default_factory=dict, description="Package -> version.")
    gpus: list[GpuState] = Field(default_factory=list, description="The GPUs of the run.")
    engine: dict[str, Any] = Field(
        default_factory=dict,
        description="The keyword arguments that the engine was started with (paths left out).",
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="Variables of the machine that change memory."
    )
    plan: dict[str, Any] | None = Field(
        default=None, description="The plan made before the run, as `plan --json` prints it."
    )
    plan_error: str | None = Field(default=None, description="Why there is no plan.")
    ranks: list[RankRecord] = Field(default_factory=list, description="Every rank that answered.")
    printed: Printed = Field(default_factory=Printed, description="The log's figures.")
    requests_done: dict[str, Any] | None = Field(
        default=None, description="What became of the first batch; null where none was sent."
    )
    durations: dict[str, float] = Field(default_factory=dict)
    gpu_memory_returned: bool | None = Field(
        default=None, description="Whether the GPU's memory was free again afterwards."
    )
    log: list[str] = Field(default_factory=list, description="The log's lines about memory.")
    origin: str = Field(default="", description="Where a record comes from that this tool did not make.")

    @property
    def name(self) -> str:
        return self.request.name


def parse_record(line: str, where: str = "record") -> RunRecord:
    """One line of a record file. Raises InputError that names the place."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not a JSON line ({error})") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{where}: record schema {version!r} is not known; this version reads {SCHEMA_VERSION}"
        )
    if '"kv_tokens":' in line:
        data = _renamed(data)
    try:
        return RunRecord.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


_OLD_NAMES = {
    "kv_tokens": "kv_cache_size_tokens",
    "tokens": "size_tokens",
    "second_start_tokens": "second_start_size_tokens",
    "cuda_graph_estimate_bytes": "graph_estimate_bytes",
    "cuda_graph_applied_bytes": "graph_applied_bytes",
    "cuda_graph_actual_bytes": "graph_actual_bytes",
    "min_utilization": "min_gpu_memory_utilization",
    "max_utilization": "max_gpu_memory_utilization",
    "runner": "model_runner",
    "low": "low_bytes",
    "high": "high_bytes",
}
"""Keys of records that were written before 1.0.0: a run costs a GPU's time, so they are still read."""


def _renamed(data: dict[str, Any]) -> dict[str, Any]:
    """A record with today's keys; flags, settings and what vLLM returned keep vLLM's."""

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {_OLD_NAMES.get(key, key): walk(child) for key, child in node.items()}
        return [walk(child) for child in node] if isinstance(node, list) else node

    ranks = [
        {_OLD_NAMES.get(key, key): value for key, value in rank.items()} for rank in data.get("ranks") or []
    ]
    return {**data, "ranks": ranks, "printed": walk(data.get("printed")), "plan": walk(data.get("plan"))}


def read_records(path: Path, *, tolerate_tail: bool = True) -> list[RunRecord]:
    """All records of a file. An unfinished last line (another tool's crash) is dropped if `tolerate_tail`."""
    records: list[RunRecord] = []
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_RECORD_BYTES + 1):
                number += 1
                where = f"{path}:{number}"
                if len(line) > MAX_RECORD_BYTES:
                    raise InputError(f"{where}: the line is longer than {MAX_RECORD_BYTES:,} bytes")
                if not line.strip():
                    continue
                try:
                    records.append(parse_record(line.decode("utf-8", "replace"), where))
                except InputError:
                    if line.endswith(b"\n") or not tolerate_tail:
                        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    return records


def append_record(path: Path, record: RunRecord) -> None:
    """Add a record; readers see the file without it or with all of it. An unfinished last line is removed.

    Several processes may append to one file. Where it cannot be written (full disk, no permission) the record is kept in
    the folder for temporary files, and the InputError says where.
    """
    line = record.model_dump_json(exclude_defaults=False).encode() + b"\n"
    try:
        whole_files.append_line(path, line, whole=_is_whole)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror or error}); {_kept_elsewhere(line)}"
        ) from None


def check_appendable(path: Path) -> None:
    """InputError where records could not be appended: to be asked before a run, not after."""
    try:
        whole_files.check_appendable(path)
    except OSError as error:
        raise InputError(f"--records {path}: cannot be written ({error.strerror or error})") from None


def _is_whole(line: bytes) -> bool:
    try:
        parse_record(line.decode("utf-8", "replace"))
    except InputError:
        return False
    return True


def _kept_elsewhere(line: bytes) -> str:
    try:
        handle, name = tempfile.mkstemp(prefix="vllm-capacity-record-", suffix=".jsonl")
        with os.fdopen(handle, "wb") as file:
            file.write(line)
    except OSError:
        return "nor could the record be kept in the folder for temporary files"
    return f"the record is kept in {name}"


def write_file(path: Path, text: str) -> None:
    """Replace a file in one step. Raises InputError where it cannot be written; the old one is then still there."""
    try:
        whole_files.replace_file(path, text.encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
