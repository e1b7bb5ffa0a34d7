"""What holds of every plan: random catalogue models, flags, releases and GPUs (the same examples every run)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st
from rich.console import Console
from shown_numbers import NUMBER, only_in_text, spellings, values_in, without_texts_of
from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.calibration import load_calibration
from vllm_capacity.device import Device
from vllm_capacity.errors import CapacityError
from vllm_capacity.inputs.catalogue import entries, find_entry, load_entry
from vllm_capacity.inputs.command_line import emit_command_line, parse_command_line
from vllm_capacity.inputs.engine_args import parse_engine_args
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.planner import make_plan
from vllm_capacity.releases import get_release, supported_releases
from vllm_capacity.releases.release import Release
from vllm_capacity.report.compare_schema import compare_schema
from vllm_capacity.report.compare_text import compared, comparison_to_dict, print_comparison
from vllm_capacity.report.json_report import plan_to_dict
from vllm_capacity.report.text import print_plan
from vllm_capacity.units import GIB
from vllm_capacity.weights.totals import parameter_total

CHEAP = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # a failing example is told as it is: making it smaller takes minutes
)  # fmt: skip
MANY = settings(CHEAP, max_examples=300)
GPUS = ("H200-141GB", "H100-80GB", "A100-80GB", "L4", "B200", "RTX-4090")


@cache
def models() -> tuple[str, ...]:
    """Up to three catalogue models per architecture: the smallest, the largest, one between."""
    by_architecture: dict[str, list[tuple[int, str]]] = {}
    for entry in entries():
        size = entry.facts.get("parameters")
        by_architecture.setdefault(str(entry.config.get("architectures")), []).append(
            (size if isinstance(size, int) else 0, entry.model_id)
        )
    return tuple(
        dict.fromkeys(
            sizes[at][1] for sizes in map(sorted, by_architecture.values()) for at in (0, len(sizes) // 2, -1)
        )
    )


@cache
def config_of(model: str) -> ModelConfig:
    entry = find_entry(model)
    assert entry is not None
    return load_entry(entry)


def gpu(name: str) -> Device:
    return find_device(name)


layouts = st.fixed_dictionaries(
    {},
    optional={
        "tensor_parallel_size": st.sampled_from((1, 2, 4, 8)),
        "pipeline_parallel_size": st.sampled_from((1, 2, 3, 4)),
        "data_parallel_size": st.sampled_from((1, 2, 4)),
        "enable_expert_parallel": st.booleans(),
        "decode_context_parallel_size": st.sampled_from((1, 2)),
    },
)
engine_flags = st.fixed_dictionaries(
    {},
    optional={
        "max_model_len": st.sampled_from((1024, 4096, 32768, -1)),
        "gpu_memory_utilization": st.sampled_from((0.5, 0.85, 0.95)),
        "max_num_batched_tokens": st.sampled_from((2048, 8192, 16384)),
        "max_num_seqs": st.sampled_from((1, 64, 256)),
        "kv_cache_dtype": st.sampled_from(("auto", "fp8")),
        "enforce_eager": st.booleans(),
        "enable_prefix_caching": st.booleans(),
        "enable_chunked_prefill": st.booleans(),
        "block_size": st.sampled_from((16, 32, 64)),
        "kv_cache_memory_bytes": st.sampled_from((2 * GIB, 10 * GIB)),
        "num_gpu_blocks_override": st.sampled_from((128, 4096)),
        "disable_hybrid_kv_cache_manager": st.booleans(),
        "async_scheduling": st.booleans(),
        "max_cudagraph_capture_size": st.sampled_from((8, 512)),
        "compilation_config": st.sampled_from(({"cudagraph_mode": "PIECEWISE"}, {"mode": 0})),
        "environment": st.sampled_from(({"NCCL_NVLS_ENABLE": "0"}, {"VLLM_USE_V2_MODEL_RUNNER": "0"})),
        "enable_lora": st.booleans(),
    },
)
cases = st.fixed_dictionaries(
    {
        "model": st.deferred(lambda: st.sampled_from(models())),
        "version": st.sampled_from(supported_releases()),
        "gpu": st.sampled_from(GPUS),
        "layout": layouts,
        "flags": engine_flags,
    }
)


def planned(
    case: Mapping[str, Any], device: Device, release: Release, **more: Any
) -> Plan | RefusedPlan | None:
    """The plan of a case; None where it is bad input (a flag that the release has not, say)."""
    flags = {**case["flags"], **case["layout"], **more}
    try:
        args = parse_engine_args(flags, release=release)
        return make_plan(config_of(case["model"]), args, device, release, release_source="test", suggestions=False,
                         calibration=load_calibration("none"))  # fmt: skip
    except CapacityError as error:
        note(str(error))
        return None


# -- memory -------------------------------------------------------------------------------------------------------


@MANY
@given(case=cases, parts=st.lists(st.integers(40, 400), min_size=2, max_size=4).map(sorted))
def test_more_memory_never_gives_fewer_tokens(case: dict[str, Any], parts: list[int]) -> None:
    """Tokens per batch and sequences fixed: vLLM's defaults for those grow with the device and would take memory."""
    release, real = get_release(case["version"]), gpu(case["gpu"])
    tokens = starts = 0
    for percent in parts:
        total = real.cuda_total_bytes * percent // 100
        excess = real.nvml_total_bytes - real.cuda_total_bytes
        device = replace(real, cuda_total_bytes=total, nvml_total_bytes=total + excess)
        flags = {"max_num_batched_tokens": 4096, "max_num_seqs": 64}
        found = planned({**case, "flags": {**case["flags"], **flags}}, device, release)
        assume(found is not None)
        now = found.kv_cache.size_tokens if isinstance(found, Plan) else 0
        assert now >= tokens, (percent, parts)
        tokens = now
        begins = isinstance(found, Plan) and found.kv_cache.refusal is None
        assert begins or not starts, "what starts on less starts on more"
        starts = begins


