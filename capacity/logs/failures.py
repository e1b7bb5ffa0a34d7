"""What goes wrong in a log: vLLM's refusals, out-of-memory messages of every kind, and the step they
happened in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from vllm_capacity.errors import Reason
from vllm_capacity.logs.formats import F, N, Value
from vllm_capacity.units import GIB, KIB, MIB


class FailureKind(StrEnum):
    REFUSAL = "refusal"
    """vLLM itself says no."""
    OUT_OF_MEMORY = "out_of_memory"
    """The GPU had no room."""
    NCCL_OUT_OF_MEMORY = "nccl_out_of_memory"
    WORKSPACE_LOCKED = "workspace_locked"
    HOST_MEMORY = "host_memory"
    SHARED_MEMORY = "shared_memory"
    MEMORY_CHANGED = "memory_changed"
    """Free memory grew while vLLM profiled: another process went away."""
    OTHER = "other"
    """The engine failed; the line does not say why."""


class Phase(StrEnum):
    """Steps of a start, in vLLM's order (v1/worker/gpu_worker.py, 0.26.0)."""

    UNKNOWN = "unknown"
    INIT = "init"
    LOAD = "load"
    REPACK = "repack"
    PROFILE = "profile"
    GRAPH_ESTIMATE = "graph_estimate"
    MINIMAL_KV = "minimal_kv"
    KV_ALLOCATION = "kv_allocation"
    GRAPH_CAPTURE = "graph_capture"
    SAMPLER_WARMUP = "sampler_warmup"
    KERNEL_WARMUP = "kernel_warmup"
    REQUEST = "request"


PHASE_WORDS = {
    Phase.UNKNOWN: "at a step that the log does not show",
    Phase.INIT: "while the worker started",
    Phase.LOAD: "while loading the weights",
    Phase.REPACK: "while repacking the loaded weights",
    Phase.PROFILE: "in the profile run",
    Phase.GRAPH_ESTIMATE: "while estimating the CUDA graphs' memory",
    Phase.MINIMAL_KV: "while making the minimal KV cache for graph profiling",
    Phase.KV_ALLOCATION: "while allocating the KV cache",
    Phase.GRAPH_CAPTURE: "while capturing CUDA graphs",
    Phase.SAMPLER_WARMUP: "in the sampler warm-up after graph capture",
    Phase.KERNEL_WARMUP: "in the kernel warm-up",
    Phase.REQUEST: "while serving requests",
}

_FRAMES: tuple[tuple[str, Phase], ...] = (
    # The first row that names a function of the stack counts: rows go from the inside out.
    ("_init_minimal_kv_cache_for_profiling", Phase.MINIMAL_KV),
    ("profile_cudagraph_memory", Phase.GRAPH_ESTIMATE),
    ("kernel_warmup", Phase.KERNEL_WARMUP),
    ("flashinfer_autotune", Phase.KERNEL_WARMUP),
    ("capture_model", Phase.GRAPH_CAPTURE),
    ("_capture_cudagraphs", Phase.GRAPH_CAPTURE),
    ("capture_graph", Phase.GRAPH_CAPTURE),
    ("profile_run", Phase.PROFILE),
    ("determine_available_memory", Phase.PROFILE),
    ("_dummy_sampler_run", Phase.SAMPLER_WARMUP),
    ("_dummy_pooler_run", Phase.SAMPLER_WARMUP),
    ("warmup_kernels", Phase.KERNEL_WARMUP),
    ("compile_or_warm_up_model", Phase.SAMPLER_WARMUP),
    ("_allocate_kv_cache_tensors", Phase.KV_ALLOCATION),
    ("allocate_kv_cache", Phase.KV_ALLOCATION),
    ("initialize_kv_cache", Phase.KV_ALLOCATION),
    ("initialize_from_config", Phase.KV_ALLOCATION),
    ("process_weights_after_loading", Phase.REPACK),
    ("load_model", Phase.LOAD),
    ("load_weights", Phase.LOAD),
    ("init_device", Phase.INIT),
    ("init_worker_distributed_environment", Phase.INIT),
    ("execute_model", Phase.REQUEST),
    ("sample_tokens", Phase.REQUEST),
    ("step", Phase.REQUEST),
)


