"""Changes that would help, each with its effect in numbers, cheapest for the user first.

Where the run could be rebuilt, a change is planned again and the difference is added to what the log shows,
so that an error of
the plan's level cancels. Where it could not, only what follows from the log's own figures is offered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from vllm_capacity.answer import Plan, Status
from vllm_capacity.diagnosis.causes import Basis, Finding, Remedy, RuntimeCause
from vllm_capacity.diagnosis.log_remedies import LATE, logged_remedies
from vllm_capacity.diagnosis.margins import BUDGET, budget_margin, margin
from vllm_capacity.diagnosis.rebuild import Rebuilt, logged_free_gib
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import CapacityError, Reason
from vllm_capacity.logs.failures import Phase
from vllm_capacity.logs.record import StartRecord
from vllm_capacity.units import GIB, MIB, gib

MOST = 6
WORTH_BYTES = 32 * MIB


@dataclass(frozen=True, slots=True)
class _Change:
    words: str
    flags: tuple[str, ...]
    args: EngineArgs


def remedies(start: StartRecord, finding: Finding, rebuilt: Rebuilt | None) -> tuple[Remedy, ...]:
    """Those that make it work first, in the order of what they cost; then those that help without being
    enough."""
    found = _best_per_flag(_planned(start, finding, rebuilt)) if rebuilt else []
    flags = {remedy.flags[:1] for remedy in found}
    found += [
        remedy
        for remedy in logged_remedies(start, finding)
        if remedy.flags[:1] not in flags or not remedy.flags
    ]
    found.sort(key=lambda remedy: 0 if remedy.starts else 1 if remedy.starts is None else 2)
    return tuple(found[:MOST])


LOADING = frozenset({Phase.LOAD, Phase.REPACK})


def _best_per_flag(found: Iterator[Remedy]) -> list[Remedy]:
    """Of several values of one flag the mildest that is enough, else the one that helps most."""
    best: dict[str, Remedy] = {}
    for remedy in found:
        known = best.get(remedy.flags[0])
        if known is None or (
            not known.starts and (remedy.starts or (remedy.frees_bytes or 0) > (known.frees_bytes or 0))
        ):
            best[remedy.flags[0]] = remedy
    return list(best.values())


# -- planned again
# -----------------------------------------------------------------------------------------------------


def _planned(start: StartRecord, finding: Finding, rebuilt: Rebuilt) -> Iterator[Remedy]:
    plan = rebuilt.plan
    if finding.cause in (
        Reason.UNSUPPORTED_BY_RELEASE,
        RuntimeCause.HOST_MEMORY,
        RuntimeCause.SHARED_MEMORY,
        RuntimeCause.MEMORY_CHANGED,
        RuntimeCause.WORKSPACE_LOCKED,
        RuntimeCause.ENGINE_FAILED,
    ):
        return
    if finding.cause is RuntimeCause.KV_CACHE_FULL:
        yield from _more_cache(start, finding, rebuilt)
        return
    if finding.cause is Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS:
        yield from _more_blocks(finding, rebuilt)
        return
    before = margin(plan, finding.cause, finding.phase)
    base = _base(start, finding, plan, before)
    for change, other in _replanned(start, finding, rebuilt, base):
        frees = margin(other, finding.cause, finding.phase) - before
        spare = base + frees
        starts, why = _starts(finding, plan, other, spare)
        if frees < WORTH_BYTES and not starts:
            continue
        yield Remedy(
            change=change.words,
            flags=change.flags,
            frees_bytes=frees,
            spare_bytes=spare,
            starts=starts,
            basis=Basis.PLANNED,
            effect=_effect(finding, frees, spare, starts, why),
            kv_cache_size_tokens=other.kv_cache.size_tokens if starts else None,
        )


def _replanned(
    start: StartRecord, finding: Finding, rebuilt: Rebuilt, base: int = 0
) -> Iterator[tuple[_Change, Plan]]:
    for change in _changes(start, finding, rebuilt, base):
        try:
            other = rebuilt.again(change.args)
        except CapacityError:
            continue
        if isinstance(other, Plan):
            yield change, other


def _more_cache(start: StartRecord, finding: Finding, rebuilt: Rebuilt) -> Iterator[Remedy]:
    """A full cache is relieved by tokens: the planned gain, relative to what was logged."""
    plan = rebuilt.plan
    logged = start.count("kv_cache_size_tokens") or plan.kv_cache.size_tokens
    found = []
    for change, other in _replanned(start, finding, rebuilt):
        if other.verdict.status is Status.DOES_NOT_START or plan.kv_cache.size_tokens <= 0:
            continue
        frees = other.tightest.budget.available_kv_bytes - plan.tightest.budget.available_kv_bytes
        tokens = round(logged * other.kv_cache.size_tokens / plan.kv_cache.size_tokens)
        if tokens > logged * 1.02:
            found.append(
                Remedy(
                    change=change.words,
                    flags=change.flags,
                    frees_bytes=frees,
                    spare_bytes=None,
                    starts=True,
                    basis=Basis.PLANNED,
                    effect=f"{logged:,} -> {tokens:,} tokens of KV cache"
                    + (f" ({gib(frees)} more)" if frees >= WORTH_BYTES else " in as much memory"),
                    kv_cache_size_tokens=tokens,
                )
            )
    yield from found


def _more_blocks(finding: Finding, rebuilt: Rebuilt) -> Iterator[Remedy]:
    """State blocks after a change: the logged number plus what the plan gains, against the sequences of a
    batch."""
    plan = rebuilt.plan
    logged = finding.figures.get("mamba_blocks")
    blocks = int(logged) if isinstance(logged, (int, float)) else plan.kv_cache.num_blocks
    start = StartRecord()
    for change, other in _replanned(start, finding, rebuilt):
        after = blocks + other.kv_cache.num_blocks - plan.kv_cache.num_blocks
        sequences = other.engine.max_num_seqs
        frees = other.tightest.budget.available_kv_bytes - plan.tightest.budget.available_kv_bytes
        enough = after >= sequences
        if not enough and frees < WORTH_BYTES:
            continue
        yield Remedy(
            change=change.words,
            flags=change.flags,
            frees_bytes=frees,
            spare_bytes=None,
            starts=enough,
            basis=Basis.PLANNED,
            effect=f"{after:,} state blocks for {sequences:,} sequences; "
            + ("starts" if enough else f"{sequences - after:,} still missing"),
            kv_cache_size_tokens=other.kv_cache.size_tokens if enough else None,
        )


def _base(start: StartRecord, finding: Finding, plan: Plan, planned: int) -> int:
    """Room at the failing step as the log shows it; as planned where it does not."""
    if finding.cause is Reason.NO_KV_MEMORY and finding.phase not in (Phase.PROFILE, Phase.KV_ALLOCATION):
        available = start.smallest("available_kv_gib")
        if available is not None:
            needed = min(r.budget.available_kv_bytes for r in plan.ranks) - budget_margin(plan)
            return round(available * GIB) - needed
    if finding.missing_bytes is None:
        return planned
    # the first tensor that finds no room is rarely the last: of weights more is known than the log says
    return min(-finding.missing_bytes, planned) if finding.phase in LOADING else -finding.missing_bytes


def _starts(finding: Finding, plan: Plan, other: Plan, spare: int) -> tuple[bool, str]:
    """Whether a change is enough, and what stands in its way if not."""
    if spare < 0:
        return False, ""
    verdict = other.verdict
    budget = finding.cause in BUDGET and finding.phase not in (Phase.PROFILE, Phase.KV_ALLOCATION)
    same = (*BUDGET, finding.cause) if budget else (finding.cause, plan.verdict.reason)
    if verdict.status is Status.DOES_NOT_START and verdict.reason not in same:
        return False, verdict.reason.value if verdict.reason else ""
    return True, ""


def _effect(finding: Finding, frees: int, spare: int, starts: bool, why: str) -> str:
    verb = "frees" if frees >= 0 else "costs"
    amount = f"{verb} {gib(abs(frees))}"
    word = "runs" if isinstance(finding.cause, RuntimeCause) else "starts"
    if starts:
        return f"{amount}; {word} with {gib(spare)} to spare"
    if why:
        return f"{amount}, but then fails for another reason ({why})"
    return f"{amount}; {gib(-spare)} still missing"


def _changes(start: StartRecord, finding: Finding, rebuilt: Rebuilt, base: int) -> Iterator[_Change]:
    """Settings first, then quality, then speed, then hardware."""
    plan, args, engine = rebuilt.plan, rebuilt.args, rebuilt.plan.engine
    total = rebuilt.device.cuda_total_bytes
    cause, phase = finding.cause, finding.phase
    yield from _shares(start, finding, rebuilt, base, total)
    if cause is Reason.ONE_REQUEST_DOES_NOT_FIT:
        longest = finding.figures.get("estimated_max_model_len") or plan.verdict.max_model_len_that_fits
        if longest and int(longest) < plan.kv_cache.max_model_len:
            yield _Change(
                "shorter requests",
                ("--max-model-len", str(int(longest))),
                replace(args, max_model_len=int(longest)),
            )
    blocks = finding.figures.get("mamba_blocks")
    if cause is Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS and blocks:
        yield _Change(
            "fewer sequences a batch",
            ("--max-num-seqs", str(int(blocks))),
            replace(args, max_num_seqs=int(blocks)),
        )
    for sequences in (256, 128, 64, 16):
        if engine.max_num_seqs > sequences:
            yield _Change(
                "fewer sequences a batch",
                ("--max-num-seqs", str(sequences)),
                replace(args, max_num_seqs=sequences),
            )
    for tokens in (8192, 4096, 2048):
        if engine.max_num_batched_tokens > tokens >= min(engine.max_num_seqs, tokens):
            changed = replace(args, max_num_batched_tokens=tokens)
            if engine.max_num_seqs > tokens:
                continue
            yield _Change("fewer tokens a batch", ("--max-num-batched-tokens", str(tokens)), changed)
    loras = args.other("max_loras", 1)
    if args.other("enable_lora") and isinstance(loras, int) and loras > 1:
        others = {**args.others, "max_loras": 1}
        yield _Change("one adapter at a time", ("--max-loras", "1"), replace(args, others=others))
    if plan.architecture.is_multimodal and not args.other("language_model_only"):
        yield _Change(
            "no images or videos",
            ("--language-model-only",),
            replace(args, others={**args.others, "language_model_only": True}),
        )
    sizes = engine.cudagraph_capture_sizes
    if sizes and max(sizes) > 64 and phase in (Phase.GRAPH_CAPTURE, Phase.GRAPH_ESTIMATE, Phase.MINIMAL_KV):
        yield _Change(
            "graphs for small batches only",
            ("--max-cudagraph-capture-size", "64"),
            replace(args, max_cudagraph_capture_size=64, cudagraph_capture_sizes=None),
        )
    if (cause in BUDGET or cause is RuntimeCause.KV_CACHE_FULL) and engine.kv_cache_dtype in (
        "auto",
        "bfloat16",
        "float16",
    ):
        yield _Change("8-bit KV cache", ("--kv-cache-dtype", "fp8"), replace(args, kv_cache_dtype="fp8"))
    if not engine.enforce_eager and phase is not Phase.LOAD:
        yield _Change(
            "no compilation, no graphs: slower", ("--enforce-eager",), replace(args, enforce_eager=True)
        )
    if phase in (Phase.LOAD, Phase.REPACK, Phase.UNKNOWN, Phase.PROFILE) or cause in BUDGET:
        missing = math.ceil(max(-base, 0) / GIB) + 1
        if not args.other("cpu_offload_gb") and cause is not Reason.ONE_REQUEST_DOES_NOT_FIT:
            others = {**args.others, "cpu_offload_gb": missing}
            yield _Change(
                "weights on the host: slow", ("--cpu-offload-gb", str(missing)), replace(args, others=others)
            )
    tp = engine.parallel.tp
    if tp < 8 and cause not in (Reason.FREE_BELOW_REQUESTED, RuntimeCause.NCCL_OUT_OF_MEMORY):
        # the mildest that is enough is kept
        for words, times in (("twice the GPUs", 2), ("four times the GPUs", 4), ("eight times the GPUs", 8)):
            if times * tp <= 8:
                yield _Change(
                    words,
                    ("--tensor-parallel-size", str(times * tp)),
                    replace(args, tensor_parallel_size=times * tp),
                )


def _shares(
    start: StartRecord, finding: Finding, rebuilt: Rebuilt, base: int, total: int
) -> Iterator[_Change]:
    """The utilisation, or the KV bytes, that is just enough."""
    args, utilization = rebuilt.args, rebuilt.plan.engine.gpu_memory_utilization
    fixed = args.kv_cache_memory_bytes
    if finding.cause is RuntimeCause.KV_CACHE_FULL:
        limit = _limit(start, rebuilt.plan, total)
        if limit > utilization and not fixed:
            yield _Change(
                "all that is free",
                ("--gpu-memory-utilization", f"{limit:g}"),
                replace(args, gpu_memory_utilization=limit),
            )
        return
    if finding.phase in LATE and finding.cause is not Reason.ONE_REQUEST_DOES_NOT_FIT:
        short = max(-base, 0)
        if fixed:
            smaller = (fixed - short - 64 * MIB) // MIB * MIB
            if smaller > 0:
                yield _Change(
                    "a smaller KV cache",
                    ("--kv-cache-memory-bytes", str(smaller)),
                    replace(args, kv_cache_memory_bytes=smaller),
                )
            return
        lower = math.floor((utilization - short / total) * 100 - 1e-9) / 100
        if 0 < lower < utilization:
            yield _Change(
                "a smaller KV cache",
                ("--gpu-memory-utilization", f"{lower:g}"),
                replace(args, gpu_memory_utilization=lower),
            )
        return
    limit = _limit(start, rebuilt.plan, total)
    if finding.cause is Reason.FREE_BELOW_REQUESTED:
        if 0 < limit < utilization:
            yield _Change(
                "ask for no more than is free",
                ("--gpu-memory-utilization", f"{limit:g}"),
                replace(args, gpu_memory_utilization=limit),
            )
        return
    if finding.cause in BUDGET and not fixed and finding.phase is not Phase.PROFILE:
        wanted = math.ceil((utilization + max(-base, 0) / total) * 1000 + 1e-9) / 1000
        if utilization < wanted <= limit:
            yield _Change(
                "a larger share",
                ("--gpu-memory-utilization", f"{wanted:g}"),
                replace(args, gpu_memory_utilization=wanted),
            )
    if finding.cause is Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS and limit > utilization:
        yield _Change(
            "all that is free",
            ("--gpu-memory-utilization", f"{limit:g}"),
            replace(args, gpu_memory_utilization=limit),
        )


def _limit(start: StartRecord, plan: Plan, total: int) -> float:
    """The largest share that passes the check against free memory, to three digits."""
    free = logged_free_gib(start)
    if free is not None:
        return math.floor(free * GIB / total * 1000) / 1000
    return math.floor((plan.verdict.max_gpu_memory_utilization or 0.0) * 1000) / 1000