# -- parameters ---------------------------------------------------------------------------------------------------


@MANY
@given(case=cases, others=st.lists(layouts, min_size=2, max_size=4))
def test_the_parameter_total_never_depends_on_the_layout(
    case: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    release = get_release(case["version"])
    totals = set()
    for layout in (case["layout"], *others):
        found = planned({**case, "layout": layout, "flags": {}}, gpu("H200-141GB"), release)
        if isinstance(found, Plan):
            totals.add(found.parameters)
            assert parameter_total(found.architecture) == found.parameters
    assume(totals)
    assert len(totals) == 1


# -- reports ------------------------------------------------------------------------------------------------------


def sums_of(rank: Mapping[str, Any], total: int, used_by_others: int) -> Iterator[int]:
    """What the ledger adds up from JSON's terms: a component's bytes inside and outside of the budget, and what is left."""
    shown = [t for t in rank["terms"] if t["lifetime"] != "runtime" and t["allocator"] != "host"]
    for component in {t["component"] for t in shown}:
        for outside in (True, False):
            part = [
                t for t in shown
                if t["component"] == component and (t["account"] in ("outside", "cuda_graphs")) == outside
            ]  # fmt: skip
            yield from (sum(t[key] for t in part) for key in ("bytes", "low_bytes", "high_bytes"))
    yield total - rank["device_used_bytes"] - used_by_others


@CHEAP
@given(case=cases, concurrency=st.none() | st.integers(1, 100))
def test_text_shows_no_number_that_json_has_not(case: dict[str, Any], concurrency: int | None) -> None:
    release = get_release(case["version"])
    try:
        args = parse_engine_args({**case["flags"], **case["layout"]}, release=release)
        found = make_plan(config_of(case["model"]), args, gpu(case["gpu"]), release, release_source="test",
                          concurrency=concurrency, calibration=load_calibration("none"))  # fmt: skip
    except CapacityError:
        assume(False)
    assume(isinstance(found, Plan))
    assert isinstance(found, Plan)
    data = json.loads(json.dumps(plan_to_dict(found)))
    text = io.StringIO()
    print_plan(found, Console(file=text, width=100_000, highlight=False, emoji=False))
    shown = text.getvalue()
    more = {
        s
        for rank in data["ranks"]
        for n in sums_of(rank, data["gpu"]["cuda_total_bytes"], 0)
        for s in spellings(n)
    }
    more |= {str(rank["pp_rank"]) for rank in data["ranks"]}
    more |= {"0", "0 B", f"{data['engine']['gpu_memory_utilization']:g}"}
    more |= {str(n) for n in range(len(data["ranks"]) + 1)}  # how many ranks share a ledger
    assert len(NUMBER.findall(without_texts_of(data, shown))) > 30
    assert only_in_text(shown, data, more) == []


@CHEAP
@given(left=cases, right=cases)
def test_compare_shows_no_number_that_its_json_has_not(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Any two plans, of different models too; the JSON holds to its schema and its differences add up."""
    found = [planned(case, gpu(case["gpu"]), get_release(case["version"])) for case in (left, right)]
    a, b = found
    assume(a is not None and b is not None)
    assert a is not None
    assert b is not None
    rows = compared(a, b)
    data = json.loads(json.dumps(comparison_to_dict(("left", "right"), rows)))
    jsonschema.validate(data, compare_schema())
    text = io.StringIO()
    print_comparison(
        (a, b), ("left", "right"), rows, Console(file=text, width=100_000, highlight=False, emoji=False)
    )
    differences = (row["difference"] for row in data["rows"] if isinstance(row["difference"], float))
    more = {f"{n:+,.2f}" for n in differences} | {
        f"{n:,.2f}" for n in values_in(data) if isinstance(n, float)
    }
    more |= {f"{n:,}" for n in values_in(data) if isinstance(n, float)}
    sentences = [plan.verdict.message for plan in (a, b)]  # printed below the table
    assert only_in_text(text.getvalue(), [data, sentences], more) == []
    for side, plan in (("a", a), ("b", b)):
        if isinstance(plan, Plan):
            assert {row["name"]: row[side] for row in data["rows"]}.items() >= flat(
                plan_to_dict(plan)
            ).items()


def flat(plan: dict[str, Any]) -> dict[str, Any]:
    """Figures of `plan --json` under the names that rows of a comparison have."""
    rank = min(plan["ranks"], key=lambda rank: rank["num_blocks_own"])
    keys = ("requested_bytes", "weights_bytes", "activation_peak_bytes", "non_torch_bytes", "runner_buffers_bytes",
            "graph_applied_bytes", "available_kv_bytes", "device_used_bytes")  # fmt: skip
    return {
        **{key: rank[key] for key in keys},
        "cuda_total_bytes": plan["gpu"]["cuda_total_bytes"],
        "kv_cache_size_tokens": plan["kv_cache"]["size_tokens"],
        "max_concurrency": plan["kv_cache"]["max_concurrency"],
        "max_model_len_that_fits": plan["verdict"]["max_model_len_that_fits"],
        "status": plan["verdict"]["status"],
        "model_runner": plan["engine"]["model_runner"],
        "gpu": plan["gpu"]["name"],
    }


def test_the_number_check_can_fail() -> None:
    """A figure of the report that JSON lacks is found."""
    assert set(NUMBER.findall("KV cache 1,234 tokens, 3.53x, +17.09 GiB, (35.60 GiB to 37.80 GiB)")) == {
        "1,234", "3.53", "+17.09", "35.60", "37.80",
    }  # fmt: skip
    assert "1,235" not in set(spellings(1234))


# -- the emitted line ---------------------------------------------------------------------------------------------


@MANY
@given(case=cases)
def test_the_plan_of_the_emitted_line_is_the_plan_it_came_from(case: dict[str, Any]) -> None:
    release = get_release(case["version"])
    try:
        args = parse_engine_args({**case["flags"], **case["layout"]}, release=release)
    except CapacityError:
        assume(False)
    line = emit_command_line(case["model"], args, release)
    read = parse_command_line(line, release=release)
    assert read.model == case["model"]
    answers = []
    for these in (args, read.args):
        try:
            answers.append(
                plan_to_dict(
                    make_plan(config_of(case["model"]), these, gpu(case["gpu"]), release, release_source="test",
                              suggestions=False, calibration=load_calibration("none"))
                )
            )  # fmt: skip
        except CapacityError as error:
            answers.append({"error": str(error)})
    assert answers[0] == answers[1], line


@pytest.mark.parametrize("name", GPUS)
def test_the_gpus_of_these_tests_are_in_the_catalogue(name: str) -> None:
    assert find_device(name).name == name
