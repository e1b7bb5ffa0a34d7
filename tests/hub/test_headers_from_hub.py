"""Safetensors headers over real HTTP: only headers travel, broken servers end in one line."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub.server import COMMIT, HubServer, Repository

PROGRAM = """
import json, sys
from vllm_capacity.errors import CapacityError
from vllm_capacity.inputs.safetensors_headers import read_headers
arguments = json.loads(sys.argv[1])
progress = []
try:
    headers = read_headers(arguments.pop("spec"), progress=lambda *step: progress.append(step), **arguments)
except CapacityError as error:
    print(type(error).__name__ + ": " + str(error), file=sys.stderr)
    sys.exit(2)
print(json.dumps({
    "tensors": [[t.name, t.dtype, t.shape, t.n_bytes] for t in headers.tensors], "n_files": headers.n_files,
    "source": headers.source, "commit": headers.commit, "progress": progress, "n_bytes": headers.n_bytes,
}))
"""


def safetensors(tensors: dict[str, tuple[str, list[int], int]], padding: int = 0) -> bytes:
    """A file as the safetensors library writes it: header length, header, zeros for data."""
    header: dict[str, object] = {
        "__metadata__": {"format": "pt", **({"x": "y" * padding} if padding else {})}
    }
    offset = 0
    for name, (dtype, shape, n_bytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + n_bytes]}
        offset += n_bytes
    data = json.dumps(header).encode()
    return struct.pack("<Q", len(data)) + data + bytes(offset)


ONE = {"a.weight": ("BF16", [1024, 512], 1 << 20), "a.scale": ("F32", [], 4)}
TWO = {"b.weight": ("F8_E4M3", [2048, 1024], 1 << 21)}
SHARDS = {
    "model-00001-of-00002.safetensors": safetensors(ONE),
    "model-00002-of-00002.safetensors": safetensors(TWO),
}
INDEX = json.dumps(
    {
        "metadata": {"total_size": 1},
        "weight_map": {name: file for file in SHARDS for name in (ONE if "1-of" in file else TWO)},
    }
).encode()


@pytest.fixture
def hub() -> Iterator[HubServer]:
    many = {
        f"model-{i:05}-of-00012.safetensors": safetensors({f"t{i:02}": ("BF16", [4], 8)})
        for i in range(1, 13)
    }
    many_index = json.dumps({"weight_map": {f"t{i:02}": name for i, name in enumerate(many, 1)}}).encode()
    repositories = {
        "good/single": Repository({"model.safetensors": safetensors(ONE)}),
        "good/sharded": Repository({"model.safetensors.index.json": INDEX, **SHARDS}),
        "good/many": Repository({"model.safetensors.index.json": many_index, **many}),
        "good/cdn": Repository({"model.safetensors.index.json": INDEX, **SHARDS}, redirect=True),
        "good/long": Repository({"model.safetensors": safetensors(ONE, padding=400_000)}),
        "good/no-ranges": Repository(
            {"model.safetensors": safetensors(ONE, padding=400_000)}, ignore_ranges=True
        ),
        "good/busy": Repository({"model.safetensors": safetensors(ONE)}, status=503, fail_first=2),
        "bad/limited": Repository({"model.safetensors": safetensors(ONE)}, status=429, retry_after=600),
        "bad/none": Repository({"pytorch_model.bin": b"x"}),
        "bad/truncated": Repository({"model.safetensors": safetensors(ONE, padding=4000)}, truncate=True),
        "bad/length": Repository({"model.safetensors": struct.pack("<Q", 1 << 60) + b"{}"}),
        "bad/json": Repository({"model.safetensors": struct.pack("<Q", 8) + b"notjson!" + bytes(100)}),
        "bad/index": Repository(
            {"model.safetensors.index.json": b'{"weight_map": {"a": "../../etc/passwd"}}'}
        ),
        "gated/model": Repository({"model.safetensors": safetensors(ONE)}, gated=True, token="hf_right"),
    }
    with HubServer(repositories) as server:
        yield server


def run(
    url: str, home: Path, spec: str, *, token: str = "", **arguments: object
) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    clean |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "NO_PROXY": "*", "no_proxy": "*"}
    if token:
        clean["HF_TOKEN"] = token
    return subprocess.run(
        [
            os.environ.get("HUB_TEST_PYTHON", sys.executable),
            "-c",
            PROGRAM,
            json.dumps({"spec": spec, **arguments}),
        ],
        capture_output=True,
        text=True,
        env=clean,
        timeout=60,
    )


def read(url: str, home: Path, spec: str, **arguments: object) -> dict[str, object]:
    done = run(url, home, spec, **arguments)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    value: dict[str, object] = json.loads(done.stdout)
    return value


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    error = done.stderr.strip()
    assert error.startswith("InputError: ")
    assert "\n" not in error
    assert all(part in error for part in parts), error


EXPECTED_ONE = [["a.scale", "F32", [], 4], ["a.weight", "BF16", [1024, 512], 1 << 20]]


def test_a_single_file_is_read_by_its_header_alone(hub: HubServer, tmp_path: Path) -> None:
    value = read(hub.url, tmp_path, "good/single")
    assert value["tensors"] == EXPECTED_ONE
    assert value["commit"] == COMMIT
    assert hub.sent_bytes < 110_000  # of a file of a megabyte
    parts = [
        part for method, path, part, _ in hub.requests if method == "GET" and path.endswith(".safetensors")
    ]
    assert parts
    assert all(parts)


@pytest.mark.parametrize("repository", ["good/sharded", "good/cdn"])
def test_all_shards_of_an_index_are_read(hub: HubServer, tmp_path: Path, repository: str) -> None:
    value = read(hub.url, tmp_path, repository)
    assert value["tensors"] == [*EXPECTED_ONE, ["b.weight", "F8_E4M3", [2048, 1024], 1 << 21]]
    assert value["n_files"] == 2
    assert value["n_bytes"] == (1 << 20) + 4 + (1 << 21)
    assert hub.sent_bytes < 220_000


def test_progress_counts_the_shards(hub: HubServer, tmp_path: Path) -> None:
    assert read(hub.url, tmp_path, "good/many")["progress"] == [[i, 12] for i in range(1, 13)]


@pytest.mark.parametrize("repository", ["good/long", "good/no-ranges"])
def test_a_header_longer_than_the_first_request_is_read_whole(
    hub: HubServer, tmp_path: Path, repository: str
) -> None:
    assert read(hub.url, tmp_path, repository)["tensors"] == EXPECTED_ONE


def test_a_busy_server_is_asked_again(hub: HubServer, tmp_path: Path) -> None:
    assert read(hub.url, tmp_path, "good/busy")["tensors"] == EXPECTED_ONE


def test_the_second_read_of_a_commit_comes_from_the_cache(hub: HubServer, tmp_path: Path) -> None:
    first = read(hub.url, tmp_path, "good/sharded")
    hub.requests.clear()
    second = read(hub.url, tmp_path, "good/sharded")
    assert second["tensors"] == first["tensors"]
    assert "cached" in str(second["source"])
    assert not [path for _, path, _, _ in hub.requests if path.endswith(".safetensors")]


def test_offline_reads_the_cache_or_says_what_is_missing(hub: HubServer, tmp_path: Path) -> None:
    refused(run(hub.url, tmp_path, "good/sharded", offline=True), "not cached", "network is off")
    read(hub.url, tmp_path, "good/sharded")
    hub.requests.clear()
    assert read(hub.url, tmp_path, "good/sharded", offline=True)["n_files"] == 2
    assert not hub.requests


def test_a_damaged_cache_is_read_again(hub: HubServer, tmp_path: Path) -> None:
    read(hub.url, tmp_path, "good/sharded")
    (kept,) = (tmp_path / "vllm-capacity" / "headers").iterdir()
    kept.write_text('{"repository": "good/sharded", "tensors": 3')
    assert read(hub.url, tmp_path, "good/sharded")["n_files"] == 2


def test_the_token_opens_gated_weights_and_stays_with_the_endpoint(hub: HubServer, tmp_path: Path) -> None:
    refused(run(hub.url, tmp_path, "gated/model"), "gated", "HF_TOKEN")
    assert read(hub.url, tmp_path, "gated/model", token="hf_right")["tensors"] == EXPECTED_ONE
    hub.requests.clear()
    read(hub.url, tmp_path, "good/cdn", token="hf_right")
    assert {authorisation for _, path, _, authorisation in hub.requests if path.startswith("/cdn/")} == {None}


@pytest.mark.parametrize(
    ("repository", "parts"),
    [
        ("bad/limited", ("429", "600 s")),
        ("bad/none", ("no safetensors files", "--weights config")),
        ("bad/truncated", ("bad/truncated",)),
        ("bad/length", ("not a safetensors file",)),
        ("bad/json", ("not a JSON object",)),
        ("bad/index", ("no safetensors file",)),
        ("bad/missing", ("neither in the bundled catalogue",)),
    ],
)
def test_broken_repositories_are_one_line(
    hub: HubServer, tmp_path: Path, repository: str, parts: tuple[str, ...]
) -> None:
    refused(run(hub.url, tmp_path, repository), *parts)
