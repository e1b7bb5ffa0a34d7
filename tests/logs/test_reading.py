"""Reading any bytes: prefixes, progress bars, compression, several starts, junk; constant memory."""

from __future__ import annotations

import gzip
import io
import random
import tracemalloc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm_capacity.diagnosis import diagnose
from vllm_capacity.diagnosis.rebuild import Given
from vllm_capacity.logs import read_lines, read_log
from vllm_capacity.logs.arguments import parse_engine_config, parse_non_default
from vllm_capacity.logs.failures import Phase
from vllm_capacity.logs.lines import clean, clean_lines
from vllm_capacity.logs.reader import KEPT_FAILURES, KEPT_PROCESSES, KEPT_STARTS

SCENARIOS = Path(__file__).parents[1] / "data" / "logs" / "scenarios"
AVAILABLE = "Available KV cache memory: 61.66 GiB"


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "INFO 04-22 10:11:12 [gpu_worker.py:440] ",
        "INFO 2026-04-22 10:11:12 [v1/worker/gpu_worker.py:440] ",
        "(Worker_TP0 pid=1234) INFO 04-22 10:11:12 [gpu_worker.py:440] ",
        "(Worker_PP1_TP3 pid=1234) INFO 04-22 10:11:12 [gpu_worker.py:440] ",
        "(EngineCore_DP3 pid=1234) INFO 04-22 10:11:12 [gpu_worker.py:440] ",
        "(VllmWorker rank=0 pid=1234) INFO 04-22 10:11:12 [gpu_worker.py:440] ",
        "(RayWorkerWrapper pid=1234, ip=10.0.0.2) INFO 04-22 10:11:12 [gpu_worker.py:440] ",
        "\x1b[0;36m(EngineCore pid=9)\x1b[0;0m \x1b[32mINFO\x1b[0m 04-22 10:11:12 "
        "[\x1b[90mgpu_worker.py\x1b[0m:440] ",
        "[pod/vllm-0/server] (EngineCore pid=9) INFO 04-22 10:11:12 [gpu_worker.py:440] ",
        "2026-04-22T10:11:12.123456789Z (EngineCore pid=9) INFO 04-22 10:11:12 [gpu_worker.py:440] ",
        "2026-04-22T10:11:12.123456789Z stderr F (EngineCore pid=9) INFO 04-22 10:11:12 [gpu_worker.py:440] ",
        "vllm-1  | (EngineCore pid=9) INFO 04-22 10:11:12 [gpu_worker.py:440] ",
        "Apr 22 10:11:12 host vllm[99]: (EngineCore pid=9) INFO 04-22 10:11:12 [gpu_worker.py:440] ",
    ],
)
def test_prefixes_are_taken_off(prefix: str) -> None:
    line = clean(1, prefix + AVAILABLE)
    assert line.text == AVAILABLE
    start = read_lines([prefix + AVAILABLE]).last
    assert start is not None
    assert start.smallest("available_kv_gib") == 61.66
    assert start.evidence["available_kv_gib"].text == AVAILABLE


def test_processes_are_kept_apart() -> None:
    start = read_lines(
        [
            f"(Worker_TP{rank} pid={rank + 5}) Available KV cache memory: {60 + rank}.5 GiB"
            for rank in range(4)
        ]
    ).last
    assert start is not None
    assert start.processes.keys() == {f"Worker_TP{rank}" for rank in range(4)}
    assert (start.smallest("available_kv_gib"), start.largest("available_kv_gib")) == (60.5, 63.5)


def test_tracebacks_of_interleaved_ranks_are_kept_apart() -> None:
    frames = {0: "capture_model", 1: "load_model"}
    lines = [f"(Worker_TP{rank} pid={rank}) Traceback (most recent call last):" for rank in frames]
    lines += [
        f'(Worker_TP{rank} pid={rank})   File "a.py", line 1, in {name}' for rank, name in frames.items()
    ]
    lines += [
        f"(Worker_TP{rank} pid={rank}) torch.OutOfMemoryError: CUDA out of memory. Tried to "
        f"allocate {rank + 2}.00 MiB"
        for rank in frames
    ]
    start = read_lines(lines).last
    assert start is not None
    assert {failure.phase for failure in start.failures} == {Phase.GRAPH_CAPTURE, Phase.LOAD}


def test_progress_bars_with_carriage_returns() -> None:
    bar = "".join(
        f"\rCapturing CUDA graphs (FULL):  {n}%|##  | {n}/35 [00:01<00:02]" for n in range(0, 21, 5)
    )
    start = read_log(
        io.BytesIO((AVAILABLE + "\n" + bar + "\nCUDA out of memory. Tried to allocate 2.00 MiB\n").encode())
    ).last
    assert start is not None
    assert start.text("graph_progress") == "20/35"
    assert start.failures[0].phase is Phase.GRAPH_CAPTURE


