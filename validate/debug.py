"""`--debug-oom`: which component grew until memory ran out."""

from __future__ import annotations

from vllm_capacity.units import gib
from vllm_capacity.validate.record import RankRecord, RunRecord, RunStatus

STAGE_COMPONENTS = (
    ("context", "baseline", "communication (NCCL, all-reduce buffers)"),
    ("baseline", "runner_init", "model runner's buffers"),
    ("runner_init", "load", "weights"),
    ("load", "profile_peak", "activations and workspaces of the profiling run"),
    ("profiled", "kv_allocated", "KV cache"),
    ("before_capture", "after_capture", "CUDA graphs"),
    ("after_capture", "started", "sampler warm-up"),
    ("ready", "after_requests", "the first requests"),
)
"""(stage before, stage after, what is allocated between them)."""


def growth(rank: RankRecord) -> list[tuple[str, int]]:
    """Per component how much the device's memory in use grew between its stages; a failed stage counts as the
    end.
    """
    found = []
    failed = next((s for name, s in rank.stages.items() if name.startswith("failed_in_")), None)
    for before, after, component in STAGE_COMPONENTS:
        start, end = rank.stages.get(before), rank.stages.get(after)
        if start is None:
            continue
        if end is None:
            end = failed
            failed = None
        if end is None:
            continue
        grown = end["cuda_memory"] - start["cuda_memory"]
        if after == "profile_peak":
            grown = max(grown, end.get("reserved_peak", 0) - start.get("reserved", 0))
        found.append((component, int(grown)))
    return found


def verdict(record: RunRecord) -> list[str]:
    """Lines for people: the stage that failed, what grew there, and what was alive."""
    lines: list[str] = []
    for rank in record.ranks:
        lines.append(f"rank {rank.rank}:")
        lines += [f"  {component}: {gib(n)}" for component, n in growth(rank)]
        sizes = {moment: sum(sizes) for moment, sizes in rank.workspaces.items()}
        lines += [f"  workspace {moment}: {gib(n)}" for moment, n in sizes.items() if n]
        if rank.error is not None:
            lines.append(f"  failed in {rank.error['phase']}: {rank.error['message'][:200]}")
            for group in (rank.peak_tensors or {}).get("groups", [])[:5]:
                lines.append(
                    f"  alive: {group['count']} x {gib(group['bytes'], 3)} from {group['origin'][:1]}"
                )
    if record.status is RunStatus.OK:
        lines.append("verdict: nothing ran out of memory")
    else:
        last = [growth(r)[-1] for r in record.ranks if r.error is not None and growth(r)]
        what = f"{last[0][0]} ({gib(last[0][1])} since its start)" if last else record.phase
        lines.append(f"verdict: {record.status.value} while allocating {what}")
    return lines
