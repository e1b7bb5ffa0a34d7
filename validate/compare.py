"""A plan beside a record: predicted, measured and error per term and rank. Reads the shape of `plan --json`
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from vllm_capacity.validate.record import RankRecord, RunRecord, RunStatus
from vllm_capacity.vocabulary import QUANTITIES


class ExitCode(IntEnum):
    """What `validate` ends with."""

    WITHIN = 0
    OUTSIDE = 1
    BAD_INPUT = 2
    NOT_MEASURABLE = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One term of one rank (None: of the whole engine). Bytes unless `unit` says otherwise; None where there
    is none.
    """

    name: str
    rank: int | None
    predicted: int | None
    measured: int | None
    unit: str = "bytes"
    engine_name: str = ""
    """The name vLLM gives the figure."""

    @property
    def key(self) -> str:
        """The key of the figure in `plan --json`, where it has one."""
        key = f"{self.name}_bytes" if self.unit == "bytes" else self.name
        return key if key in QUANTITIES else self.name

    @property
    def word(self) -> str:
        """What a table calls it."""
        return QUANTITIES[self.key].word if self.key in QUANTITIES else self.name

    @property
    def error(self) -> int | None:
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted - self.measured

    @property
    def relative(self) -> float | None:
        """Error over the measured value; None where that is 0 or unknown."""
        return None if self.error is None or not self.measured else self.error / self.measured


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows of one run, KV cache tokens first, and what to make of them."""

    name: str
    status: str
    predicted_status: str | None
    reason: str | None
    predicted_reason: str | None
    cuda_total_bytes: int | None
    rows: tuple[Row, ...]
    exit_code: ExitCode
    message: str

    def row(self, name: str, rank: int | None = None) -> Row | None:
        """The first row of that name (of that rank if one is given)."""
        return next((r for r in self.rows if r.name == name and (rank is None or r.rank == rank)), None)

    def as_json(self) -> dict[str, Any]:
        rows = [
            {**asdict(r), "name": r.key, "error": r.error, "relative_error": r.relative} for r in self.rows
        ]
        return {**asdict(self), "exit_code": int(self.exit_code), "rows": rows}


def compare(plan: Mapping[str, Any] | None, record: RunRecord, tolerance_percent: float = 3.0) -> Comparison:
    """Compare a plan (as `plan --json` prints it, or None) with what a run measured.

    A run that found its compiled code in the cache is compared with what the plan says of a second start.
    """
    if plan is not None and record.printed.compile_cache_hit:
        plan = second_start(plan)
    rows = tuple(_rows(plan, record))
    code, message = _judge(plan, record, rows, tolerance_percent)
    verdict = (plan or {}).get("verdict") or {}
    device = next((r.device["cuda_total_bytes"] for r in record.ranks if r.device), None)
    return Comparison(
        record.name,
        record.status.value,
        verdict.get("status"),
        record.reason,
        verdict.get("reason"),
        device,
        rows,
        code,
        message,
    )


def second_start(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of a start with a warm compile cache: what the profile run needs less goes to the KV cache."""
    cache = plan.get("kv_cache") or {}
    first, then = cache.get("num_blocks"), cache.get("second_start_num_blocks")
    if not first or then is None or then == first:
        return dict(plan)
    ranks = []
    for rank in plan.get("ranks") or []:
        freed = rank["activation_peak_bytes"] - rank["activation_peak_warm_bytes"]
        ranks.append(
            {
                **rank,
                "activation_peak_bytes": rank["activation_peak_warm_bytes"],
                "available_kv_bytes": rank["available_kv_bytes"] + freed,
                "terms": [
                    {**t, "bytes": t["bytes"] // first * then} if t["component"] == "kv_cache" else t
                    for t in rank.get("terms") or []
                ],
            }
        )
        if rank.get("device_used_bytes") is not None:
            grown = [
                t["bytes"] // first * (then - first) for t in rank["terms"] if t["component"] == "kv_cache"
            ]
            ranks[-1]["device_used_bytes"] = rank["device_used_bytes"] + sum(grown)
    return {
        **plan,
        "ranks": ranks,
        "kv_cache": {**cache, "num_blocks": then, "size_tokens": cache["second_start_size_tokens"]},
    }


def _judge(
    plan: Mapping[str, Any] | None, record: RunRecord, rows: tuple[Row, ...], tolerance: float
) -> tuple[ExitCode, str]:
    if record.status in (RunStatus.FAILED, RunStatus.TIMEOUT):
        what = (record.error or {}).get("message", "")[:160]
        return (
            ExitCode.NOT_MEASURABLE,
            f"the engine did not come up ({record.status.value} in {record.phase}): {what}",
        )
    if plan is None:
        return ExitCode.NOT_MEASURABLE, f"no plan to compare with: {record.plan_error or 'none was made'}"
    predicted = (plan.get("verdict") or {}).get("status")
    started = record.status is RunStatus.OK
    if predicted != "too_close" and started != (predicted == "starts"):
        return (
            ExitCode.OUTSIDE,
            f"verdict wrong: predicted {predicted}, but the run was {record.status.value}",
        )
    if not started:
        return ExitCode.WITHIN, f"{record.status.value} as predicted"
    row = next((r for r in rows if r.name == "kv_cache_size_tokens" and r.error is not None), None) or next(
        (r for r in rows if r.name == "available_kv" and r.error is not None), None
    )
    if row is None or row.relative is None:
        return ExitCode.NOT_MEASURABLE, "the run recorded no KV cache figure"
    percent = 100 * row.relative
    word = "within" if abs(percent) <= tolerance else "outside"
    text = f"{row.word} {percent:+.2f} %, {word} {tolerance:g} %"
    return (ExitCode.WITHIN if abs(percent) <= tolerance else ExitCode.OUTSIDE), text


def _rows(plan: Mapping[str, Any] | None, record: RunRecord) -> Iterator[Row]:
    cache = (plan or {}).get("kv_cache") or {}
    yield Row(
        "kv_cache_size_tokens",
        None,
        cache.get("size_tokens"),
        record.printed.kv_cache_size_tokens,
        "tokens",
        "GPU KV cache size",
    )
    blocks = next((r.kv_cache["num_blocks"] for r in record.ranks if r.kv_cache), None)
    yield Row("num_blocks", None, cache.get("num_blocks"), blocks, "blocks", "num_gpu_blocks")
    for rank in record.ranks:
        planned = _planned_rank(plan, rank)
        for name, engine_name, key, measure in ACCOUNTS:
            yield Row(name, rank.rank, planned.get(key), measure(rank), "bytes", engine_name)
        terms = planned.get("terms") or []
        for name, select, measure in PARTS:
            predicted = sum(t["bytes"] for t in terms if select(t)) if terms else None
            yield Row(name, rank.rank, predicted, measure(rank))


def _planned_rank(plan: Mapping[str, Any] | None, rank: RankRecord) -> Mapping[str, Any]:
    ranks = (plan or {}).get("ranks") or []
    for planned in ranks:
        place = (planned.get("tp_rank"), planned.get("pp_rank"), planned.get("dp_rank", 0))
        if rank.tp_rank is not None and place == (rank.tp_rank, rank.pp_rank, rank.dp_rank):
            return dict(planned)
    same = [planned for planned in ranks if planned.get("rank") == rank.rank]
    return same[0] if same else {}


def _result(name: str) -> Callable[[RankRecord], int | None]:
    def measure(rank: RankRecord) -> int | None:
        result = rank.profiling.result if rank.profiling else None
        value = None if result is None else result.get(name)
        return None if value is None else int(value)

    return measure


def _profiled(name: str) -> Callable[[RankRecord], int | None]:
    def measure(rank: RankRecord) -> int | None:
        value = getattr(rank.profiling, name) if rank.profiling else None
        return None if value is None else int(value)

    return measure


def difference(rank: RankRecord, field: str, later: str, earlier: str | None = None) -> int | None:
    """How much a snapshot's field grew between two stages; None where one is missing."""
    stages = [rank.stages.get(later), rank.stages.get(earlier) if earlier else {field: 0}]
    values = [stage.get(field) if stage is not None else None for stage in stages]
    return None if values[0] is None or values[1] is None else int(values[0] - values[1])


def _device_used(rank: RankRecord) -> int | None:
    used = difference(rank, "cuda_memory", "ready")
    return used if used is not None else difference(rank, "cuda_memory", "started")


def _kv_bytes(rank: RankRecord) -> int | None:
    if rank.kv_cache is None:
        return None
    sizes = [(int(size), int(count)) for size, count in rank.kv_cache["tensors"]]
    total = sum(size * count for size, count in sizes)
    allocated = rank.stages.get("kv_allocated", {}).get("allocated", total)
    # tensors that overlay each other name the size of their common allocation (v1/kv_cache_interface.py: KVCacheTensor)
    return total if total <= allocated else max(size for size, _ in sizes)


def _after_profile(rank: RankRecord) -> str:
    """The stage after the profile run and before any graph is captured to estimate it."""
    return "before_graph_probe" if "before_graph_probe" in rank.stages else "profiled"


def _workspace(rank: RankRecord) -> int | None:
    sizes = rank.workspaces.get("started", rank.workspaces.get("after_profile"))
    return None if sizes is None else sum(sizes)


def _runner_buffers(rank: RankRecord) -> int | None:
    """What the runner's own tensors take: at its start, and what loading allocates outside of the weights (V2)."""
    first = rank.stages.get("runner_init", {}).get("allocated")
    later = difference(rank, "allocated", "load", "load_peak")
    return None if first is None else int(first) + (later or 0)


PINNED = "allocator_fragmentation"


def _pinned(rank: RankRecord) -> int | None:
    """What PyTorch keeps reserved and has not allocated once the profile run is over and its cache emptied."""
    stage = rank.stages.get(_after_profile(rank), {})
    if "reserved" not in stage or "allocated" not in stage:
        return None
    return int(stage["reserved"] - stage["allocated"])


ACCOUNTS: tuple[tuple[str, str, str, Callable[[RankRecord], int | None]], ...] = (
    ("requested", "requested_memory", "requested_bytes", lambda r: r.requested_memory),
    ("weights", "model_memory_usage", "weights_bytes", lambda r: r.model_memory_usage),
    ("activation_peak", "torch_peak_increase", "activation_peak_bytes", _result("torch_peak_increase")),
    ("non_torch", "non_torch_increase", "non_torch_bytes", _result("non_torch_increase")),
    ("graph_estimate", "cudagraph_memory_estimate", "graph_estimate_bytes", _profiled("graph_estimate")),
    (
        "graph_applied",
        "cudagraph_memory_estimate_applied",
        "graph_applied_bytes",
        _profiled("graph_applied"),
    ),
    (
        "available_kv",
        "available_kv_cache_memory_bytes",
        "available_kv_bytes",
        _profiled("available_kv_cache_memory_bytes"),
    ),
    ("non_kv", "non_kv_cache_memory", "non_kv_bytes", _result("non_kv_cache_memory")),
    ("graph_actual", "capture_model()", "graph_actual_bytes", lambda r: r.graph_actual),
    ("device_used", "cudaMemGetInfo, ready", "device_used_bytes", _device_used),
)
"""(row, vLLM's name, key of the plan's rank, how the record measures it)."""

PARTS: tuple[tuple[str, Callable[[Mapping[str, Any]], bool], Callable[[RankRecord], int | None]], ...] = (
    (
        "baseline",
        lambda t: t["lifetime"] == "before_snapshot",
        lambda r: difference(r, "cuda_memory", "baseline"),
    ),
    (
        "cuda_context",
        lambda t: t["lifetime"] == "before_snapshot" and t["name"] == "cuda_context",
        lambda r: difference(r, "cuda_memory", "context"),
    ),
    (
        "communication",
        lambda t: t["lifetime"] == "before_snapshot" and t["name"] != "cuda_context",
        lambda r: difference(r, "cuda_memory", "baseline", "context"),
    ),
    (
        "first_kernels",
        lambda t: t["lifetime"] == "runner_init" and t["allocator"] == "cuda",
        lambda r: difference(r, "non_torch_memory", "runner_init", "baseline"),
    ),
    (
        "kernel_modules",
        lambda t: t["name"] in ("kernel_modules", "collective_buffers"),
        lambda r: difference(r, "non_torch_memory", _after_profile(r), "runner_init"),
    ),
    (
        "graph_probe",
        lambda t: t["name"] == "graph_probe",
        lambda r: difference(r, "non_torch_memory", "after_graph_probe", "before_graph_probe"),
    ),
    (
        "runner_buffers",
        lambda t: t["lifetime"] == "runner_init" and t["allocator"] == "torch" and t["name"] != PINNED,
        _runner_buffers,
    ),
    (PINNED, lambda t: t["name"] == PINNED, _pinned),
    ("workspace", lambda t: t["component"] == "workspace", _workspace),
    ("kv_cache", lambda t: t["component"] == "kv_cache", _kv_bytes),
)
"""(row, which terms of the ledger it sums, how the record measures it)."""


def accounting_residual(rank: RankRecord) -> int | None:
    """requested - what was subtracted - available_kv, in bytes: 0 if the release's accounting is understood.

    The accounts are rebuilt from the raw snapshots. Classic (v1/worker/gpu_worker.py up to 0.26.0): weights,
    increase of the torch peak, increase of non-torch memory. Consumed (from 0.27.0, where the result has
    `total_consumed`): free memory before minus after, plus the peak above what stayed allocated. None where
    the release measured nothing.
    """
    profiling = rank.profiling
    if profiling is None or profiling.result is None or profiling.available_kv_cache_memory_bytes is None:
        return None
    result = profiling.result
    create, after = result["before_create"], result["after_profile"]
    if "total_consumed" in result:
        subtracted = (
            create["free_memory"] - after["free_memory"] + after["torch_peak"] - after["torch_allocated"]
        )
    else:
        non_torch = after["non_torch_memory"] - create["non_torch_memory"]
        subtracted = result["weights_memory"] + result["torch_peak_increase"] + non_torch
    left = profiling.requested_memory - subtracted - profiling.graph_applied
    return int(left - profiling.available_kv_cache_memory_bytes)


def table(comparison: Comparison, width: int | None = None) -> str:
    """The comparison as text for people."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    text = Table(
        title=f"{comparison.name}: {comparison.message}",
        title_justify="left",
        show_edge=False,
        pad_edge=False,
    )
    for column in ("term", "vLLM's name", "rank"):
        text.add_column(column)
    for column in ("predicted", "measured", "error", "% of device"):
        text.add_column(column, justify="right")
    for row in comparison.rows:
        if row.predicted is None and row.measured is None:
            continue
        of_device = ""
        if row.unit == "bytes" and row.error is not None and comparison.cuda_total_bytes:
            of_device = f"{100 * row.error / comparison.cuda_total_bytes:+.2f}"
        text.add_row(
            row.word,
            row.engine_name,
            "" if row.rank is None else str(row.rank),
            _shown(row.predicted, row.unit),
            _shown(row.measured, row.unit),
            _error(row),
            of_device,
        )
    output = StringIO()
    Console(file=output, width=width or 120, force_terminal=False, color_system=None).print(text)
    return output.getvalue()


def _shown(value: int | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if unit != "bytes" else f"{value / 2**30:,.3f} GiB"


def _error(row: Row) -> str:
    if row.error is None:
        return ""
    if row.unit != "bytes":
        return f"{row.error:+,}" if row.relative is None else f"{100 * row.relative:+.2f} %"
    return f"{row.error / 2**30:+.3f} GiB"
