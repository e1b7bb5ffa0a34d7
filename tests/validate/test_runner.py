from __future__ import annotations

import dataclasses
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.errors import InputError
from vllm_capacity.validate.compare import accounting_residual
from vllm_capacity.validate.logs import printed
from vllm_capacity.validate.processes import members
from vllm_capacity.validate.record import RunRequest, RunStatus
from vllm_capacity.validate.runner import (
    RunnerSettings,
    draft_location,
    engine_arguments,
    model_location,
    recorded_environment,
    run,
)

MakeRequest = Callable[..., RunRequest]


def test_a_run_records_what_the_workers_measured(
    make_request: MakeRequest, settings: RunnerSettings, answers: dict[str, Any]
) -> None:
    record = run(make_request(), settings)
    assert record.status is RunStatus.OK, (record.error, record.log)
    expected = answers["llama31-8b-t2048"]["ranks"][0]
    rank = record.ranks[0]
    assert rank.probe_errors == []
    assert rank.absent == []
    assert rank.requested_memory == expected["requested"] == 138_101_089_895
    assert rank.model_memory_usage == expected["model_memory_usage"]
    assert rank.profiling is not None
    assert rank.profiling.result is not None
    assert rank.profiling.result["torch_peak_increase"] == 1_084_246_016
    assert rank.profiling.result["non_torch_increase"] == 241_172_480
    assert rank.profiling.available_kv_cache_memory_bytes == expected["available_kv"] == 120_664_751_207
    assert rank.kv_cache is not None
    assert rank.kv_cache["num_blocks"] == 57_537
    assert rank.model_runner == "V2"
    assert record.printed.kv_cache_size_tokens == 57_537 * 16
    assert record.requests_done is not None
    assert record.requests_done["generated"] == 6
    assert {
        "context",
        "baseline",
        "runner_init",
        "load_peak",
        "load",
        "profile_peak",
        "kv_allocated",
        "after_capture",
        "started",
        "ready",
        "after_requests",
    } <= set(rank.stages)
    for stage in ("context", "runner_init", "profile_peak", "kv_allocated"):
        assert rank.stages[stage]["free_memory"] == expected["stages"][stage]["free_memory"]


def test_requested_minus_what_was_subtracted_is_the_kv_cache_to_the_byte(
    make_request: MakeRequest, settings: RunnerSettings
) -> None:
    record = run(make_request(answer="llama31-70b-tp2", flags={"tensor_parallel_size": 2}), settings)
    assert [rank.rank for rank in record.ranks] == [0, 1]
    assert [accounting_residual(rank) for rank in record.ranks] == [0, 0]


@pytest.mark.parametrize(
    "stage",
    [
        "init_device",
        "load_model",
        "profile_run",
        "kv_planning",
        "initialize_from_config",
        "capture_model",
        "sampler_warmup",
        "requests",
    ],
)
@pytest.mark.parametrize("how", ["kill", "exit", "raise:something broke"])
def test_a_run_that_dies_is_still_a_record(
    make_request: MakeRequest, settings: RunnerSettings, stage: str, how: str
) -> None:
    record = run(make_request(die=f"{stage}:{how}"), settings)
    assert record.status is RunStatus.FAILED
    assert record.error is not None
    if how.startswith("raise"):
        assert "something broke" in record.error["message"]
    else:
        assert record.error["type"] == "Died"
    assert ("baseline" in record.ranks[0].stages) == (stage != "init_device")
    assert ("started" in record.ranks[0].stages) == (stage == "requests")


@pytest.mark.parametrize(
    ("die", "status", "reason"),
    [
        (
            "request_memory:raise:Free memory on device cuda:0 (70.0/79.19 GiB) on startup is less "
            "than desired GPU memory utilization (0.92, 72.85 GiB). Decrease it or reduce GPU memory "
            "used by other processes.",
            RunStatus.REFUSED,
            "free_below_requested",
        ),
        (
            "kv_planning:raise:No available memory for the cache blocks. Try increasing it",
            RunStatus.REFUSED,
            "no_kv_memory",
        ),
        (
            "kv_planning:raise:To serve at least one request with the model's max seq len (131072), 16.0 GiB "
            "KV cache is needed",
            RunStatus.REFUSED,
            "one_request_does_not_fit",
        ),
        ("load_model:raise:CUDA out of memory. Tried to allocate 896.00 MiB.", RunStatus.OOM, "load_peak"),
        ("capture_model:raise:CUDA error: out of memory", RunStatus.OOM, "graph_capture"),
        (
            "sampler_warmup:raise:CUDA out of memory occurred when warming up sampler with 1024 requests.",
            RunStatus.OOM,
            "sampler_warmup",
        ),
    ],
)
def test_refusals_and_oom_are_told_from_failures(
    make_request: MakeRequest, settings: RunnerSettings, die: str, status: RunStatus, reason: str
) -> None:
    record = run(make_request(die=die), settings)
    assert (record.status, record.reason) == (status, reason)


def test_a_hanging_engine_is_killed_with_its_children_at_its_limit(
    make_request: MakeRequest, settings: RunnerSettings
) -> None:
    begin = time.monotonic()
    record = run(make_request(die="load_model:hang", limit_s=3.0), settings)
    assert record.status is RunStatus.TIMEOUT
    assert record.error is not None
    assert time.monotonic() - begin < 15
    assert record.durations["killed"] == 2
    assert "baseline" in record.ranks[0].stages


def test_processes_that_an_engine_leaves_behind_are_ended(
    make_request: MakeRequest, settings: RunnerSettings
) -> None:
    record = run(make_request(die="requests:orphan"), settings)
    assert record.status is RunStatus.OK
    assert record.durations["killed"] == 1


