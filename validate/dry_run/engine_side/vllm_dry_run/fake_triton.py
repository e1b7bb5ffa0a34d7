"""Triton without a GPU: kernels write into tensors that exist already, so a launch allocates nothing and is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def install(gpu: dict[str, Any]) -> None:
    try:
        import triton
    except ImportError:
        return
    import torch
    from triton.runtime import autotuner, driver, jit

    from .fake_cuda import properties

    props = properties(gpu)

    def launch(*_args: Any, **_kwargs: Any) -> None: ...

    jit.JITFunction.run = launch
    autotuner.Autotuner.run = launch
    autotuner.Heuristics.run = launch

    class Driver:
        utils = SimpleNamespace(
            get_device_properties=lambda _device: {
                "multiprocessor_count": props.multi_processor_count,
                "max_shared_mem": props.shared_memory_per_block_optin,
                "max_num_regs": props.regs_per_multiprocessor,
                "warpSize": 32,
                "sm_clock_rate": props.clock_rate,
                "mem_clock_rate": props.memory_clock_rate,
                "mem_bus_width": props.memory_bus_width,
            }
        )

        def is_active(self) -> bool:
            return True

        def get_current_target(self) -> Any:
            return triton.backends.compiler.GPUTarget("cuda", props.major * 10 + props.minor, 32)

        def get_current_device(self) -> int:
            return 0

        def set_current_device(self, _device: int) -> None: ...

        def get_current_stream(self, _device: Any = None) -> int:
            return 0

        def get_device_interface(self) -> Any:
            return torch.cuda

        def get_active_torch_device(self) -> Any:
            return torch.device("cuda", 0)

        def get_benchmarker(self) -> Any:
            return lambda *_args, **_kwargs: 0.0

        def get_empty_cache_for_benchmark(self) -> None: ...

    instance = Driver()
    driver._active = driver._default = instance
    if hasattr(driver, "set_active"):
        driver.set_active(instance)
