"""NVML, answering as the chosen GPU: put in place before vLLM's first import, which asks it what the platform is."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from types import SimpleNamespace
from typing import Any


def install(gpu: dict[str, Any], device_count: int) -> None:
    """Loads vLLM's bundled pynvml under its own name and replaces its calls."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    folder = os.path.join(os.path.dirname(spec.origin), "third_party")
    package = types.ModuleType("vllm.third_party")
    package.__path__ = [folder]
    package.__package__ = "vllm.third_party"
    name = "vllm.third_party.pynvml"
    nvml_spec = importlib.util.spec_from_file_location(name, os.path.join(folder, "pynvml.py"))
    assert nvml_spec is not None
    assert nvml_spec.loader is not None
    nvml = importlib.util.module_from_spec(nvml_spec)
    sys.modules["vllm.third_party"] = package
    sys.modules[name] = nvml
    nvml_spec.loader.exec_module(nvml)
    vars(package)["pynvml"] = nvml
    total = gpu["nvml_total_bytes"]
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: device_count,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": lambda _uuid: 0,
        "nvmlDeviceGetIndex": lambda handle: handle,
        "nvmlDeviceGetCudaComputeCapability": lambda _handle: tuple(gpu["compute_capability"]),
        "nvmlDeviceGetName": lambda _handle: gpu["product_name"],
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetMemoryInfo": lambda _handle: SimpleNamespace(total=total, free=total, used=0),
        "nvmlDeviceGetP2PStatus": lambda _a, _b, _kind: nvml.NVML_P2P_STATUS_OK,
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:{handle:02x}:00.0"),
        "nvmlSystemGetDriverVersion": lambda: "580.95.05",
        "nvmlDeviceGetNumaNodeId": lambda _handle: 0,
    }
    for function, answer in answers.items():
        setattr(nvml, function, answer)
