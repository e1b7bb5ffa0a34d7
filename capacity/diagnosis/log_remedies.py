"""Remedies that follow from the log's own figures, where the model or the GPU is not known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_capacity.diagnosis.causes import Basis, Finding, Remedy, RuntimeCause
from vllm_capacity.diagnosis.rebuild import logged_free_gib, logged_total_bytes
from vllm_capacity.errors import Reason
from vllm_capacity.logs.failures import Phase
from vllm_capacity.logs.record import StartRecord
from vllm_capacity.units import GIB, MIB, gib

LATE = frozenset(
    {Phase.KV_ALLOCATION, Phase.GRAPH_CAPTURE, Phase.SAMPLER_WARMUP, Phase.KERNEL_WARMUP, Phase.REQUEST}
)
"""Steps at which the KV cache exists: a smaller share makes room."""


def logged_remedies(start: StartRecord, finding: Finding) -> Iterator[Remedy]:
    total, values = logged_total_bytes(start), finding.figures
    utilization = (
        _float(values, "gpu_memory_utilization")
        or start.largest("gpu_memory_utilization")
        or _flag(start, "gpu_memory_utilization")
    )
    cause = finding.cause
    if cause is Reason.FREE_BELOW_REQUESTED:
        yield from _free_below(values, total)
    elif cause is Reason.ONE_REQUEST_DOES_NOT_FIT:
        longest = _float(values, "estimated_max_model_len") or _float(values, "kv_cache_size_tokens")
        if longest:
            yield _remedy(
                "shorter requests",
                ("--max-model-len", f"{longest:.0f}"),
                None,
                0,
                True,
                "the longest request that fits, by vLLM's own estimate; starts with one such request "
                "filling the cache",
            )
        yield from _larger_share(start, finding, utilization, total)
    elif cause is Reason.NO_KV_MEMORY and finding.phase is not Phase.PROFILE:
        yield from _larger_share(start, finding, utilization, total)
    elif cause is Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS:
        blocks = _float(values, "mamba_blocks")
        if blocks:
            yield _remedy(
                "fewer sequences a batch",
                ("--max-num-seqs", f"{blocks:.0f}"),
                None,
                None,
                True,
                f"{blocks:.0f} state blocks hold {blocks:.0f} sequences; starts",
            )
    elif cause is Reason.SAMPLER_WARMUP:
        yield from _fewer_rows(start, values)
    elif cause is RuntimeCause.KV_CACHE_FULL:
        yield from _full_cache(start)
    elif cause is RuntimeCause.SHARED_MEMORY:
        need = _float(values, "required_mib")
        size = f"{math.ceil((need or 0) / 1024) + 1}g" if need else "8g"
        yield _remedy(
            "a larger /dev/shm",
            ("--shm-size", size),
            None,
            None,
            None,
            f"an option of `docker run`; {need:,.0f} MiB are asked for"
            if need
            else "an option of `docker run`",
        )
    elif cause is RuntimeCause.MEMORY_CHANGED:
        yield _remedy(
            "start again once the other process is gone",
            (),
            None,
            None,
            None,
            "nothing in vLLM's settings is at fault; start engines on one GPU one after another",
        )
    elif cause is RuntimeCause.REQUEST_OUT_OF_MEMORY and values.get("grows_with") == "max_num_batched_tokens":
        yield from _smaller_chunks(start, values)
    elif cause is RuntimeCause.WORKSPACE_LOCKED:
        yield from _workspace(start, finding)
    if finding.missing_bytes and finding.phase in LATE and total and utilization:
        yield from _smaller_share(finding, utilization, total)
    if finding.phase in (Phase.GRAPH_CAPTURE, Phase.GRAPH_ESTIMATE, Phase.MINIMAL_KV):
        wanted = _float(values, "tried_bytes")
        yield _remedy(
            "no compilation, no graphs: slower",
            ("--enforce-eager",),
            None if wanted is None else int(wanted),
            None,
            True,
            "the step that failed is left out"
            + (f": its {wanted / MIB:,.2f} MiB are not asked for" if wanted else ""),
        )


def _remedy(
    change: str,
    flags: tuple[str, ...],
    frees: int | None,
    spare: int | None,
    starts: bool | None,
    effect: str,
) -> Remedy:
    return Remedy(
        change=change,
        flags=flags,
        frees_bytes=frees,
        spare_bytes=spare,
        starts=starts,
        basis=Basis.LOGGED,
        effect=effect,
    )


def _free_below(values: Mapping[str, Any], total: int | None) -> Iterator[Remedy]:
    free, requested = _float(values, "free_gib"), _float(values, "requested_gib")
    if free is None or requested is None or not total:
        return
    limit = math.floor(free * GIB / total * 1000) / 1000
    spare = round(free * GIB) - math.ceil(limit * total)
    yield _remedy(
        "ask for no more than is free",
        ("--gpu-memory-utilization", f"{limit:g}"),
        math.ceil(requested * GIB) - math.ceil(limit * total),
        spare,
        True,
        f"asks for {limit * total / GIB:.2f} of the {free:g} GiB that are free; passes this check "
        f"with {gib(max(spare, 0))} to spare",
    )
    short = requested - free
    yield _remedy(
        "stop what else uses the GPU",
        (),
        None,
        None,
        None,
        f"`nvidia-smi` lists it; {short:.2f} GiB have to become free for the share that is set",
    )


def _larger_share(
    start: StartRecord, finding: Finding, utilization: float | None, total: int | None
) -> Iterator[Remedy]:
    missing = finding.missing_bytes
    if not (missing and utilization and total):
        return
    wanted = math.ceil((utilization + missing / total) * 1000 + 1e-9) / 1000
    free = logged_free_gib(start)
    limit = math.floor(free * GIB / total * 1000) / 1000 if free is not None else 1.0
    one = finding.cause is Reason.ONE_REQUEST_DOES_NOT_FIT
    gained = math.ceil(wanted * total) - math.ceil(utilization * total)
    flags = ("--gpu-memory-utilization", f"{wanted:g}")
    if wanted > limit:
        yield _remedy(
            "a larger share",
            flags,
            gained,
            None,
            False,
            f"{gib(missing)} more would be needed, but at most {limit:g} of the GPU is free: this alone "
            "cannot help",
        )
    elif one:
        yield _remedy(
            "a larger share",
            flags,
            gained,
            gained - missing,
            True,
            f"adds {gib(gained)} to the KV cache; starts with {gib(gained - missing)} to spare, if as much "
            "is free",
        )
    else:
        yield _remedy(
            "a larger share",
            flags,
            gained,
            None,
            None,
            f"adds {gib(gained)}: the least at which any KV cache is left; one request needs more on top",
        )


def _smaller_share(finding: Finding, utilization: float, total: int) -> Iterator[Remedy]:
    missing = finding.missing_bytes or 0
    lower = math.floor((utilization - missing / total) * 100 - 1e-9) / 100
    if lower <= 0:
        return
    frees = math.ceil(utilization * total) - math.ceil(lower * total)
    yield _remedy(
        "a smaller KV cache",
        ("--gpu-memory-utilization", f"{lower:g}"),
        frees,
        frees - missing,
        True,
        f"takes {gib(frees)} from the KV cache; {gib(frees - missing)} to spare for the allocation that "
        "failed",
    )


def _fewer_rows(start: StartRecord, values: Mapping[str, Any]) -> Iterator[Remedy]:
    """The failing tensor has one row per sequence: its size is proportional (v1/worker/gpu_model_runner.py:
    _dummy_sampler_run)."""
    rows = _float(values, "dummy_requests") or _flag(start, "max_num_seqs")
    tried, free = _float(values, "tried_bytes"), _float(values, "free_at_failure_bytes")
    if not rows or tried is None:
        return
    for sequences in (256, 128, 64):
        if sequences < rows:
            needed = round(tried * sequences / rows)
            spare = None if free is None else round(free) - needed
            yield _remedy(
                "fewer sequences a batch",
                ("--max-num-seqs", str(sequences)),
                round(tried) - needed,
                spare,
                None if spare is None else spare >= 0,
                f"the tensor that failed shrinks from {tried / MIB:,.2f} to {needed / MIB:,.2f} MiB"
                + (f"; {gib(spare)} to spare" if spare is not None and spare >= 0 else ""),
            )


def _smaller_chunks(start: StartRecord, values: Mapping[str, Any]) -> Iterator[Remedy]:
    """Log-probabilities of a prompt take one row of the vocabulary per token of the chunk."""
    tokens = _flag(start, "max_num_batched_tokens") or start.count("max_num_batched_tokens")
    tried, free = _float(values, "tried_bytes"), _float(values, "free_at_failure_bytes")
    if not tokens or tried is None or free is None:
        return
    smaller = int(tokens)
    while smaller > 256 and tried * smaller / tokens > free:
        smaller //= 2
    needed = round(tried * smaller / tokens)
    yield _remedy(
        "fewer tokens a batch",
        ("--max-num-batched-tokens", str(smaller)),
        round(tried) - needed,
        round(free) - needed,
        needed <= free,
        f"the rows that failed shrink from {tried / MIB:,.2f} to at most {needed / MIB:,.2f} MiB of the "
        f"{free / MIB:,.2f} MiB that were free",
    )


def _workspace(start: StartRecord, finding: Finding) -> Iterator[Remedy]:
    needed, current = (
        _float(finding.figures, "workspace_required_mib"),
        _float(finding.figures, "workspace_mib"),
    )
    tokens = _flag(start, "max_num_batched_tokens") or start.count("max_num_batched_tokens")
    if needed and current and tokens:
        fitting = int(tokens * current / needed) // 256 * 256
        if fitting > 0:
            yield _remedy(
                "fewer tokens a batch",
                ("--max-num-batched-tokens", str(fitting)),
                None,
                None,
                None,
                f"at {fitting:,} tokens the same step needs at most {needed * fitting / tokens:,.2f} MB of "
                f"the locked {current:,.2f} MB, "
                "if the need is proportional to the batch",
            )
    yield _remedy(
        "show who asks for it",
        ("VLLM_DEBUG_WORKSPACE=1",),
        None,
        None,
        None,
        "logs each resize with its caller and size, so that the batch that did it can be reported",
    )


def _full_cache(start: StartRecord) -> Iterator[Remedy]:
    concurrency, length = start.smallest("max_concurrency"), start.count("concurrency_max_model_len")
    running, tokens = start.running, start.count("kv_cache_size_tokens")
    if concurrency and concurrency >= 1:
        fitting = max(int(concurrency), 1)
        if fitting < running.running_max:
            yield _remedy(
                "fewer requests at once",
                ("--max-num-seqs", str(fitting)),
                None,
                None,
                True,
                f"{fitting} requests of {length or 0:,} tokens always fit, so none is preempted; up "
                f"to {running.running_max} ran",
            )
    equivalent, suggested = (
        start.smallest("gpu_memory_utilization"),
        start.smallest("suggested_gpu_memory_utilization"),
    )
    total = logged_total_bytes(start)
    if suggested and equivalent and total and suggested <= 0.99:
        gained = math.ceil((suggested - equivalent) * total)
        more = (
            f", about {tokens * gained / (start.smallest('available_kv_gib') or 1) / GIB:,.0f} tokens"
            if tokens and start.smallest("available_kv_gib")
            else ""
        )
        yield _remedy(
            "a larger share",
            ("--gpu-memory-utilization", f"{suggested:.4f}"),
            gained,
            None,
            None,
            f"vLLM's own suggestion: {gib(gained)} more KV cache{more}",
        )


def _float(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _flag(start: StartRecord, name: str) -> float | None:
    value = start.non_default.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