def test_only_the_engines_session_is_looked_at() -> None:
    assert os.getpid() not in members(1 << 22)
    assert os.getpid() in members(os.getsid(0))


def test_an_environment_without_vllm_says_so(settings: RunnerSettings, make_request: MakeRequest) -> None:
    record = run(make_request(env={"PYTHONPATH": str(Path(os.environ["PYTHONPATH"]).parent)}), settings)
    assert record.status is RunStatus.FAILED


def test_memory_that_does_not_come_back_is_noticed(
    make_request: MakeRequest, settings: RunnerSettings, tmp_path: Path
) -> None:
    """nvidia-smi stands in here as a script that reports more memory in use after the run."""
    script = tmp_path / "nvidia-smi"
    script.write_text(
        f"#!/bin/sh\nif [ -e {tmp_path}/seen ]; then used=90000; else used=4; touch {tmp_path}/seen; fi\n"
        'echo "0, NVIDIA H200, 143771, $used, 580.159.04"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    watched = dataclasses.replace(settings, nvidia_smi=str(script), gpu_return_s=1.0)
    record = run(make_request(), watched)
    assert record.status is RunStatus.OK
    assert record.gpu_memory_returned is False
    assert record.gpus[0].used_after_bytes == 90000 << 20
    assert record.versions["driver"] == "580.159.04"


def test_nothing_in_a_record_identifies_the_machine(
    make_request: MakeRequest, settings: RunnerSettings, tmp_path: Path
) -> None:
    import socket

    text = run(make_request(die="load_model:raise:broke in /usr/lib/x/y.py at 10.1.2.3:5000"), settings)
    dumped = text.model_copy(
        update={"request": text.request.model_copy(update={"env": {}})}
    ).model_dump_json()
    assert str(tmp_path) not in dumped
    assert "/usr/lib" not in dumped
    assert "10.1.2.3" not in dumped
    assert len(socket.gethostname()) <= 2 or socket.gethostname() not in dumped


def test_server_defaults_are_passed_explicitly_and_never_guessed(make_request: MakeRequest) -> None:
    request = make_request().model_copy(update={"flags": {"max_num_seqs": 8}})
    plan = {"engine": {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}}
    arguments = engine_arguments(request, "m", plan)
    assert (arguments["max_num_batched_tokens"], arguments["max_num_seqs"]) == (8192, 8)
    offline = engine_arguments(request.model_copy(update={"usage": "offline"}), "m", plan)
    assert "max_num_batched_tokens" not in offline
    with pytest.raises(InputError, match="max-num-batched-tokens"):
        engine_arguments(request, "m", None)


def test_the_attention_backend_is_passed_as_vllm_takes_it(make_request: MakeRequest) -> None:
    request = make_request(flags={"attention_backend": "FLASHINFER"})
    arguments = engine_arguments(request, "m", None)
    assert arguments["attention_config"] == {"backend": "FLASHINFER"}
    assert "attention_backend" not in arguments


def test_the_recorded_environment_holds_no_paths() -> None:
    kept = recorded_environment(
        {
            "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
            "NCCL_NVLS_ENABLE": "0",
            "VLLM_CACHE_ROOT": "/somewhere",
            "HOME": "/root",
            "VLLM_API_KEY": "secret",
            "VLLM_CONFIG_ROOT": "relative",
            "NCCL_TOPO_X": "a/b",
        }
    )
    assert kept == {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "NCCL_NVLS_ENABLE": "0"}


def test_one_model_lies_in_one_folder_so_that_a_second_start_can_be_warm(
    make_request: Callable[..., RunRequest], settings: RunnerSettings
) -> None:
    """vLLM's compile cache is keyed by the model's path among others (ModelConfig.compute_hash)."""
    request = make_request()
    first = model_location(request, settings.work)
    assert model_location(request, settings.work) == first
    fewer = request.model_copy(update={"config_changes": {"num_hidden_layers": 2}})
    assert model_location(fewer, settings.work) != first
    assert json.loads((Path(first) / "config.json").read_text())["architectures"]


def test_a_draft_model_lies_in_a_folder_too_and_is_recorded_by_its_name(
    make_request: Callable[..., RunRequest], settings: RunnerSettings, tmp_path: Path
) -> None:
    """With dummy weights nothing is downloaded, so the engine must find the draft's config as it finds the model's."""
    config = tmp_path / "drafts" / "eagle3" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}')
    request = make_request(
        flags={
            "speculative_config": {"method": "eagle3", "model": str(config), "num_speculative_tokens": 3},
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 64,
        }
    )
    draft = draft_location(request, settings.work)
    assert draft is not None
    assert json.loads((Path(draft) / "config.json").read_text())["num_hidden_layers"] == 1
    engine = engine_arguments(request, "m", None, draft)["speculative_config"]
    assert engine == {"method": "eagle3", "model": draft, "num_speculative_tokens": 3}
    assert run(request, settings).request.flags["speculative_config"]["model"] == "eagle3"

    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    assert draft_location(make_request(flags={"speculative_config": ngram}), settings.work) is None
    real = request.model_copy(update={"load_format": "auto"})
    assert draft_location(real, settings.work) is None


@pytest.mark.parametrize(
    ("line", "hit"),
    [
        ("Directly load AOT compilation from path .../model", True),
        ("Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 0.8 s", True),
        ("Cache the graph of compile range (1, 8192) for later use", False),
        ("GPU KV cache size: 919,824 tokens", None),
    ],
)
def test_whether_compiled_code_was_loaded_is_read_off_the_log(line: str, hit: bool | None) -> None:
    """compilation/backends.py and decorators.py, 0.26.0; the third line is from every log of the first session."""
    assert printed([line]).compile_cache_hit is hit
