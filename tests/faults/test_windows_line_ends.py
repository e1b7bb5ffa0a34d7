"""Files that came from Windows (\\r\\n, some with a byte order mark) say the same as those with \\n."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.calibration import load_calibration, render
from vllm_capacity.inputs.catalogue import find_entry
from vllm_capacity.inputs.command_line import parse_command_line
from vllm_capacity.inputs.config_json import read_config
from vllm_capacity.inputs.safetensors_headers import read_local
from vllm_capacity.logs.reader import read_log
from vllm_capacity.releases import newest_release
from vllm_capacity.sizing.price_file import read_prices
from vllm_capacity.sizing.trace import demand_of_trace
from vllm_capacity.validate.matrix import load_matrix
from vllm_capacity.validate.record import RunRecord, RunRequest, RunStatus, append_record, read_records

DATA = Path(__file__).parents[1] / "data"


def both(folder: Path, name: str, text: str, mark: bytes = b"") -> tuple[Path, Path]:
    """The text as a file with \\n and as one with \\r\\n (and a byte order mark)."""
    unix, windows = folder / "unix" / name, folder / "windows" / name
    for path in (unix, windows):
        path.parent.mkdir(exist_ok=True)
    unix.write_bytes(text.encode())
    windows.write_bytes(mark + text.replace("\n", "\r\n").encode())
    return unix, windows


def test_a_config(tmp_path: Path) -> None:
    entry = find_entry("openai/gpt-oss-20b")
    assert entry is not None
    unix, windows = both(tmp_path, "config.json", json.dumps(entry.config, indent=2) + "\n")
    assert read_config(unix).root == read_config(windows).root


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_file_of_flags(tmp_path: Path, mark: bytes) -> None:
    text = "max-model-len: 4096\ntensor-parallel-size: 2\nenforce-eager: true\nhf-overrides:\n  a: |\n    one\n    two\n"
    args = [
        parse_command_line(["vllm", "serve", "a/b", "--config", str(path)], release=newest_release()).args
        for path in both(tmp_path, "flags.yaml", text, mark)
    ]
    assert args[0] == args[1]
    assert args[0].tensor_parallel_size == 2


@pytest.mark.parametrize(
    "log", sorted((DATA / "logs" / "scenarios").glob("*.log"))[::8], ids=lambda path: path.name[:40]
)
def test_a_log(log: Path, tmp_path: Path) -> None:
    found = []
    for path in both(tmp_path, "log", log.read_text()):
        with path.open("rb") as file:
            found.append(read_log(file).model_dump())
    assert found[0] == found[1]


ROWS = [{"prompt_tokens": 100 * i, "output_tokens": 10 * i, "start": i, "end": i + 5} for i in range(1, 30)]
TRACES = {
    "t.csv": ",".join(ROWS[0]) + "\n" + "".join(",".join(map(str, row.values())) + "\n" for row in ROWS),
    "t.tsv": "\t".join(ROWS[0]) + "\n" + "".join("\t".join(map(str, row.values())) + "\n" for row in ROWS),
    "t.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
}


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", TRACES)
def test_a_trace(name: str, mark: bytes, tmp_path: Path) -> None:
    unix, windows = both(tmp_path, name, TRACES[name], mark)
    assert demand_of_trace(unix) == demand_of_trace(windows)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_prices(tmp_path: Path, mark: bytes) -> None:
    text = (Path(__file__).parents[2] / "docs" / "prices.example.yaml").read_text()
    unix, windows = both(tmp_path, "prices.yaml", text, mark)
    assert read_prices(unix) == read_prices(windows)


def test_a_matrix(tmp_path: Path) -> None:
    bundled: Any = sorted((Path(__file__).parents[2] / "validate" / "matrices").glob("*.yaml"))
    unix, windows = both(tmp_path, "matrix.yaml", bundled[0].read_text())
    assert load_matrix(unix) == load_matrix(windows)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_calibration(tmp_path: Path, mark: bytes) -> None:
    unix, windows = both(tmp_path, "calibration.yaml", render(load_calibration("none").measurements), mark)
    found = [
        [
            (m.name, m.component, m.n_bytes, m.low, m.high, dict(m.when), m.runs)
            for m in load_calibration(p).measurements
        ]
        for p in (unix, windows)
    ]
    assert found[0] == found[1]


def test_records(tmp_path: Path) -> None:
    record = RunRecord(tool_version="0", request=RunRequest(name="a", model="m"), status=RunStatus.OK)
    unix, windows = both(tmp_path, "records.jsonl", record.model_dump_json() + "\n")
    assert read_records(unix) == read_records(windows)
    append_record(windows, record)
    assert read_records(windows) == [record, record]


def test_an_index_of_shards(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    shard = len(header).to_bytes(8, "little") + header + bytes(4)
    index = json.dumps({"weight_map": {"a": "x.safetensors"}}, indent=1) + "\n"
    for path in both(tmp_path, "model.safetensors.index.json", index):
        (path.parent / "x.safetensors").write_bytes(shard)
        assert [t.name for t in read_local(path.parent).tensors] == ["a"]
