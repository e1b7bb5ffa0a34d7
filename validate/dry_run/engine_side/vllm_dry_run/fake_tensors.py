"""A dispatch mode under which cuda tensors have no storage while cpu tensors are real.

The model runners fill numpy views of cpu tensors and copy them to the device, so cpu tensors must hold values. Copies over
the bus are cut: host to device gives a tensor without storage, device to host gives zeros and is noted.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from . import custom_ops
from .tensor_ledger import TensorLedger, source_line

aten = torch.ops.aten
PINNING = {aten.pin_memory.default, aten._pin_memory.default, aten.is_pinned.default}
SCALAR_READS = {aten._local_scalar_dense.default, aten.item.default}
COMPARISONS = {aten.lt.Scalar: operator.lt, aten.gt.Scalar: operator.gt}
"""Where a tensor's value is known (fake_parameters.py), so is the answer."""
NO_SHAPE = (
    UnsupportedOperatorException,
    NotImplementedError,
    DataDependentOutputException,
    DynamicOutputShapeException,
    RuntimeError,
)


class _DeviceFakes(FakeTensorMode):  # type: ignore[misc]
    avoid_device_init = property(lambda self: True)


class DeviceWithoutStorage(TorchDispatchMode):  # type: ignore[misc]
    """Fakes what lives on the device and tells the ledger of it."""

    def __init__(self, ledger: TensorLedger) -> None:
        super().__init__()
        self.fakes = _DeviceFakes(allow_non_fake_inputs=True)
        self.ledger = ledger
        self._lift: list[bool] = []

    def __enter__(self) -> Any:
        # torch.tensor(values, device="cuda") builds a cpu tensor first; only with this does its copy pass through the mode
        self._lift.append(torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *exc: Any) -> Any:
        torch._C._set_only_lift_cpu_tensors(self._lift.pop())
        return super().__exit__(*exc)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        leaves = pytree.tree_leaves((args, kwargs))
        fake = any(isinstance(leaf, FakeTensor) for leaf in leaves)
        device = kwargs.get("device")
        if device is None:
            device = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
        to_device = device is not None and torch.device(device).type == "cuda"
        if fake and kwargs.get("generator") is not None:
            kwargs["generator"] = None
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if "cuda_view_from_cpu_tensor" in str(func):
            # the device's view of host memory takes nothing on the device
            with self.fakes:
                return torch.empty_strided(
                    args[0].shape, args[0].stride(), dtype=args[0].dtype, device="cuda:0"
                )
        if func in PINNING:
            return True if func is aten.is_pinned.default else args[0]
        if not fake and not to_device:
            return func(*args, **kwargs)
        self.ledger.operations += 1
        if func.namespace == "vllm":
            name = func._schema.name.split("::")[-1]
            body = custom_ops.BODIES.get(name)
            if body is not None:
                with self:
                    return body(*args, **kwargs)
            self.ledger.imitated[f"vllm.{name}"] += 1
        converts = func is aten._to_copy.default or func.overloadpacket is aten.to
        if converts and fake and device is not None and not to_device:
            return self._to_host(args[0], device, _dtype(kwargs, leaves))
        if func is aten.copy_.default and not isinstance(args[0], FakeTensor):
            self.ledger.copies[source_line()] += 1
            return args[0]
        if func in SCALAR_READS:
            known = getattr(args[0], "known_value", None)
            if known is not None:
                return known
            self.ledger.reads[source_line()] += 1
            dtype = args[0].dtype
            return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0
        if func in (aten.equal.default, aten.allclose.default, aten.is_nonzero.default):
            self.ledger.reads[source_line()] += 1
            return func is not aten.is_nonzero.default
        if converts and not fake:
            with self.fakes:
                moved = torch.empty_strided(
                    args[0].shape,
                    args[0].stride(),
                    dtype=_dtype(kwargs, leaves) or args[0].dtype,
                    device="cuda:0",
                )
            return self._count(moved, func)
        if func.namespace == "_moe_C" and str(func) in custom_ops.INSTEAD:
            return self._instead(func, args)
        try:
            with self.fakes:
                output = func(*args, **kwargs)
            if func in COMPARISONS and hasattr(args[0], "known_value"):
                output.known_value = COMPARISONS[func](args[0].known_value, args[1])
        except NO_SHAPE as error:
            output = self._without_shape(func, args, kwargs, error)
        return self._count(output, func)

    def _count(self, output: Any, func: Any) -> Any:
        for leaf in pytree.tree_leaves(output):
            if isinstance(leaf, FakeTensor) and leaf.fake_device.type == "cuda":
                leaf.constant = None
                self.ledger.add(leaf.untyped_storage(), str(func))
        return output

    def _instead(self, func: Any, args: Any) -> Any:
        with self.fakes:
            output, scratch = custom_ops.INSTEAD[str(func)](*args)
            held = [torch.empty(n, dtype=torch.float32, device="cuda:0") for n in scratch]
        self.ledger.imitated[str(func)] += 1
        self._count(held, func)
        return self._count(output, func)

    def _to_host(self, source: Any, device: Any, dtype: Any) -> Any:
        kind = torch.device(device).type
        if kind == source.fake_device.type:
            return source if dtype in (None, source.dtype) else source.to(dtype)
        if kind == "meta":
            return torch.empty_strided(
                source.shape, source.stride(), dtype=dtype or source.dtype, device="meta"
            )
        self.ledger.copies[source_line()] += 1
        return torch.zeros(source.shape, dtype=dtype or source.dtype)

    def _without_shape(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        """An operator that torch cannot follow without values."""
        name = str(func)
        if func is aten.nonzero.default:
            self.ledger.reads[source_line()] += 1
            with self.fakes:
                return torch.empty((0, args[0].dim()), dtype=torch.int64, device="cuda")
        if func is aten._unique2.default:
            # all values are zero
            self.ledger.reads[source_line()] += 1
            with self.fakes:
                one = torch.empty((1,), dtype=args[0].dtype, device="cuda")
                return one, *(torch.empty((0,), dtype=torch.int64, device="cuda") for _ in range(2))
        if func.namespace in ("aten", "prims"):
            raise error
        if not func._schema.returns:
            self.ledger.skipped[name] += 1
            return None
        outputs = custom_ops.aliased_outputs(func, args, kwargs)
        if outputs is not None:
            self.ledger.skipped[name] += 1
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        stand_in = custom_ops.STAND_INS.get(name)
        if stand_in is None:
            raise NotImplementedError(
                f"operator {name} has no shape function and no stand-in in this dry-run ({func._schema})"
            ) from error
        self.ledger.imitated[name] += 1
        with self.fakes:
            return stand_in(*args, **kwargs)


def _dtype(kwargs: dict[str, Any], leaves: list[Any]) -> Any:
    return kwargs.get("dtype") or next((leaf for leaf in leaves if isinstance(leaf, torch.dtype)), None)