def phase_of_frames(functions: list[str]) -> Phase | None:
    """The step that a stack of function names (outermost first) shows; None where it shows none."""
    present = set(functions)
    return next((phase for name, phase in _FRAMES if name in present), None)


_NAMED = tuple(
    (name, phase)
    for name, phase in _FRAMES
    if name not in ("step", "load_weights", "kernel_warmup", "load_model")
)


def phase_of_words(text: str) -> Phase | None:
    """The step that a message or a person's sentence names."""
    for name, phase in _NAMED:
        if name in text:
            return phase
    for pattern, phase in _PHASE_SENTENCES:
        if pattern.search(text):
            return phase
    return None


_PHASE_SENTENCES = (
    (re.compile(r"warming up (?:sampler|pooler)|sampler warm-?up", re.IGNORECASE), Phase.SAMPLER_WARMUP),
    (re.compile(r"graph capture|Capturing CUDA graphs?", re.IGNORECASE), Phase.GRAPH_CAPTURE),
    (
        re.compile(r"not enough GPU memory.*(?:load|model)|loading (?:the )?weights", re.IGNORECASE),
        Phase.LOAD,
    ),
)


@dataclass(frozen=True, slots=True)
class Found:
    """One failure in one line."""

    kind: FailureKind
    reason: Reason | None
    values: dict[str, Value]


_SIZE = r"(\d+(?:\.\d+)?) ?(bytes|[KMGT]i?B)"
_UNITS = {"bytes": 1, "K": KIB, "M": MIB, "G": GIB, "T": GIB * 1024}


def size_bytes(number: str, unit: str) -> int:
    """'786.00', 'MiB' as bytes (PyTorch's GiB are binary, and so are its older 'GB')."""
    return round(float(number) * _UNITS["bytes" if unit == "bytes" else unit[0]])


OOM_FIGURES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern.replace("<S>", _SIZE)))
    for name, pattern in (
        ("tried_bytes", r"[Tt]r(?:ied|ying) to allocate <S>"),
        ("cuda_total_bytes", r"total capacity of <S>"),
        ("cuda_total_bytes", r"<S> total capacity"),
        ("free_at_failure_bytes", r"of which <S> is free"),
        ("free_at_failure_bytes", r"(?<!reserved )\b<S> free[;)]"),
        ("process_bytes", r"[Tt]his process has <S> memory in use"),
        ("allocated_bytes", r"Of the allocated memory <S> is allocated by PyTorch"),
        ("allocated_bytes", r"<S> already allocated"),
        ("graph_pool_bytes", r"with <S> allocated in private pools"),
        ("reserved_unallocated_bytes", r"<S> is reserved by PyTorch but unallocated"),
        ("reserved_bytes", r"<S> reserved in total by PyTorch"),
    )
)
_OTHER_PROCESS = re.compile(r"Process \d+ has " + _SIZE + r" memory in use")
_DEVICE = re.compile(r"GPU (\d+) has a total|\(GPU (\d+);|on device (\d+)")
_PLAIN_OOM = re.compile(r"trying to allocate (\d+) bytes \(free: (\d+), total: (\d+)\)")
_OOM = re.compile(
    r"out of memory[.:]? Tried to allocate|Tried to allocate [\d.]+ [KMG]i?B|OutOfMemoryError|CUDA out of "
    r"memory(?! occurred)|"
    r"HIP out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|"
    r"memory allocation failed with OOM|trying to allocate \d+ bytes \(free:|CUDA_ERROR_OUT_OF_MEMORY"
)
_WARMUP = re.compile(
    r"out of memory occurred when warming up (sampler|pooler)(?: \(task=\S+\))? with (\d+) dummy"
)


