"""Memory of one device at one moment, taken with vLLM's own `MemorySnapshot` and PyTorch's counters."""

from __future__ import annotations

from typing import Any

_SNAPSHOT_FIELDS = (
    "torch_peak",
    "torch_allocated",
    "free_memory",
    "total_memory",
    "cuda_memory",
    "torch_memory",
    "non_torch_memory",
    "timestamp",
)
_RESULT_FIELDS = (
    "non_kv_cache_memory",
    "torch_peak_increase",
    "non_torch_increase",
    "total_consumed",
    "transient_peak_headroom",
    "weights_memory",
    "profile_time",
)


def raw(snapshot: Any) -> dict[str, int | float]:
    """vLLM's `MemorySnapshot` field by field; a field that the release lacks is left out."""
    return {name: getattr(snapshot, name) for name in _SNAPSHOT_FIELDS if hasattr(snapshot, name)}


def raw_result(result: Any) -> dict[str, Any]:
    """vLLM's `MemoryProfilingResult` with its three snapshots."""
    values: dict[str, Any] = {name: getattr(result, name) for name in _RESULT_FIELDS if hasattr(result, name)}
    for name in ("before_create", "before_profile", "after_profile"):
        if hasattr(result, name):
            values[name] = raw(getattr(result, name))
    return values


def take(device: Any) -> dict[str, int | float]:
    """A snapshot now, with what the caching allocator holds and held at most since its peaks were reset."""
    import torch
    from vllm.utils.mem_utils import MemorySnapshot

    values = raw(MemorySnapshot(device=device))
    stats = torch.cuda.memory_stats(device)
    for name, key in (
        ("allocated", "allocated_bytes.all.current"),
        ("allocated_peak", "allocated_bytes.all.peak"),
        ("reserved", "reserved_bytes.all.current"),
        ("reserved_peak", "reserved_bytes.all.peak"),
        ("requested", "requested_bytes.all.current"),
        ("inactive_split", "inactive_split_bytes.all.current"),
        ("num_alloc_retries", "num_alloc_retries"),
    ):
        values[name] = stats.get(key, 0)
    return values


def alive_at_peak(trace: list[dict[str, Any]], keep: int = 24) -> dict[str, Any]:
    """What was alive when the sum of allocations in an allocator trace was largest.

    `trace` holds the entries of `torch.cuda.memory._snapshot()["device_traces"][device]`, oldest first.
    Returns `peak_bytes` (sum of sizes rounded up to the allocator's 512 bytes, relative to the start of the
    trace), `count` and the `keep` largest groups of equal size and origin.
    """
    alive: dict[int, dict[str, Any]] = {}
    total = peak = 0
    at = -1
    for index, entry in enumerate(trace):
        if entry["action"] == "alloc":
            alive[entry["addr"]] = entry
            total += _rounded(entry["size"])
        elif entry["action"] == "free_requested" and entry["addr"] in alive:
            total -= _rounded(alive.pop(entry["addr"])["size"])
        if total > peak:
            peak, at = total, index
    held: dict[int, dict[str, Any]] = {}
    for entry in trace[: at + 1]:
        if entry["action"] == "alloc":
            held[entry["addr"]] = entry
        elif entry["action"] == "free_requested":
            held.pop(entry["addr"], None)
    groups: dict[tuple[int, tuple[str, ...]], int] = {}
    for entry in held.values():
        key = (entry["size"], _origin(entry.get("frames") or []))
        groups[key] = groups.get(key, 0) + 1
    largest = sorted(groups.items(), key=lambda item: -item[0][0] * item[1])[:keep]
    return {
        "peak_bytes": peak,
        "count": len(held),
        "groups": [
            {"bytes": size, "count": count, "origin": list(origin)} for (size, origin), count in largest
        ],
    }


def _rounded(size: int) -> int:
    return (size + 511) // 512 * 512


def _origin(frames: list[dict[str, Any]], depth: int = 5) -> tuple[str, ...]:
    """The innermost Python frames as file:line:function, the file by its last three parts."""
    python = [f for f in frames if str(f.get("filename", "")).endswith(".py")][:depth]
    return tuple(f"{'/'.join(f['filename'].split('/')[-3:])}:{f['line']}:{f['name']}" for f in python)
