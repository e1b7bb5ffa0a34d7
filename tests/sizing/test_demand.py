"""How concurrency, workloads and traces become tokens. Expected numbers follow from the documented formulas by hand."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_capacity.errors import InputError
from vllm_capacity.sizing.demand import from_concurrency, from_lengths, from_workload
from vllm_capacity.sizing.trace import demand_of_trace, read_trace


def test_concurrency_counts_every_request_at_full_length():
    demand = from_concurrency(64, 32768)
    assert (demand.sequences, demand.mean_tokens, demand.p95_tokens, demand.longest_tokens) == (
        64,
        32768,
        32768,
        32768,
    )
    assert "2,097,152 tokens" in demand.how[0]


def test_a_workload_is_prompt_and_output_of_every_user():
    demand = from_workload(200, 3000, 500, prompt_p95=8000, output_p95=1200, prefix_share=0.6)
    assert demand.sequences == 200
    assert demand.mean_tokens == 3500
    assert demand.p95_tokens == 9200
    assert demand.longest_tokens == 9216  # 9,200 rounded up to 256
    assert demand.shared_tokens == 1800
    assert len(demand.how) == 3


@pytest.mark.parametrize("share", [-0.1, 1.0, 7.0])
def test_a_share_outside_zero_to_one_is_refused(share: float):
    with pytest.raises(InputError, match="--prefix-share"):
        from_workload(1, 10, 10, prefix_share=share)


def test_a_p95_below_the_mean_is_refused():
    with pytest.raises(InputError, match="--output-p95"):
        from_workload(1, 10, 10, output_p95=5)


def test_condensing_a_trace_keeps_its_mean_and_its_tail():
    generator = random.Random(3)
    counts: dict[int, int] = {}
    for _ in range(10_000):
        length = int(generator.lognormvariate(7, 1)) + 1
        counts[length] = counts.get(length, 0) + 1
    demand = from_lengths(counts, 50, longest=max(counts), mean_prompt=1000)
    mean = sum(length * count for length, count in counts.items()) / 10_000
    assert mean <= demand.mean_tokens <= mean + 1  # each of the points is rounded up to whole tokens
    assert sum(point.weight for point in demand.lengths) == pytest.approx(1)
    below = sum(count for length, count in counts.items() if length <= demand.p95_tokens)
    assert below >= 9_500 > below - counts[demand.p95_tokens]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_busiest_moment_is_found_whatever_the_order(tmp_path: Path):
    generator = random.Random(5)
    rows = [
        {"timestamp": generator.uniform(0, 100), "duration": generator.uniform(0.1, 9),
         "prompt_tokens": generator.randrange(4000), "output_tokens": generator.randrange(1, 500)}
        for _ in range(400)
    ]  # fmt: skip
    demand = demand_of_trace(write(tmp_path / "t.jsonl", rows))

    def running(at: float) -> list[dict[str, float]]:
        return [r for r in rows if r["timestamp"] <= at < r["timestamp"] + r["duration"]]  # type: ignore[operator]

    busiest = max(
        (running(r["timestamp"]) for r in rows),  # type: ignore[arg-type]
        key=lambda rs: sum(r["prompt_tokens"] + r["output_tokens"] for r in rs),
    )
    assert demand.sequences == len(busiest)
    total = sum(r["prompt_tokens"] + r["output_tokens"] for r in busiest)
    assert demand.mean_tokens == pytest.approx(total / len(busiest), abs=1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"),
        (
            "burst.csv",
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,4808,10,4818,API\n",
        ),
        ("mooncake.jsonl", '{"timestamp": 0, "input_length": 4808, "output_length": 10, "hash_ids": [1]}\n'),
        ("openai.jsonl", '{"usage": {"prompt_tokens": 4808, "completion_tokens": 10}}\n\n'),
        ("plain.tsv", "prompt_tokens\toutput_tokens\n4808\t10\n"),
    ],
)
def test_public_trace_formats_are_read(tmp_path: Path, name: str, text: str):
    path = tmp_path / name
    path.write_text(text)
    (request,) = read_trace(path)
    assert (request.prompt, request.output) == (4808, 10)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", "{}\n", "line 1 has no prompt tokens"),
        ("a.jsonl", '{"prompt_tokens": 1, "output_tokens": 2}\nnonsense\n', "line 2 is not JSON"),
        ("a.jsonl", "[1]\n", "not a JSON object"),
        ("a.jsonl", "[" * 100_000 + "\n", "line 1 is not JSON"),
        ("a.jsonl", '{"prompt_tokens": -1, "output_tokens": 2}\n', "not a number of tokens"),
        ("a.jsonl", '{"prompt_tokens": 1e400, "output_tokens": 2}\n', "not a number of tokens"),
        ("a.jsonl", '{"prompt_tokens": 1, "output_tokens": 2, "start": "soon"}\n', "not a time"),
        (
            "a.jsonl",
            '{"prompt_tokens": 1, "output_tokens": 2, "start": 9, "end": 3}\n',
            "ends before it starts",
        ),
        ("a.jsonl", "", "holds no request"),
        ("a.csv", "prompt_tokens,output_tokens\n1,2\n", "--concurrent-users"),
    ],
)
def test_a_broken_trace_is_one_error_with_its_line(tmp_path: Path, name: str, text: str, words: str):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as error:
        demand_of_trace(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_arrivals_with_an_output_speed_give_durations(tmp_path: Path):
    rows = [{"timestamp": 1000 * i, "input_length": 100, "output_length": 50} for i in range(20)]
    demand = demand_of_trace(write(tmp_path / "t.jsonl", list(rows)), output_speed=10, time_unit="ms")
    assert demand.sequences == 5  # one a second, each takes 5 s


MEASURE = """
import re, sys, time
from pathlib import Path
from vllm_capacity.sizing.trace import demand_of_trace
start = time.process_time()
demand = demand_of_trace(Path(sys.argv[1]))
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(time.process_time() - start, int(peak) / 1024, demand.sequences)
"""
"""The peak is the kernel's for this program; `ru_maxrss` would count the test process that it was forked from."""


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_hundred_thousand_requests_take_under_5_seconds_and_200_megabytes(tmp_path: Path, suffix: str):
    generator = random.Random(7)
    path = tmp_path / f"trace.{suffix}"
    with path.open("w") as file:
        if suffix == "csv":
            file.write("timestamp,duration,prompt_tokens,output_tokens\n")
        for i in range(100_000):
            row = (
                i * 0.05,
                round(generator.uniform(1, 20), 3),
                generator.randrange(1, 30_000),
                generator.randrange(1, 2_000),
            )
            names = ("timestamp", "duration", "prompt_tokens", "output_tokens")
            file.write(
                ",".join(map(str, row)) if suffix == "csv" else json.dumps(dict(zip(names, row, strict=True)))
            )
            file.write("\n")
    out = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
    ).stdout
    seconds, megabytes, sequences = map(float, out.split())
    assert seconds < 5
    assert megabytes < 200
    assert sequences > 100
