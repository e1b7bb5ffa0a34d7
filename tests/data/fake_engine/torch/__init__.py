"""As much of torch as the probe touches; memory figures come from the tape's current stage."""

from __future__ import annotations

from types import SimpleNamespace

FRAME = {"filename": "/a/b/c/d.py", "line": 7, "name": "f"}
TRACE = [
    {"action": "alloc", "addr": 1, "size": 1000, "frames": []},
    {"action": "alloc", "addr": 2, "size": 4096, "frames": [FRAME]},
    {"action": "free_requested", "addr": 1, "size": 1000},
    {"action": "free_completed", "addr": 1, "size": 1000},
    {"action": "alloc", "addr": 3, "size": 512, "frames": []},
]
STATE: dict = {"figures": {}, "traces": [TRACE] * 8}


class Tensor:
    is_cuda = True

    def __init__(self, n_bytes, pointer):
        self.n_bytes, self.pointer = n_bytes, pointer
        self.shape, self.dtype, self.device = (n_bytes,), "torch.uint8", SimpleNamespace(type="cuda")

    def data_ptr(self):
        return self.pointer

    def numel(self):
        return self.n_bytes

    def element_size(self):
        return 1

    def untyped_storage(self):
        return SimpleNamespace(data_ptr=lambda: self.pointer, nbytes=lambda: self.n_bytes)


def device(*parts):
    if len(parts) == 1 and not isinstance(parts[0], str):
        return parts[0]
    return SimpleNamespace(type="cuda", index=parts[1] if len(parts) > 1 else 0)


def _stats(_device=None):
    figures = STATE["figures"]
    return {
        "allocated_bytes.all.current": figures.get("allocated", 0),
        "allocated_bytes.all.peak": figures.get("torch_peak", 0),
        "reserved_bytes.all.current": figures.get("torch_memory", 0),
        "reserved_bytes.all.peak": figures.get("reserved_peak", 0),
    }


cuda = SimpleNamespace(
    memory_stats=_stats,
    mem_get_info=lambda _device=None: (STATE["figures"]["free_memory"], STATE["figures"]["total_memory"]),
    current_device=lambda: 0,
    reset_peak_memory_stats=lambda _device=None: None,
    get_device_properties=lambda _device: SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132
    ),
    nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
    memory=SimpleNamespace(
        _record_memory_history=lambda *a, **k: None, _snapshot=lambda: {"device_traces": STATE["traces"]}
    ),
)
version = SimpleNamespace(cuda="13.0")
