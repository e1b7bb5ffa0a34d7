from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from vllm_capacity.errors import InputError
from vllm_capacity.validate.record import (
    RunRecord,
    RunRequest,
    RunStatus,
    append_record,
    parse_record,
    read_records,
)
from vllm_capacity.validate.schema import record_schema

RECORDS = sorted((Path(__file__).parents[1] / "data" / "records").glob("*.jsonl"))


def record(name: str, status: RunStatus = RunStatus.OK) -> RunRecord:
    return RunRecord(tool_version="0", request=RunRequest(name=name, model="m"), status=status)


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    for name in ("a", "b"):
        append_record(path, record(name))
    assert [r.name for r in read_records(path)] == ["a", "b"]
    assert len(path.read_text().splitlines()) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["records.jsonl"]


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_half_written_record_is_dropped_and_overwritten(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "records.jsonl"
    append_record(path, record("whole"))
    with path.open("a") as file:
        file.write(record("half").model_dump_json()[:cut])
    assert [r.name for r in read_records(path)] == ["whole"]
    append_record(path, record("next"))
    assert [r.name for r in read_records(path)] == ["whole", "next"]


def test_a_complete_last_line_without_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(record("whole").model_dump_json())
    append_record(path, record("next"))
    assert [r.name for r in read_records(path)] == ["whole", "next"]


def test_a_broken_record_elsewhere_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("{broken\n" + record("whole").model_dump_json() + "\n")
    with pytest.raises(InputError, match=r"records\.jsonl:1"):
        read_records(path)


def test_unknown_schema_versions_and_fields_are_refused() -> None:
    data = json.loads(record("a").model_dump_json())
    with pytest.raises(InputError, match="schema 99"):
        parse_record(json.dumps({**data, "schema_version": 99}))
    with pytest.raises(InputError, match="surprise"):
        parse_record(json.dumps({**data, "surprise": 1}))


def test_the_gpus_of_a_request_are_the_product_of_its_parallel_sizes() -> None:
    flags = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2}
    assert RunRequest(name="a", model="m", flags=flags).gpus == 8


def test_records_of_before_1_0_0_are_read_under_todays_names() -> None:
    """A record of the test data with the keys that it was written with."""
    new = (
        (Path(__file__).parents[1] / "data" / "records" / "h200_vllm_0.26.0.jsonl")
        .read_text()
        .splitlines()[0]
    )
    old = new.replace('"size_tokens":', '"tokens":').replace('"kv_cache_size_tokens":', '"kv_tokens":')
    for key in ("graph_estimate_bytes", "graph_applied_bytes", "graph_actual_bytes"):
        old = old.replace(f'"{key}":', f'"cuda_{key}":')
    for key in ("min", "max"):
        old = old.replace(f'"{key}_gpu_memory_utilization":', f'"{key}_utilization":')
    old = old.replace('"model_runner":', '"runner":')
    old = old.replace('"low_bytes":', '"low":').replace('"high_bytes":', '"high":')
    assert old != new
    assert parse_record(old) == parse_record(new)


@pytest.mark.parametrize("file", RECORDS, ids=[file.stem for file in RECORDS])
def test_records_hold_to_their_published_schema(file: Path) -> None:
    check = jsonschema.Draft202012Validator(record_schema())
    for record in read_records(file):
        check.validate(json.loads(record.model_dump_json()))