def _oom(text: str) -> Found | None:
    warmup = _WARMUP.search(text)
    if warmup:
        return Found(FailureKind.OUT_OF_MEMORY, Reason.SAMPLER_WARMUP, {"dummy_requests": int(warmup[2])})
    if not _OOM.search(text):
        return None
    values: dict[str, Value] = {}
    for name, pattern in OOM_FIGURES:
        match = pattern.search(text)
        if match and name not in values:
            values[name] = size_bytes(match[1], match[2])
    others = [size_bytes(number, unit) for number, unit in _OTHER_PROCESS.findall(text)]
    if others:
        values["other_processes_bytes"] = sum(others)
    plain = _PLAIN_OOM.search(text)
    if plain:
        values["tried_bytes"], values["free_at_failure_bytes"], values["cuda_total_bytes"] = (
            int(part[:18]) for part in plain.groups()
        )
    device = _DEVICE.search(text)
    if device:
        values["device_index"] = int(next(part for part in device.groups() if part)[:6])
    return Found(FailureKind.OUT_OF_MEMORY, None, values)


def _refusal(reason: Reason, pattern: str, *fields: str) -> tuple[Reason, re.Pattern[str], tuple[str, ...]]:
    compiled = re.compile(pattern.replace("<F>", F).replace("<N>", N))
    assert compiled.groups == len(fields), pattern
    return reason, compiled, fields


REFUSALS = (
    _refusal(
        Reason.FREE_BELOW_REQUESTED,
        r"Free memory on device (?:(\S+) )?\(<F>/<F> GiB\) on startup is less than desired GPU memory "
        r"utilization \(<F>, <F> GiB\)",
        "device_text",
        "free_gib",
        "cuda_total_gib",
        "gpu_memory_utilization",
        "requested_gib",
    ),
    _refusal(Reason.NO_KV_MEMORY, r"No available memory for the cache blocks|No KV cache room"),
    _refusal(
        Reason.NO_KV_MEMORY,
        r"multimodal GPU decoding reserves <F> GiB \(<F> GiB raw-frame budget, "
        r"<F> GiB decoder cache budget\), "
        r"but only <F> GiB is available",
        "mm_reserved_gib",
        "mm_frames_gib",
        "mm_decoder_gib",
        "available_kv_gib",
    ),
    _refusal(
        Reason.ONE_REQUEST_DOES_NOT_FIT,
        r"(?:max seq len \(<N>\),? )?\(?<F> Gi?B KV cache is needed(?:, which is larger than the "
        r"available KV cache memory "
        r"\(<F> Gi?B\))?",
        "max_model_len",
        "request_gib",
        "available_kv_gib",
    ),
    _refusal(
        Reason.ONE_REQUEST_DOES_NOT_FIT,
        r"max seq len \(<N>\) (?:is )?larger than (?:the maximum number of tokens that can be stored "
        r"in |\.\.\. ?)?(?:the )?KV cache "
        r"\(<N>\)",
        "max_model_len",
        "kv_cache_size_tokens",
    ),
    _refusal(
        Reason.ONE_REQUEST_DOES_NOT_FIT,
        r"\b<N>(?: tokens)? needs? <F> GiB.*?(?=estimated maximum "
        r"model length|refuses)",
        "max_model_len",
        "request_gib",
    ),
    _refusal(Reason.ONE_REQUEST_DOES_NOT_FIT, r"Cannot auto-fit max_model_len: not enough GPU memory"),
    _refusal(
        Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS,
        r"max_num_seqs \(<N>\) exceeds available Mamba cache blocks \(<N>\)",
        "max_num_seqs",
        "mamba_blocks",
    ),
    _refusal(
        Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS,
        r"available Mamba (?:cache )?blocks <N>.*fails",
        "mamba_blocks",
    ),
    _refusal(
        Reason.INVALID_LAYOUT,
        r"must be divisible by tensor parallel size|not divisible by tensor "
        r"parallel|"
        r"is not divisible by weight quantization block|AssertionError: \d+ is not divisible by \d+|World "
        r"size \(?\d+\)? is larger than the number "
        r"of available GPUs|"
        r"Tensor parallel size \(\d+\) exceeds available GPUs",
    ),
    _refusal(
        Reason.UNSUPPORTED_BY_RELEASE,
        r"Model architectures \[.*?\] (?:are not supported for now|failed to be inspected)",
    ),
)
_ESTIMATE = re.compile(r"estimated maximum model length is " + N)

