"""A log as a validation record: what a run without the probe still tells (`validate/record.py` has the
schema)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_capacity._version import __version__
from vllm_capacity.diagnosis.causes import Diagnosis
from vllm_capacity.diagnosis.rebuild import Rebuilt
from vllm_capacity.logs.arguments import as_flag_values
from vllm_capacity.logs.failures import FailureKind
from vllm_capacity.logs.record import Figures
from vllm_capacity.units import GIB

if TYPE_CHECKING:
    from vllm_capacity.validate.record import RankRecord, RunRecord

_NO_FLAGS = frozenset(
    {"model", "model_tag", "host", "port", "api_key", "served_model_name", "allowed_origins", "ssl_keyfile"}
)


def run_record(diagnosis: Diagnosis, rebuilt: Rebuilt | None) -> RunRecord:
    """The record of a log's last start. GiB of two digits become bytes: good to 5 MiB, which `origin`
    says."""
    from vllm_capacity.validate.logs import anonymous, memory_lines
    from vllm_capacity.validate.record import Printed, RunRecord, RunRequest

    start = diagnosis.start
    finding = diagnosis.finding
    flags: dict[str, Any] = {k: v for k, v in as_flag_values(start.non_default).items() if k not in _NO_FLAGS}
    if rebuilt is not None:
        flags.setdefault("gpu_memory_utilization", rebuilt.plan.engine.gpu_memory_utilization)
        flags.setdefault("max_model_len", rebuilt.plan.engine.max_model_len)
    record = RunRecord(
        tool_version=__version__,
        request=RunRequest(
            name=f"log-{(start.model or 'unknown').rsplit('/', 1)[-1]}",
            model=start.model or "",
            flags=flags,
            usage=rebuilt.args.usage if rebuilt is not None else "server",
            load_format=str(flags.get("load_format", "auto")),
        ),
        status=_status(diagnosis),
        reason=finding.cause.value if finding is not None else None,
        error=None
        if finding is None
        else {
            "phase": finding.phase.value,
            "type": finding.cause.value,
            "message": anonymous(finding.evidence[0].text),
        },
        phase=start.phase.value,
        versions={"vllm": start.version},
        engine={"model": start.model, **flags},
        printed=Printed(
            kv_cache_size_tokens=start.count("kv_cache_size_tokens"),
            max_concurrency=start.smallest("max_concurrency"),
            available_kv_gib=start.smallest("available_kv_gib"),
        ),
        ranks=[
            _rank(index, figures)
            for index, figures in enumerate(
                f for f in start.processes.values() if f.weights_gib or f.available_kv_gib
            )
        ],
        log=memory_lines(
            start.evidence[name].text for name in sorted(start.evidence, key=lambda n: start.evidence[n].line)
        ),
        origin=f"a log read by `vllm-capacity explain` {__version__}; figures printed in GiB with two digits",
    )
    if rebuilt is not None:
        from vllm_capacity.report.json_report import plan_to_dict

        record.plan = plan_to_dict(rebuilt.plan)
    return record


def _status(diagnosis: Diagnosis) -> Any:
    from vllm_capacity.validate.record import RunStatus

    kinds = {failure.kind for failure in diagnosis.start.failures}
    if diagnosis.came_up or (diagnosis.finding is None and diagnosis.start.count("kv_cache_size_tokens")):
        return RunStatus.OK
    if FailureKind.REFUSAL in kinds:
        return RunStatus.REFUSED
    return RunStatus.OOM if FailureKind.OUT_OF_MEMORY in kinds else RunStatus.FAILED


def _rank(index: int, figures: Figures) -> RankRecord:
    from vllm_capacity.validate.record import Profiling, RankRecord

    requested, available = _bytes(figures.requested_gib), _bytes(figures.available_kv_gib)
    weights = figures.weights_gib if figures.weights_gib is not None else figures.profiled_weights_gib
    profiling = None
    if requested is not None and available is not None:
        result = {
            "non_kv_cache_memory": _bytes(figures.total_non_kv_gib),
            "torch_peak_increase": _bytes(figures.activation_peak_gib),
            "non_torch_increase": _bytes(figures.non_torch_gib),
            "total_consumed": _bytes(figures.consumed_gib),
            "weights_memory": _bytes(figures.profiled_weights_gib),
        }
        known = {name: value for name, value in result.items() if value is not None}
        estimate = _bytes(figures.graph_estimate_gib) or 0
        profiling = Profiling(
            requested_memory=requested,
            graph_estimate=estimate,
            graph_applied=estimate if figures.equivalent_gpu_memory_utilization is not None else 0,
            available_kv_cache_memory_bytes=available,
            returned=available,
            result=known or None,
        )
    graphs = figures.graph_actual_gib if figures.graph_actual_gib is not None else figures.graph_capture_gib
    return RankRecord(
        rank=index,
        model_runner=figures.model_runner,
        requested_memory=requested,
        model_memory_usage=_bytes(weights),
        profiling=profiling,
        graph_actual=_bytes(graphs),
    )


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else round(gib * GIB)
