"""What `dry-run` gave for the eager runs on record, against what the H200 measured.

tests/data/dry_run/eager_VERSION.jsonl is written by tools/dry_run_records.py with the real vLLM of that release on a
machine without a GPU; the measured peaks are vLLM's own `torch_peak_increase` in tests/data/records.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vllm_capacity.validate.record import RunRecord, read_records

DATA = Path(__file__).parents[1] / "data"
WITHIN = round(0.02 * 2**30)
"""What the dry-run is held to; most are equal to the byte."""
SCRATCH = {
    "eager-gpt-oss-20b": -2_621_440,
    "eager-qwen2.5-7b-kv-fp8-u0.5": -1_048_576,
    "eager-qwen2.5-14b-cpu-offload-s256": -1_048_576,
    "eager-qwen3-30b-a3b-tp2-ep": -1_572_864,
    "eager-qwen3-30b-a3b-dp2-ep": -1_572_864,
}
"""Memory that libraries take inside a call, which the method cannot see. The records' `peak_tensors` name 1 MiB of cuBLASLt
for products with bias (Qwen2.5, gpt-oss) and 1 MiB of FlashInfer's top-k state (where the sampler sets the peak: gpt-oss, Qwen3
with experts on two ranks); the 0.5 MiB left of those is what a block of the fp32 logits is larger than they."""
KINDS = {
    "dense": "eager-llama-3.1-8b",
    "MoE": "eager-qwen3-30b-a3b-t16384-s64",
    "MLA": "eager-deepseek-v2-lite-t2048-s256",
    "sliding window": "eager-gemma-3-27b-text-u0.95",
    "hybrid": "eager-granite-4.0-h-tiny",
    "two ranks": "eager-llama-3.1-8b-tp2",
}


def recorded(version: str) -> dict[str, RunRecord]:
    records = read_records(DATA / "records" / f"h200_vllm_{version}.jsonl")
    return {record.request.name: record for record in records}


def dry_runs(version: str) -> dict[str, dict]:
    lines = (DATA / "dry_run" / f"eager_{version}.jsonl").read_text().splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


VERSIONS = sorted(path.stem.removeprefix("eager_") for path in (DATA / "dry_run").glob("eager_*.jsonl"))
CASES = [(version, name) for version in VERSIONS for name in dry_runs(version)]


@pytest.mark.parametrize(("version", "name"), CASES, ids=[name for _, name in CASES])
def test_peak_is_the_measured_one(version, name):
    record, row = recorded(version)[name], dry_runs(version)[name]
    assert len(row["activation_peak_bytes"]) == len(record.ranks)
    for peak, rank in zip(row["activation_peak_bytes"], record.ranks, strict=True):
        measured = rank.profiling.result["torch_peak_increase"]
        assert abs(peak - measured) <= WITHIN
        if version == "0.26.0":
            assert peak - measured == SCRATCH.get(name, 0)


def test_every_eager_run_on_record_was_tried():
    for version in VERSIONS:
        eager = {
            name
            for name, record in recorded(version).items()
            if record.request.flags.get("enforce_eager")
            and any(rank.profiling is not None and rank.profiling.result for rank in record.ranks)
        }
        assert eager == dry_runs(version).keys()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_among_them(kind):
    assert KINDS[kind] in dry_runs("0.26.0")
