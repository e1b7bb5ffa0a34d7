"""Parameters that stay what vLLM made them.

`torch.nn.Parameter(data)` keeps its own class only for plain tensors; for a tensor without storage it returns that tensor
with a flag. vLLM's parameter classes would lose their methods and `isinstance` checks, so such a parameter gets a class that
is both.
"""

from __future__ import annotations

from functools import cache
from typing import Any


def install() -> None:
    """After `import vllm`."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    make = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        made = make(cls, data, requires_grad)
        if isinstance(made, FakeTensor) and cls is not torch.nn.Parameter:
            made.__class__ = _both(cls)
        return made

    torch.nn.Parameter.__new__ = new
    _scales_with_values()


@cache
def _both(cls: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensor

    return type(cls.__name__, (FakeTensor, cls), {})


def _scales_with_values() -> None:
    """Scales of a quantised KV cache say -1 until a checkpoint sets them, and loading asks. They are dropped afterwards,
    so real ones on the host change nothing that stays (layers/quantization/kv_cache.py).
    """
    try:
        from vllm.model_executor.layers.quantization.kv_cache import KVCacheScaleParameter
    except ImportError:
        return
    import torch

    def new(cls: Any) -> Any:
        value = torch.tensor(-1.0, device="cpu")
        return torch.Tensor._make_subclass(cls, value, False)

    KVCacheScaleParameter.__new__ = new
