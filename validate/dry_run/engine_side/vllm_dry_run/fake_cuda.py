"""torch.cuda and torch.accelerator, answering as one kind of GPU that is not there."""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace
from typing import Any

SHARED_MEMORY_OPTIN = {70: 98304, 75: 65536, 80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448,
                       103: 232448, 110: 232448, 120: 101376, 121: 101376}  # fmt: skip
"""Most shared memory of a block in bytes, by compute capability: CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability".
"""


class Stream:
    """A stream on which everything is already done."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        import torch

        self.device = torch.device("cuda:0")
        self.cuda_stream = self.stream_id = self.device_index = 0
        self.device_type = 1

    def wait_stream(self, *_args: Any) -> None: ...
    def wait_event(self, *_args: Any) -> None: ...
    def synchronize(self) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_exc: object) -> None: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return 0


class Event:
    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.cuda_event = 0

    def record(self, *_args: Any) -> None: ...
    def wait(self, *_args: Any) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, *_args: Any) -> float:
        return 0.0


def nothing() -> Any:
    """A new function that does nothing. One each: Dynamo keeps a rule per object and refuses one under two names."""

    def do_nothing(*_args: Any, **_kwargs: Any) -> None: ...

    return do_nothing


def load_stub(path: str) -> None:
    """Puts the stub's symbols ahead of every library that is loaded later."""
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def properties(gpu: dict[str, Any]) -> SimpleNamespace:
    """What torch.cuda.get_device_properties gives; only fields that vLLM or its libraries read."""
    major, minor = gpu["compute_capability"]
    optin = SHARED_MEMORY_OPTIN.get(major * 10 + minor, 101376)
    return SimpleNamespace(
        name=gpu["product_name"], major=major, minor=minor, total_memory=gpu["cuda_total_bytes"],
        multi_processor_count=gpu["num_sms"], is_integrated=int(gpu.get("integrated", False)), is_multi_gpu_board=0,
        max_threads_per_multi_processor=2048 if major != 8 or minor == 0 else 1536, warp_size=32,
        regs_per_multiprocessor=65536, shared_memory_per_block=49152, shared_memory_per_block_optin=optin,
        shared_memory_per_multiprocessor=optin + 1024, L2_cache_size=50 << 20, uuid="GPU-0", gcnArchName="",
        pci_bus_id=0, pci_device_id=0, pci_domain_id=0, clock_rate=1980000, memory_clock_rate=2619000,
        memory_bus_width=5120, max_threads_per_block=1024,
    )  # fmt: skip


def install(gpu: dict[str, Any], device_count: int, ledger: Any) -> None:
    """Replaces what vLLM asks of the device; memory questions are answered by the ledger."""
    import torch
    import torch.cuda.random as cuda_random

    capability = tuple(gpu["compute_capability"])
    props = properties(gpu)
    stream = Stream()
    total = gpu["cuda_total_bytes"]

    def memory_info(_device: Any = None) -> tuple[int, int]:
        return total - ledger.current, total

    def memory_stats(_device: Any = None) -> dict[str, int]:
        return {
            "allocated_bytes.all.peak": ledger.peak,
            "allocated_bytes.all.current": ledger.current,
            "reserved_bytes.all.current": ledger.current,
        }

    def shared() -> dict[str, Any]:
        return {
            "is_available": lambda: True,
            "device_count": lambda: device_count,
            "synchronize": nothing(),
            "empty_cache": nothing(),
            "current_stream": lambda _device=None: stream,
            "set_stream": nothing(),
            "memory_stats": memory_stats,
            "memory_allocated": lambda _device=None: ledger.current,
            "max_memory_allocated": lambda _device=None: ledger.peak,
            "memory_reserved": lambda _device=None: ledger.current,
            "reset_peak_memory_stats": lambda _device=None: ledger.reset_peak(),
        }

    cuda_only = {
        "_lazy_init": nothing(),
        "_exchange_device": lambda _device: 0,
        "_maybe_exchange_device": lambda _device: 0,
        "_device_count_nvml": lambda: device_count,
        "current_device": lambda: 0,
        "set_device": nothing(),
        "get_device_capability": lambda _device=None: capability,
        "get_device_properties": lambda _device=None: props,
        "get_device_name": lambda _device=None: gpu["product_name"],
        "get_arch_list": lambda: [f"sm_{capability[0]}{capability[1]}"],
        "ipc_collect": nothing(),
        "mem_get_info": memory_info,
        "manual_seed": nothing(),
        "manual_seed_all": nothing(),
        "default_stream": lambda _device=None: stream,
        "stream": lambda _stream: contextlib.nullcontext(),
        "Stream": Stream,
        "Event": Event,
        "is_bf16_supported": lambda *_args, **_kwargs: capability[0] >= 8,
        "graph_pool_handle": lambda: (0, 0),
        "is_current_stream_capturing": lambda: False,
        "default_generators": tuple(torch.Generator() for _ in range(16)),
    }
    accelerator_only = {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": nothing(),
        "set_device_idx": nothing(),
        "get_memory_info": memory_info,
    }
    for name, value in {**shared(), **cuda_only}.items():
        setattr(torch.cuda, name, value)
    for name, value in {**shared(), **accelerator_only}.items():
        setattr(torch.accelerator, name, value)
    for module in (torch.cuda, cuda_random):
        module._lazy_init = nothing()
        module.get_rng_state = lambda _device="cuda": torch.zeros(16, dtype=torch.uint8)
        module.set_rng_state = nothing()
        module.get_rng_state_all = lambda: []
    torch.Event, torch.Stream = Event, Stream
    torch._C._accelerator_setAllocatorSettings = nothing()
    import torch._subclasses.fake_tensor as fake_tensor

    fake_tensor.init_gpu_context = nothing()
    _complete_cuda_bindings()


def _complete_cuda_bindings() -> None:
    """nvidia-cutlass-dsl names types at import that some versions of cuda-bindings lack; nothing uses them here."""
    try:
        import cuda.bindings.runtime as runtime
    except ImportError:
        return
    for name in ("cudaLibrary_t", "cudaKernel_t"):
        if not hasattr(runtime, name):
            setattr(runtime, name, type(name, (), {}))
