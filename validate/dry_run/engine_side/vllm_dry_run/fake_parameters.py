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

    def new(cls: Any, data: Any = None, requires_grad: bool = True, **_attributes: Any) -> Any:
        # the Transformers backend makes a parameter anew with all attributes of the old one
        kind = cls.__mro__[1] if issubclass(cls, FakeTensor) else cls
        if isinstance(data, torch.nn.Parameter) and isinstance(data, FakeTensor):
            data = data.detach()  # `module.to(...)` makes one of another, whose class detaching would lose
        made = make(kind, data, requires_grad)
        if isinstance(made, FakeTensor):
            made.__class__ = _both(kind)
        return made

    torch.nn.Parameter.__new__ = new
    _copies(new)
    _nothing_to_swap()
    _scales_with_values()


@cache
def _both(cls: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensor

    return type(cls.__name__, (cls, FakeTensor), {})


def _copies(new: Any) -> None:
    """Since 0.33.0 a kernel transforms a shallow copy of a parameter, which is made as a subclass of its data
    (kernels/linear/mixed_precision/MPLinearKernel.py: _shallow_copy).
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    make = torch.Tensor._make_subclass

    def make_subclass(cls: Any, data: Any, require_grad: bool = False, **more: Any) -> Any:
        if isinstance(data, FakeTensor) and issubclass(cls, torch.nn.Parameter):
            return new(cls, data.detach(), require_grad)
        return make(cls, data, require_grad, **more)

    torch.Tensor._make_subclass = make_subclass


def _nothing_to_swap() -> None:
    """`module.to(...)` swaps a parameter without storage for the converted one, which fails where something refers to it
    weakly; one that was right already needs no swap (torch/nn/modules/module.py: Module._apply).
    """
    import torch

    swap = torch.utils.swap_tensors

    def swap_converted(one: Any, other: Any) -> None:
        if one.untyped_storage()._cdata != other.untyped_storage()._cdata:
            swap(one, other)

    torch.utils.swap_tensors = swap_converted


def _scales_with_values() -> None:
    """Scales of a quantised KV cache say -1 until a checkpoint sets them, and loading asks whether one did
    (layers/quantization/kv_cache.py): the one value that is known without a checkpoint.
    """
    try:
        from vllm.model_executor.layers.quantization.kv_cache import KVCacheScaleParameter
    except ImportError:
        return
    make = KVCacheScaleParameter.__new__

    def new(cls: Any) -> Any:
        made = make(cls)
        made.known_value = -1.0
        return made

    KVCacheScaleParameter.__new__ = new