def test_gzip_is_recognised_by_its_first_bytes_and_may_break_off() -> None:
    text = (AVAILABLE + "\n") * 2 + "".join(f"line {random.random()}\n" for _ in range(5000))
    packed = gzip.compress(text.encode())
    for data in (packed, packed[: len(packed) // 2]):
        start = read_log(io.BytesIO(data)).last
        assert start is not None
        assert start.smallest("available_kv_gib") == 61.66


def test_arguments_with_objects_in_them() -> None:
    text = (
        "non-default args: {'model_tag': 'a/b', 'api_key': ['secret'], 'tensor_parallel_size': 4, "
        "'hf_overrides': {'rope': {'x': 1}}, "
        "'compilation_config': CompilationConfig(mode=<CompilationMode.NONE: 0>, sizes=[1, 2]), "
        "'limit_mm_per_prompt': {'image': 2, 'video': 0}}"
    )
    values = parse_non_default(text)
    assert values["tensor_parallel_size"] == 4
    assert values["hf_overrides"] == {"rope": {"x": 1}}
    assert values["limit_mm_per_prompt"] == {"image": 2, "video": 0}
    assert "api_key" not in values


def test_engine_config_line() -> None:
    text = (
        "Initializing a V1 LLM engine (v0.26.0) with config: model='a/b', speculative_config=None, "
        "dtype=torch.bfloat16, max_seq_len=4096, "
        "tensor_parallel_size=2, compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, "
        "'cudagraph_capture_sizes': [1, 2, 4]}, "
        "pooler_config=None"
    )
    config = parse_engine_config(text)
    assert config["model"] == "a/b"
    assert config["max_seq_len"] == 4096
    assert config["dtype"] == "torch.bfloat16"
    assert config["compilation_config"] == {"mode": "VLLM_COMPILE", "cudagraph_capture_sizes": [1, 2, 4]}
    start = read_lines([text]).last
    assert start is not None
    assert (start.version, start.model) == ("0.26.0", "a/b")


def test_engines_of_data_parallel_ranks_are_one_start() -> None:
    line = "Initializing a V1 LLM engine (v0.26.0) with config: model='a/b', dtype=torch.bfloat16"
    record = read_lines([f"(EngineCore_DP{rank} pid={40 + rank}) {line}" for rank in range(8)])
    assert record.start_count == 1
    assert len(record.starts[0].engines) == 8


def test_a_restarted_engine_is_a_new_start() -> None:
    line = "Initializing a V1 LLM engine (v0.26.0) with config: model='a/b', dtype=torch.bfloat16"
    assert read_lines([f"(EngineCore pid={pid}) {line}" for pid in (40, 77, 91)]).start_count == 3


# -- size
# ------------------------------------------------------------------------------------------------------------


class Endless(io.RawIOBase):
    """A stream made while it is read, so that the test itself holds no log."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        while not self._rest:
            piece = next(self._pieces, b"")
            if not piece:
                return 0
            self._rest = piece
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def pieces(n_bytes: int) -> Iterator[bytes]:
    head = (
        b"(EngineCore pid=1) INFO 04-22 10:00:00 [core.py:1] Initializing a V1 LLM engine (v0.26.0) with "
        b"config: model='a/b'\n"
        b"(EngineCore pid=1) INFO 04-22 10:00:00 [gpu_worker.py:1] Available KV cache memory: 61.66 GiB\n"
    )
    yield head
    block = (
        b'(APIServer pid=1) INFO:     10.0.0.1:5000 - "POST /v1/completions HTTP/1.1" 200 OK\n'
        * 900
        + b"(APIServer pid=1) INFO 04-22 10:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 "
        b"tokens/s, Avg generation throughput: "
        b"1.0 tokens/s, Running: 3 reqs, Waiting: 1 reqs, Preemptions: 1, GPU KV cache usage: 99.9%, Prefix "
        b"cache hit rate: 0.0%\n" + b"CUDA out of memory. Tried to allocate 2.00 MiB\n"
    )
    sent = len(head)
    while sent < n_bytes:
        yield block
        sent += len(block)
    yield b"x" * (1 << 20) * 4 + b"\n"  # one line of 4 MiB
    yield b"Application startup complete.\n"


def test_a_large_log_is_read_in_constant_memory() -> None:
    """Peak memory must not follow the size: 4 MB and 40 MB of log may differ by little."""
    peaks = []
    for size in (4 << 20, 40 << 20):
        tracemalloc.start()
        record = read_log(io.BufferedReader(Endless(pieces(size))))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        start = record.last
        assert start is not None
        assert start.running.preempted > 0
        assert start.text("server_up")
    assert peaks[1] < peaks[0] + (1 << 20)
    assert peaks[1] < 24 << 20


def test_what_is_kept_is_bounded() -> None:
    lines = []
    for n in range(200):
        lines.append(f"(EngineCore pid={n}) Initializing a V1 LLM engine (v0.26.0) with config: model='a/b'")
        lines += [
            f"(Worker_TP{rank} pid={rank}) Available KV cache memory: 1.0 GiB" for rank in range(n % 5 * 100)
        ]
        lines.append(f"ValueError: Model architectures ['A{n}'] are not supported for now")
    record = read_lines(lines)
    assert record.start_count == 200
    assert len(record.starts) <= KEPT_STARTS
    for start in record.starts:
        assert len(start.processes) <= KEPT_PROCESSES
        assert len(start.failures) <= KEPT_FAILURES


# -- junk
# ------------------------------------------------------------------------------------------------------------

LOGS = [path.read_bytes() for path in sorted(SCENARIOS.glob("*.log"))]


def survive(data: bytes) -> None:
    record = read_log(io.BytesIO(data))
    if record.starts:
        diagnosis = diagnose(record, Given(offline=True))
        assert diagnosis.exit_code in (0, 1)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, len(LOGS) - 1), st.floats(0, 1))
def test_a_truncated_log_never_crashes(which: int, share: float) -> None:
    survive(LOGS[which][: int(len(LOGS[which]) * share)])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, len(LOGS) - 1), st.integers(0, len(LOGS) - 1), st.randoms(use_true_random=False))
def test_interleaved_logs_never_crash(first: int, second: int, chance: random.Random) -> None:
    one, two = LOGS[first].splitlines(keepends=True), LOGS[second].splitlines(keepends=True)
    mixed = []
    while one or two:
        source = one if one and (not two or chance.random() < 0.5) else two
        mixed.append(source.pop(0))
    survive(b"".join(mixed))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, len(LOGS) - 1), st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=12)), max_size=20)
)
def test_binary_junk_in_a_log_never_crashes(which: int, junk: list[tuple[float, bytes]]) -> None:
    data = bytearray(LOGS[which])
    for where, piece in junk:
        at = int(where * len(data))
        data[at : at + len(piece)] = piece
    survive(bytes(data))


def test_a_backslash_in_a_path_is_read_without_a_warning_of_the_interpreter() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_non_default(r"{'model': 'C:\models\mine'}") == {"model": r"C:\models\mine"}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=4000))
def test_pure_junk_never_crashes(data: bytes) -> None:
    survive(data)
    survive(b"\x1f\x8b" + data)


_DIGITS = st.text("0123456789.,-eE", max_size=40)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, len(LOGS) - 1),
    st.randoms(use_true_random=False),
    st.lists(_DIGITS, min_size=4, max_size=4),
)
def test_absurd_numbers_never_crash(which: int, chance: random.Random, numbers: list[str]) -> None:
    import re

    text = LOGS[which].decode()
    survive(
        re.sub(
            r"\d+(?:\.\d+)?", lambda m: chance.choice(numbers) if chance.random() < 0.05 else m[0], text
        ).encode()
    )


def test_lines_keep_their_numbers() -> None:
    data = b"a\r\nb\rc\n" + b'{"log": "' + AVAILABLE.encode() + b'\\n"}\n'
    assert [(line.number, line.text) for line in clean_lines(io.BytesIO(data))] == [
        (1, "a"),
        (2, "b"),
        (2, "c"),
        (3, AVAILABLE),
    ]


def test_a_worker_keeps_its_figures_when_it_learns_its_rank() -> None:
    start = read_lines(
        [
            "(Worker pid=442) DEBUG 04-22 01:42:54 [v1/worker/gpu_worker.py:1] worker requested memory: "
            "75.23GiB",
            "(Worker pid=443) DEBUG 04-22 01:42:54 [v1/worker/gpu_worker.py:1] worker requested memory: "
            "75.23GiB",
            "(Worker_PP1 pid=443) INFO 04-22 01:43:54 [v1/worker/gpu_worker.py:1] Available KV cache "
            "memory: 69.8 GiB",
        ]
    ).last
    assert start is not None
    assert start.processes.keys() == {"Worker pid=442", "Worker_PP1"}
    assert start.processes["Worker_PP1"].requested_gib == 75.23


def test_the_banner_names_the_release() -> None:
    line = "(APIServer pid=1) INFO 04-22 01:42:32 [entrypoints/utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.19.0"
    start = read_lines([line]).last
    assert start is not None
    assert start.version == "0.19.0"


def test_a_model_in_the_hubs_cache_gets_its_id() -> None:
    path = "/data/hub/models--deepseek-ai--DeepSeek-V4-Flash/snapshots/60d8d70770c6776f"
    start = read_lines(
        [f"Initializing a V1 LLM engine (v0.27.1) with config: model='{path}', dtype=torch.bfloat16"]
    ).last
    assert start is not None
    assert start.model == "deepseek-ai/DeepSeek-V4-Flash"
