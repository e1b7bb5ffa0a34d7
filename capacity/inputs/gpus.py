"""GPUs: the bundled catalogue `gpus.yaml`, a GPU described by hand, and the names people use for them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from vllm_capacity.device import Device
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.entries import EntryFile
from vllm_capacity.units import MIB, gib, parse_size

__all__ = ["DEFAULT_GPU", "custom_device", "find_device", "list_devices"]

DEFAULT_GPU = "H100-80GB"
"""What a plan assumes without `--gpu` and without a local GPU."""

NVML_EXCESS = 600 * MIB
"""What nvidia-smi shows beyond CUDA's total, for a GPU of which only one total is given.

The distance on the catalogue's GPUs with both totals known is 276 to 1,072 MiB (tests/inputs/test_gpus.py).
"""


@cache
def _entries() -> EntryFile:
    return EntryFile(Path(__file__).with_name("gpus.yaml"))


def find_device(name: str) -> Device:
    """The GPU of that name: a catalogue id, an alias or nvidia-smi's product name, whatever case and
    separators.

    Raises InputError with the closest names when unknown.
    """
    entry_id = _entries().canonical(name) or _names().get(_key(name))
    if entry_id is None:
        raise InputError(f"--gpu: unknown GPU {name!r:.60}{_suggest(name)}")
    fields = _entries().get(entry_id)
    assert fields is not None
    return _device(entry_id, fields)


def list_devices(text: str | None = None) -> list[Device]:
    """All GPUs of the catalogue, or those with `text` in their name or an alias, in catalogue order."""
    wanted = _key(text or "")
    return [
        _device(entry_id, fields)
        for entry_id, fields in _entries().items()
        if any(wanted in _key(name) for name in (entry_id, *fields["aliases"]))
    ]


def custom_device(memory: int | str, compute_capability: str | float | tuple[int, int]) -> Device:
    """A GPU described by its CUDA total and compute capability, for example ("24GiB", 8.9).

    What the user does not say (SMs, bandwidth) is that of the catalogue GPU of the same compute capability,
    or of the same generation, with the closest memory; `source` names it. Raises InputError for sizes or
    capabilities that no GPU has.
    """
    try:
        n_bytes = parse_size(memory) if isinstance(memory, str) else memory
    except ValueError as error:
        raise InputError(f"--gpu-memory: {error}") from None
    if not 1 << 30 <= n_bytes <= 1 << 43:
        raise InputError(f"--gpu-memory {memory} is outside 1GiB to 8TiB")
    capability = _capability(compute_capability)
    nearest = _nearest(capability, n_bytes)
    excess = 0 if nearest.integrated or nearest.vendor != "nvidia" else NVML_EXCESS
    return Device(
        name=f"{gib(n_bytes)} GPU, compute capability {capability[0]}.{capability[1]}",
        cuda_total_bytes=n_bytes,
        nvml_total_bytes=n_bytes + excess,
        compute_capability=capability,
        num_sms=nearest.num_sms,
        bandwidth_bytes_per_second=nearest.bandwidth_bytes_per_second,
        nvlink=False,
        integrated=nearest.integrated,
        vendor=nearest.vendor,
        source=f"--gpu-memory and --compute-capability; SMs and bandwidth as {nearest.name}",
        cuda_total_low_bytes=n_bytes,
        cuda_total_high_bytes=n_bytes,
        derived=True,
        power_watts=nearest.power_watts,
    )


def _device(entry_id: str, fields: dict[str, Any]) -> Device:
    values = {
        **fields,
        "compute_capability": tuple(fields["compute_capability"]),
        "aliases": tuple(fields["aliases"]),
    }
    return Device(name=entry_id, **values)


def _capability(value: str | float | tuple[int, int]) -> tuple[int, int]:
    if isinstance(value, tuple):
        capability = value
    else:
        match = re.fullmatch(r"\s*(\d{1,2})\.(\d)\s*", str(value), re.ASCII)
        if match is None:
            raise InputError(f"--compute-capability {value!r:.40} must look like 8.9 or 12.0")
        capability = (int(match[1]), int(match[2]))
    devices = list_devices()
    if not any(device.compute_capability[0] == capability[0] for device in devices):
        known = ", ".join(f"{a}.{b}" for a, b in sorted({device.compute_capability for device in devices}))
        raise InputError(
            f"--compute-capability {capability[0]}.{capability[1]} belongs to no known GPU; known: {known}"
        )
    return capability


def _nearest(capability: tuple[int, int], n_bytes: int) -> Device:
    """Same capability first, then same generation, then closest memory; slices never stand for a whole
    GPU."""
    whole = [device for device in list_devices() if "-MIG-" not in device.name]
    return min(
        (device for device in whole if device.compute_capability[0] == capability[0]),
        key=lambda device: (
            abs(device.compute_capability[1] - capability[1]),
            abs(device.cuda_total_bytes - n_bytes),
        ),
    )


@cache
def _names() -> dict[str, str]:
    """Every id and alias, folded, to its id. An id wins over an alias of another GPU."""
    names: dict[str, str] = {}
    for entry_id, fields in _entries().items():
        for alias in fields["aliases"]:
            names.setdefault(_key(alias), entry_id)
    for entry_id in _entries().ids():
        names[_key(entry_id)] = entry_id
    return names


def _key(name: str) -> str:
    """'NVIDIA GeForce RTX 4090', 'rtx-4090' and 'RTX4090' differ only in what this drops."""
    folded = re.sub(r"[\s_\-]+", "", name.casefold())
    return re.sub(r"^(nvidia|amd|tesla|geforce)+", "", folded)


def _suggest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(_key(name), _names(), n=6, cutoff=0.5) if len(name) <= 80 else []
    ids = list(dict.fromkeys(_names()[key] for key in close))[:3]
    hint = f"; did you mean {', '.join(ids)}?" if ids else ""
    return f"{hint} (`vllm-capacity gpus` lists all; or give --gpu-memory and --compute-capability)"
