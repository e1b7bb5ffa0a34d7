"""The GPU of this machine, asked through the CUDA driver itself (libcuda), without torch and without NVML
alone.

Only calls that need no CUDA context are made, so that asking takes no GPU memory: cuDeviceTotalMem gives the
total that cudaMemGetInfo reports. How much of it is free needs a context (cuMemGetInfo); NVML's used bytes
stand for it where its library is there, else the whole GPU counts as free. The questions run in a child
process with a time limit, as a driver in a bad state can hang.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_capacity.device import Device
from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.gpus import NVML_EXCESS, find_device

TIMEOUT_S = 5.0

_DEVICE_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-gpu")
"""What a CUDA driver leaves in /dev: desktop and data centre, WSL2, Tegra."""

_SM_COUNT, _MAJOR, _MINOR, _INTEGRATED = 16, 75, 76, 18
"""CUdevice_attribute values (cuda.h): MULTIPROCESSOR_COUNT, COMPUTE_CAPABILITY_MAJOR/MINOR, INTEGRATED."""


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """The first visible GPU of this machine and, where NVML knows it, how many bytes others use."""

    device: Device
    used_bytes: int | None
    count: int


def local_device() -> Device | None:
    """The first visible CUDA GPU, or None without a driver, without a GPU or when the driver does not
    answer."""
    found = probe()
    return found.device if found else None


def probe() -> LocalDevice | None:
    """`local_device` with the bytes in use and the number of visible GPUs."""
    if not _driver_present():
        return None
    import subprocess

    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-c", _QUESTION],  # -I: no module of the current folder is imported
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        facts = json.loads(answer.stdout) if answer.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    return _describe(facts) if facts else None


def _driver_present() -> bool:
    """Cheap look for libcuda, so that machines without a GPU start no child process."""
    return sys.platform == "win32" or any(Path(node).exists() for node in _DEVICE_NODES)


def _describe(facts: dict[str, Any]) -> LocalDevice:
    total, nvml_total = int(facts["total"]), facts.get("nvml_total")
    integrated = bool(facts["integrated"])
    device = Device(
        name=str(facts["name"]),
        cuda_total_bytes=total,
        nvml_total_bytes=int(nvml_total) if nvml_total else total + (0 if integrated else NVML_EXCESS),
        compute_capability=(int(facts["major"]), int(facts["minor"])),
        num_sms=int(facts["sms"]),
        integrated=integrated,
        source="this machine's CUDA driver" + (" and NVML" if nvml_total else ""),
        cuda_total_low_bytes=total,
        cuda_total_high_bytes=total,
        derived=not nvml_total,
    )
    try:
        known = find_device(device.name)
    except InputError:
        known = None
    if known is not None:
        device = replace(
            device,
            bandwidth_bytes_per_second=known.bandwidth_bytes_per_second,
            nvlink=known.nvlink,
            power_watts=known.power_watts,
            aliases=(known.name,),
        )
    used = facts.get("nvml_used")
    return LocalDevice(device, int(used) if used is not None else None, int(facts["count"]))


_QUESTION = f"""
import ctypes, json, sys
def load(*names):
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    sys.exit(1)
cuda = load("libcuda.so.1", "libcuda.so", "nvcuda.dll")
def ask(result):
    if result != 0:
        sys.exit(1)
ask(cuda.cuInit(0))
count, device, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
ask(cuda.cuDeviceGetCount(ctypes.byref(count)))
if count.value < 1:
    sys.exit(1)
ask(cuda.cuDeviceGet(ctypes.byref(device), 0))
name, total = ctypes.create_string_buffer(256), ctypes.c_size_t()
ask(cuda.cuDeviceGetName(name, 256, device))
ask(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device))
facts = {{"name": name.value.decode(errors="replace"), "total": total.value, "count": count.value}}
attributes = {{"sms": {_SM_COUNT}, "major": {_MAJOR}, "minor": {_MINOR}, "integrated": {_INTEGRATED}}}
for key, attribute in attributes.items():
    ask(cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device))
    facts[key] = value.value
uuid = (ctypes.c_ubyte * 16)()
try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    ask(cuda.cuDeviceGetUuid(ctypes.byref(uuid), device))
    h = bytes(uuid).hex()
    text = "GPU-%s-%s-%s-%s-%s" % (h[:8], h[8:12], h[12:16], h[16:20], h[20:])
    memory, handle = (ctypes.c_ulonglong * 3)(), ctypes.c_void_p()
    if (
        nvml.nvmlInit_v2() == 0
        and nvml.nvmlDeviceGetHandleByUUID(text.encode(), ctypes.byref(handle)) == 0
        and nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    ):
        facts["nvml_total"], facts["nvml_used"] = memory[0], memory[2]
except (OSError, AttributeError):
    pass
print(json.dumps(facts))
"""