_OTHERS: tuple[tuple[FailureKind, re.Pattern[str], tuple[str, ...]], ...] = (
    (
        FailureKind.WORKSPACE_LOCKED,
        re.compile(
            r"Workspace is locked but allocation from '([^']*)' "
            r"requires " + F + r" MB, current size is " + F + " MB"
        ),
        ("workspace_caller_text", "workspace_required_mib", "workspace_mib"),
    ),
    (FailureKind.NCCL_OUT_OF_MEMORY, re.compile(r"Cuda failure (?:2 )?'out of memory'"), ()),
    (
        FailureKind.SHARED_MEMORY,
        re.compile(
            r"Insufficient space in (\S+?)(?: for .+?)?: " + F + r" MiB requi"
            r"red, " + F + " MiB free"
        ),
        ("path_text", "required_mib", "free_mib"),
    ),
    (FailureKind.SHARED_MEMORY, re.compile(r"No space left on device.*?/dev/shm|Bus error|bus error"), ()),
    (
        FailureKind.MEMORY_CHANGED,
        re.compile(
            r"Error in memory profiling\. Initial (?:free|used) memory "
            + F
            + r"(?: GiB)?, current(?:ly)? (?:free|used) memory "
            + F
        ),
        ("free_gib", "free_now_gib"),
    ),
    (
        FailureKind.HOST_MEMORY,
        re.compile(
            r"DefaultCPUAllocator: (?:can't|not enough memory)|Cannot allocate "
            r"memory|OOMKilled|"
            r"exit(?:ed with)? code -?(?:9|137)\b|\bdied "
            r"with.*SIGKILL|cudaErrorHostMemory"
        ),
        (),
    ),
    (
        FailureKind.OTHER,
        re.compile(
            r"Engine core initialization failed|WorkerProc initialization failed|EngineCore failed to start|"
            r"EngineCore encountered a fatal error"
        ),
        (),
    ),
)

MAY_FAIL = re.compile(
    r"memory|max seq len|Mamba|locked|space|divisible|larger than|not supported|failed|us "
    r"error|alloc|needs?|Killed|code|"
    r"fatal error|OOM|OutOfMemory|SIGKILL|exceeds|No KV cache room",
)
"""A cheap test: no failure without one of these."""


def read_failure(text: str) -> Found | None:
    """The failure that a line states; None where it states none."""
    if MAY_FAIL.search(text) is None:
        return None
    for reason, pattern, fields in REFUSALS:
        match = pattern.search(text)
        if match:
            values: dict[str, Value] = {
                name: _number(name, part)
                for name, part in zip(fields, match.groups(), strict=True)
                if part is not None
            }
            estimate = _ESTIMATE.search(text)
            if estimate:
                values["estimated_max_model_len"] = int(estimate[1].replace(",", ""))
            return Found(FailureKind.REFUSAL, reason, values)
    for kind, pattern, fields in _OTHERS:
        match = pattern.search(text)
        if match:
            return Found(
                kind,
                None,
                {name: _number(name, part) for name, part in zip(fields, match.groups(), strict=True)},
            )
    found = _oom(text)
    if found is None:
        estimate = _ESTIMATE.search(text)
        if estimate and ("is larger than" in text or "refuses" in text):
            return Found(
                FailureKind.REFUSAL,
                Reason.ONE_REQUEST_DOES_NOT_FIT,
                {"estimated_max_model_len": int(estimate[1].replace(",", ""))},
            )
    return found


def _number(name: str, text: str) -> Value:
    if name.endswith("_text"):
        return text
    plain = text.replace(",", "")
    return (
        float(plain)
        if "." in plain or name.endswith(("_gib", "_mib", "gpu_memory_utilization"))
        else int(plain[:18])
    )
