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
    model_config = ConfigDict(extra="forbid")


class Requests(_Model):
    """The first batch of real requests."""

    count: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(default=512, ge=1)
    output_tokens: int = Field(default=16, ge=1)


class RunRequest(_Model):
    """What to run. `flags` are vLLM's own long names in snake case; `gpus` is how many GPUs the run needs."""

    name: str
    model: str
    flags: dict[str, Any] = Field(default_factory=dict)
    usage: str = Field(default="server", pattern="^(server|offline)$")
    load_format: str = "dummy"
    env: dict[str, str] = Field(default_factory=dict)
    config_changes: dict[str, Any] = Field(default_factory=dict)
    """Keys of config.json that are replaced (fewer layers, so that a large model fits)."""
    requests: Requests = Field(default_factory=Requests)
    compile_cache: str | None = None
    """A name: the run uses a torch.compile cache of that name; None: vLLM's own."""
    wipe_cache: bool = False
    """Empty that cache first (a cold start)."""
    limit_s: float = Field(default=600.0, gt=0)
    expect_s: float | None = None
    """How long it will probably take, where no earlier record says."""
    peak_tensors: bool = False
    debug_oom: bool = False
    note: str = ""

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
    """One GPU as nvidia-smi sees it; bytes."""

    index: int
    name: str
    nvml_total_bytes: int
    used_before_bytes: int
    used_after_bytes: int | None = None
    driver: str | None = None


class Profiling(_Model):
    """What `determine_available_memory` added up. `result` is vLLM's `MemoryProfilingResult` with its
    snapshots, or None where `kv_cache_memory_bytes` skipped it."""

    requested_memory: int
    graph_estimate: int
    graph_applied: int
    available_kv_cache_memory_bytes: int | None
    returned: int
    result: dict[str, Any] | None


class RankRecord(_Model):
    """What one rank measured. `stages` maps a stage's name to its snapshot; `absent` names what the release
    lacks.
    """

    rank: int
    dp_rank: int = 0
    tp_rank: int | None = None
    pp_rank: int | None = None
    runner: str | None = None
    """'V1' or 'V2'."""
    stages: dict[str, dict[str, float | int]] = Field(default_factory=dict)
    requested_memory: int | None = None
    model_memory_usage: int | None = None
    profiling: Profiling | None = None
    graph_actual: int | None = None
    kv_cache: dict[str, Any] | None = None
    workspaces: dict[str, list[int]] = Field(default_factory=dict)
    model: dict[str, Any] | None = None
    buffers: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Tensors that the model runner holds, by moment and attribute."""
    attention_backends: dict[str, int] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    device: dict[str, Any] | None = None
    peak_tensors: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    probe_errors: list[str] = Field(default_factory=list)
    absent: list[str] = Field(default_factory=list)
    phase_seconds: dict[str, float] = Field(default_factory=dict)


class Printed(_Model):
    """What vLLM printed about its KV cache and its compile cache."""

    kv_tokens: int | None = None
    max_concurrency: float | None = None
    available_kv_gib: float | None = None
    compile_cache_hit: bool | None = None
    """True: compiled code was loaded (a warm start); False: it was compiled; None: neither was printed (eager)."""


class RunRecord(_Model):
    """One run, whatever became of it."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str
    request: RunRequest
    status: RunStatus
    reason: str | None = None
    """One of `vllm_capacity.errors.Reason` when refused."""
    error: dict[str, str] | None = None
    """{phase, type, message}."""
    phase: str = ""
    """How far the engine came."""
    versions: dict[str, str | None] = Field(default_factory=dict)
    gpus: list[GpuState] = Field(default_factory=list)
    engine: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments the engine was started with (paths left out)."""
    environment: dict[str, str] = Field(default_factory=dict)
    plan: dict[str, Any] | None = None
    """The plan made before the run, as `plan --json` prints it."""
    plan_error: str | None = None
    ranks: list[RankRecord] = Field(default_factory=list)
    printed: Printed = Field(default_factory=Printed)
    requests_done: dict[str, Any] | None = None
    durations: dict[str, float] = Field(default_factory=dict)
    gpu_memory_returned: bool | None = None
    log: list[str] = Field(default_factory=list)
    """The log's lines about memory."""
    origin: str = ""
    """Where a record comes from that this tool did not make."""

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
    try:
        return RunRecord.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


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
