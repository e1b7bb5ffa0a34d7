"""`--allow-unmodelled` widens the interval by what it lets through, and names it."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_capacity import plan
from vllm_capacity.answer import Plan, Status
from vllm_capacity.errors import InputError
from vllm_capacity.overheads.unmodelled import ALLOWANCE
from vllm_capacity.units import GIB

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def planned(**flags: Any) -> Plan:
    found = plan(LLAMA, gpu="H200", vllm_version="0.26.0", suggestions=False, **flags)
    assert isinstance(found, Plan)
    return found


LEFT_OUT = {
    "worker_cls": "my.Worker",
    "compilation_config": {"backend": "eager"},
    "environment": {"VLLM_USE_OINK_OPS": "1"},
}


def test_what_is_let_through_is_named_and_widens_the_interval_on_both_sides():
    known, unknown = planned(), planned(allow_unmodelled=True, **LEFT_OUT)
    (term,) = [t for t in unknown.ranks[0].terms if t.name == "unmodelled"]
    assert (term.n_bytes, term.low, term.high) == (0, -3 * ALLOWANCE, 3 * ALLOWANCE)
    names = "--worker-cls, --compilation-config.backend, VLLM_USE_OINK_OPS"
    assert names in term.note
    assert any(names in warning for warning in unknown.warnings)
    sure, unsure = known.ranks[0].budget, unknown.ranks[0].budget
    assert unsure.available_kv_bytes == sure.available_kv_bytes
    assert sure.available_kv_low_bytes - unsure.available_kv_low_bytes == 3 * GIB
    assert unsure.available_kv_high_bytes - sure.available_kv_high_bytes == 3 * GIB


@pytest.mark.parametrize("name", LEFT_OUT)
def test_each_is_refused_without_leave(name):
    with pytest.raises(InputError, match="--allow-unmodelled"):
        planned(**{name: LEFT_OUT[name]})


def test_leave_alone_changes_nothing():
    allowed = planned(allow_unmodelled=True)
    assert not [t for t in allowed.ranks[0].terms if t.name == "unmodelled"]
    assert allowed.ranks[0].budget.available_kv_low_bytes == planned().ranks[0].budget.available_kv_low_bytes


def test_a_verdict_that_hangs_on_what_is_not_known_is_too_close():
    """The least utilisation that surely holds one request of 131,072 tokens, and a GiB that is not known."""
    for thousandths in range(200, 400, 2):
        flags: dict[str, Any] = {"max_model_len": 131072, "gpu_memory_utilization": thousandths / 1000}
        if planned(**flags).verdict.status is Status.STARTS:
            break
    assert thousandths < 398
    assert planned(**flags, worker_cls="my.Worker", allow_unmodelled=True).verdict.status is Status.TOO_CLOSE
