"""On a real GPU with vLLM installed: `pytest -m gpu`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from vllm_capacity.validate import gpu_state
from vllm_capacity.validate.compare import accounting_residual
from vllm_capacity.validate.planning import planner_for
from vllm_capacity.validate.record import Requests, RunRequest, RunStatus
from vllm_capacity.validate.runner import RunnerSettings, run


@pytest.mark.gpu
def test_the_real_engine_is_measured_and_its_accounting_closes_to_the_byte(tmp_path: Path) -> None:
    settings = RunnerSettings(
        python=sys.executable, work=tmp_path, plan=planner_for(None, gpu_state.query_gpus())
    )
    request = RunRequest(
        name="qwen3-0.6b",
        model="Qwen/Qwen3-0.6B",
        requests=Requests(count=4),
        flags={"max_model_len": 4096, "compilation_config": {"cudagraph_capture_sizes": [1, 8]}},
    )
    record = run(request, settings)
    assert record.status is RunStatus.OK, record.error
    assert record.gpu_memory_returned
    assert record.ranks[0].probe_errors == []
    assert accounting_residual(record.ranks[0]) == 0
    assert "after_requests" in record.ranks[0].stages
