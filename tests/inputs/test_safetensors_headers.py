"""Headers of local safetensors files, and what a broken one says."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_capacity.errors import CapacityError, InputError
from vllm_capacity.inputs.safetensors_format import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    header_length,
    parse_header,
    shard_names,
)
from vllm_capacity.inputs.safetensors_headers import read_headers, read_local


def tensor(
    dtype: str = "BF16", shape: list[int] | None = None, start: int = 0, end: int = 16
) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [2, 4] if shape is None else shape, "data_offsets": [start, end]}


def write(path: Path, header: object, data: int = 16) -> Path:
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(data))
    return path


def test_a_file_and_its_folder_give_the_same_tensors(tmp_path: Path) -> None:
    file = write(
        tmp_path / "model.safetensors",
        {"__metadata__": {"format": "pt"}, "b": tensor(), "a": tensor(start=16, end=32)},
        32,
    )
    by_file, by_folder = read_local(file), read_headers(str(tmp_path))
    assert by_file.tensors == by_folder.tensors
    assert [t.name for t in by_file.tensors] == ["a", "b"]
    assert by_file.tensors[0].shape == (2, 4)
    assert (by_file.n_bytes, by_file.n_elements) == (32, 16)


def test_an_index_decides_which_files_count(tmp_path: Path) -> None:
    write(tmp_path / "model-00001-of-00001.safetensors", {"a": tensor()})
    write(tmp_path / "consolidated.safetensors", {"a": tensor()})
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_local(tmp_path).n_files == 1


def test_packed_four_bit_elements_count_half_a_byte(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors", {"a": tensor("F4", [3, 5], 0, 8)}, 8)
    assert read_local(tmp_path).tensors[0].n_bytes == 8


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x.safetensors"}}')
    with pytest.raises(InputError, match=r"lacks 1 of its 1 shards, x\.safetensors"):
        read_local(tmp_path)


def test_the_same_name_in_two_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "1.safetensors", {"a": tensor()})
    write(tmp_path / "2.safetensors", {"a": tensor()})
    with pytest.raises(InputError, match="two files"):
        read_local(tmp_path)


def test_consolidated_files_beside_others_are_the_same_weights_once_more(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": tensor()})
    write(tmp_path / "consolidated.safetensors", {"b": tensor()})
    assert [t.name for t in read_local(tmp_path).tensors] == ["a"]
    (tmp_path / "model.safetensors").unlink()
    assert [t.name for t in read_local(tmp_path).tensors] == ["b"]


def test_a_folder_without_safetensors_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no safetensors files"):
        read_local(tmp_path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (["a"], "not a JSON object"),
        ({"a": 3}, "not described by an object"),
        ({"a": tensor("BF17")}, "unknown dtype"),
        ({"a": {**tensor(), "dtype": ["BF16"]}}, "unknown dtype"),
        ({"a": tensor(shape=[-1, 4])}, "impossible shape"),
        ({"a": tensor(shape=[10**18])}, "impossible shape"),
        ({"a": tensor(shape=[1.5])}, "impossible shape"),  # type: ignore[list-item]
        ({"a": tensor(shape=[True])}, "impossible shape"),
        ({"a": tensor(shape=[2] * 20)}, "impossible shape"),
        ({"a": tensor(end=17)}, "takes 17 bytes, but dtype and shape say 16"),
        ({"a": {"dtype": "BF16", "shape": [1]}}, "no data_offsets"),
        ({"a": {**tensor(), "data_offsets": [4, 2, 1]}}, "no data_offsets"),
        ({"a": [[[[[[1]]]]]]}, "nested deeper"),
        ({"a": tensor(), "b": tensor(start=8, end=24)}, "overlap or leave holes at byte 8"),
        ({"a": tensor(), "b": tensor(start=17, end=33)}, "overlap or leave holes at byte 16"),
        ({"a": tensor(), "b": tensor(start=16, end=32)}, "tells of 32 bytes of data, 16 are there"),
        ({}, "tells of 0 bytes of data, 16 are there"),
    ],
)
def test_a_broken_header_is_one_line_that_names_the_tensor(header: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a") as caught:
        read_local(write(tmp_path / "m.safetensors", header))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"\1\0\0", struct.pack("<Q", 1 << 62), struct.pack("<Q", 500) + b"{}", b"\0" * 8]
)
def test_a_file_that_is_not_safetensors_is_refused_unread(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(data)
    with pytest.raises(InputError, match="safetensors"):
        read_local(file)


def test_the_header_limit_is_100_megabytes() -> None:
    assert MAX_HEADER_BYTES == 100_000_000
    assert header_length(struct.pack("<Q", 100_000_000), "x") == 100_000_000
    with pytest.raises(InputError, match="100,000,001"):
        header_length(struct.pack("<Q", 100_000_001), "x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "../x.safetensors"}}',
        '{"weight_map": {"a": "/x.safetensors"}}',
        '{"weight_map": {"a": "x.bin"}}',
        "[" * 100_000,
        json.dumps({"weight_map": {str(i): f"{i}.safetensors" for i in range(3000)}}),
    ],
)
def test_an_index_may_only_name_safetensors_files_below_the_folder(text: str) -> None:
    with pytest.raises(InputError, match="index"):
        shard_names(text.encode(), "index")


def test_headers_with_duplicate_names_are_refused() -> None:
    one = json.dumps(tensor())
    with pytest.raises(InputError, match="unique names"):
        parse_header(f'{{"a": {one}, "a": {one}}}'.encode(), "m")


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**18), 10**18), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.one_of(st.sampled_from(sorted(DTYPE_BITS)), values),
        "shape": st.one_of(st.lists(st.integers(0, 64), max_size=4), values),
        "data_offsets": st.one_of(st.lists(st.integers(0, 1 << 20), min_size=2, max_size=2), values),
    },
)


@settings(max_examples=300, deadline=1000)
@given(st.one_of(st.dictionaries(st.text(max_size=6), st.one_of(entries, values), max_size=5), values))
def test_any_header_gives_tensors_or_one_line(header: Any) -> None:
    try:
        tensors = parse_header(json.dumps(header).encode(), "m")
    except CapacityError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert all(t.n_bytes >= 0 and t.n_elements >= 0 for t in tensors)


@settings(max_examples=200, deadline=1000)
@given(st.binary(max_size=300))
def test_any_bytes_give_tensors_or_one_line(data: bytes) -> None:
    try:
        parse_header(data[: header_length(data, "m", len(data))], "m")
        shard_names(data, "index")
    except CapacityError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_five_megabytes_of_junk_take_less_than_a_second() -> None:
    for junk in (b"[" + b"[]," * 1_700_000 + b"0]", b'{"a":"' + b"x" * 5_000_000 + b'"}'):
        started = time.process_time()
        try:
            parse_header(junk, "m")
        except CapacityError as error:
            assert "\n" not in str(error)  # noqa: PT017
        assert time.process_time() - started < 1


def test_a_real_sized_header_is_read_quickly() -> None:
    # 100,000 tensors: more than any single shard on the Hub holds.
    header = {f"model.layers.{i}.w": tensor(start=16 * i, end=16 * i + 16) for i in range(60_000)}
    started = time.process_time()
    assert len(parse_header(json.dumps(header).encode(), "m")) == 60_000
    assert time.process_time() - started < 2
