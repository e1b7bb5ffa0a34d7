"""Integer arithmetic and the units people read: bytes inside, GiB outside."""

from __future__ import annotations

import re

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint8": 1,
    "int8": 1,
    "bool": 1,
    "int32": 4,
    "int64": 8,
    "float64": 8,
}
"""Bytes of one element of a torch dtype, by the name torch gives it."""


def cdiv(a: int, b: int) -> int:
    """Ceiling of a / b for non-negative integers."""
    return -(-a // b)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def block(n_bytes: int, limited: int = 0) -> int:
    """What PyTorch counts as allocated for a tensor of `n_bytes`: multiples of 512 bytes, and from 10 MiB on the whole
    segment (a multiple of 2 MiB) unless more than 1 MiB of it would be left. `limited`: from 20 MiB on always the whole
    segment, as with max_split_size_mb=20.

    Source: c10/cuda/CUDACachingAllocator.cpp: round_size, get_allocation_size, should_split. Holds for a tensor that gets
    a segment of its own; one that is cut from a larger free block is counted as it is.
    """
    rounded = round_up(n_bytes, 512)
    if rounded < 10 * MIB:
        return rounded
    segment = round_up(rounded, 2 * MIB)
    return segment if segment - rounded <= MIB or (limited and rounded >= 20 * MIB) else rounded


def gib(n_bytes: int | float, digits: int = 2) -> str:
    """Bytes as GiB for people, for example '14.99 GiB'."""
    return f"{n_bytes / GIB:,.{digits}f} GiB"


_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*$", re.IGNORECASE)
_SIZE_FACTORS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": KIB, "kib": KIB, "mi": MIB, "mib": MIB, "gi": GIB, "gib": GIB, "ti": 1 << 40, "tib": 1 << 40,
}  # fmt: skip


def parse_size(text: str) -> int:
    """'24GiB', '80 GB', '1024' as bytes. Raises ValueError with the accepted forms."""
    match = _SIZE.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a size; write for example 24GiB, 80GB or a number of bytes")
    return int(float(match[1]) * _SIZE_FACTORS[match[2].lower()])


_HUMAN = re.compile(r"^(\d+(?:\.\d+)?)([kKmMgGtT]?)$")
_HUMAN_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
                  "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}  # fmt: skip


def parse_human_int(text: str) -> int:
    """vLLM's human-readable integers: '32k' = 32,000 and '32K' = 32,768.

    Source: `human_readable_int`, vllm/engine/arg_utils.py (0.26.0); whole numbers only for binary suffixes.
    Raises ValueError.
    """
    match = _HUMAN.match(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a number; write for example 32768, 32k (32,000) or 32K (32,768)")
    number, suffix = match.groups()
    if "." in number and (not suffix or suffix.isupper()):
        raise ValueError(f"{text!r}: decimals are only allowed with decimal suffixes such as 25.6k")
    return (
        int(float(number) * _HUMAN_FACTORS[suffix]) if "." in number else int(number) * _HUMAN_FACTORS[suffix]
    )
