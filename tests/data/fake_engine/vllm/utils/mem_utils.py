"""`MemorySnapshot`, `memory_profiling`, `DeviceMemoryProfiler` with the fields and order of vLLM 0.26.0."""

from __future__ import annotations

import time
from contextlib import contextmanager

import torch


class MemorySnapshot:
    def __init__(self, device=None, auto_measure=True):
        self.device_ = device
        self.torch_peak = self.free_memory = self.total_memory = 0
        self.cuda_memory = self.torch_memory = self.non_torch_memory = 0
        self.timestamp = 0.0
        if auto_measure:
            self.measure()

    def measure(self):
        self.torch_peak = torch.cuda.memory_stats(self.device_)["allocated_bytes.all.peak"]
        self.free_memory, self.total_memory = torch.cuda.mem_get_info(self.device_)
        self.cuda_memory = self.total_memory - self.free_memory
        self.torch_memory = torch.cuda.memory_stats(self.device_)["reserved_bytes.all.current"]
        self.non_torch_memory = self.cuda_memory - self.torch_memory
        self.timestamp = time.time()


class MemoryProfilingResult:
    def __init__(self, before_create, weights_memory):
        self.before_create, self.weights_memory = before_create, weights_memory
        self.non_kv_cache_memory = self.torch_peak_increase = self.non_torch_increase = 0
        self.profile_time = 0.0
        self.before_profile = MemorySnapshot(before_create.device_)
        self.after_profile = MemorySnapshot(before_create.device_, auto_measure=False)


@contextmanager
def memory_profiling(baseline_snapshot, weights_memory=0):
    result = MemoryProfilingResult(baseline_snapshot, weights_memory)
    yield result
    result.after_profile.measure()
    result.torch_peak_increase = result.after_profile.torch_peak - result.before_profile.torch_peak
    result.non_torch_increase = result.after_profile.non_torch_memory - result.before_create.non_torch_memory


class DeviceMemoryProfiler:
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None
