"""The safetensors format as far as headers go: names, dtypes, shapes, and the index of a sharded checkpoint.

8 bytes little-endian header length, then a JSON object name -> {dtype, shape, data_offsets}
(https://github.com/huggingface/safetensors#format). Headers come from strangers: lengths, nesting, names and
numbers are checked, and everything wrong is one InputError line.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from vllm_capacity.errors import InputError
from vllm_capacity.inputs.config_json import MAX_CONTAINERS, check_depth
from vllm_capacity.inputs.model_config import MAX_DIMENSION

MAX_HEADER_BYTES = 100 * 1000 * 1000
"""The format's own limit (MAX_HEADER_SIZE of the safetensors library)."""

MAX_SHARDS = 2000
MAX_DEPTH = 4

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of one element by the format's dtype name (safetensors/src/tensor.rs: Dtype)."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor. `dtype` is safetensors' name (BF16, F8_E4M3, U8, ...), `n_bytes` what it takes in
    the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int

    @property
    def n_elements(self) -> int:
        return prod(self.shape)


def header_length(first: bytes, what: str, file_size: int | None = None) -> int:
    """The header's length from the first 8 bytes. Raises InputError where it cannot be one."""
    if len(first) < 8:
        raise InputError(f"{what} is not a safetensors file: it has only {len(first)} bytes")
    (length,) = struct.unpack("<Q", first[:8])
    if length > MAX_HEADER_BYTES:
        raise InputError(f"{what} is not a safetensors file: its header would have {length:,} bytes")
    if length < 2 or (file_size is not None and 8 + length > file_size):
        raise InputError(
            f"{what} is cut off or not a safetensors file: a header of {length:,} bytes does not fit"
        )
    return int(length)


def parse_header(data: bytes, what: str, data_bytes: int | None = None) -> list[TensorInfo]:
    """The tensors of one header; `data_bytes` is how much of the file follows it, where that is known.

    Raises InputError for anything that the format forbids.
    """
    try:
        text = data.decode("utf-8")
        if text.count("{") + text.count("[") > 3 * MAX_CONTAINERS:
            raise InputError(f"{what} names more than {MAX_CONTAINERS:,} tensors")
        value = json.loads(text, object_pairs_hook=_unique)
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise InputError(f"the header of {what} is not a JSON object with unique names") from None
    if not isinstance(value, dict):
        raise InputError(f"the header of {what} is not a JSON object")
    check_depth(value, what, MAX_DEPTH)
    entries = {name: entry for name, entry in value.items() if name != "__metadata__"}
    tensors = [_tensor(name, entry, what) for name, entry in entries.items()]
    _check_layout([entry["data_offsets"] for entry in entries.values()], what, data_bytes)
    return tensors


def _check_layout(spans: list[list[int]], what: str, data_bytes: int | None) -> None:
    """Tensors follow each other without holes or overlaps, to the end of the file, or the library does not load it.

    Source: Metadata::validate (InvalidOffset) and SafeTensors::read_metadata (MetadataIncompleteBuffer),
    safetensors/src/tensor.rs.
    """
    end = 0
    for first, last in sorted(spans):
        if first != end:
            raise InputError(
                f"{what}: its tensors overlap or leave holes at byte {min(first, end):,} of the data"
            )
        end = last
    if data_bytes is not None and end != data_bytes:
        raise InputError(
            f"{what} is cut off or was changed: its header tells of {end:,} bytes of data, {data_bytes:,} are there"
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("duplicate name")
    return values


def _tensor(name: str, entry: Any, what: str) -> TensorInfo:
    if not isinstance(entry, dict):
        raise InputError(f"{what}: tensor {name!r:.80} is not described by an object")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise InputError(f"{what}: tensor {name!r:.80} has the unknown dtype {dtype!r:.20}")
    if not isinstance(shape, list) or not possible_shape(shape):
        raise InputError(f"{what}: tensor {name!r:.80} has the impossible shape {shape!r:.60}")
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(type(o) is int and o >= 0 for o in offsets)
    ):
        raise InputError(f"{what}: tensor {name!r:.80} has no data_offsets")
    n_bytes = offsets[1] - offsets[0]
    bits = prod(shape) * DTYPE_BITS[dtype]
    if n_bytes != -(-bits // 8):
        raise InputError(
            f"{what}: tensor {name!r:.80} takes {n_bytes} bytes, but dtype and shape say {-(-bits // 8)}"
        )
    return TensorInfo(name, dtype, tuple(shape), n_bytes)


def possible_shape(shape: Sequence[Any]) -> bool:
    """Whether these can be the sizes of a tensor."""
    return len(shape) <= 16 and all(type(v) is int and 0 <= v <= MAX_DIMENSION for v in shape)


def join(shards: Iterable[tuple[str, list[TensorInfo]]]) -> tuple[TensorInfo, ...]:
    """The tensors of all shards; a name in two shards is a broken checkpoint."""
    found: dict[str, TensorInfo] = {}
    for file, tensors in shards:
        for tensor in tensors:
            if tensor.name in found:
                raise InputError(f"tensor {tensor.name!r:.80} stands in two files, one of them {file}")
            found[tensor.name] = tensor
    return tuple(found[name] for name in sorted(found))


def shard_names(data: bytes, what: str) -> list[str]:
    """The files that an index's weight_map names, sorted. Raises InputError for anything but plain file
    names.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(f"{what} is not JSON") from None
    weight_map = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{what} has no weight_map")
    names = set(weight_map.values()) if all(isinstance(v, str) for v in weight_map.values()) else {""}
    for name in names:
        if (
            not name.endswith(".safetensors")
            or "\\" in name
            or Path(name).is_absolute()
            or ".." in name.split("/")
        ):
            raise InputError(f"{what} names {name!r:.60}, which is no safetensors file")
    if len(names) > MAX_SHARDS:
        raise InputError(f"{what} names {len(names):,} files; at most {MAX_SHARDS:,} are read")
    return sorted(names)
