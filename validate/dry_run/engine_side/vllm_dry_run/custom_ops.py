"""Operators: vLLM's Python ones run their real body, compiled ones without a shape function get a stand-in.

vLLM registers many layers as operators (`torch.ops.vllm.*`) with an empty-result function for fake tensors. That function
would hide everything the layer allocates, so the body that was registered for the device is remembered and run instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BODIES: dict[str, Callable[..., Any]] = {}
"""Name -> Python body of `torch.ops.vllm.<name>`."""
NOT_ON_DEVICE = ("Meta", "Autograd", "CPU")


def remember_bodies() -> None:
    """Must run before vLLM is imported."""
    import torch.library as library

    register = library.Library.impl

    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **rest: Any) -> Any:
        if self.ns == "vllm" and dispatch_key not in NOT_ON_DEVICE:
            name = op_name if isinstance(op_name, str) else op_name._schema.name
            BODIES.setdefault(name.split("::")[-1].split(".")[0], fn)
        return register(self, op_name, fn, dispatch_key, **rest)

    library.Library.impl = impl


def grouped_topk(scores: Any, _n_group: int, _topk_group: int, topk: int, *_rest: Any, **_named: Any) -> Any:
    """csrc/moe/grouped_topk_kernels.cu returns (weights float32, indices int32), each [tokens, topk]."""
    import torch

    shape = (scores.shape[0], topk)
    return (
        torch.empty(shape, dtype=torch.float32, device="cuda:0"),
        torch.empty(shape, dtype=torch.int32, device="cuda:0"),
    )


STAND_INS: dict[str, Callable[..., Any]] = {"_moe_C.grouped_topk.default": grouped_topk}
"""Compiled operators that return new tensors and that torch has no shape function for."""


def marlin_experts(*args: Any) -> Any:
    """csrc/moe/marlin_moe_wna16/ops.cu: moe_wna16_marlin_gemm writes into the output that it is given; while it runs it
    holds the partial sums of at most four blocks for each multiprocessor, each of `moe_block_size` rows and 256 columns.
    """
    import torch

    rows, output, padded, block_size = args[0], args[1], args[11], args[15]
    size_m, top_k, size_n, atomic, exact_sums = args[19], args[16], args[20], args[23], args[24]
    if output is None:
        output = torch.empty((size_m * top_k, size_n), dtype=rows.dtype, device=rows.device)
    if exact_sums and not atomic:
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        sums = min(size_n * padded.shape[0], processors * 4 * block_size * 256)
        return output, (sums * (2 if block_size == 8 else 1),)
    return output, ()


INSTEAD: dict[str, Callable[..., Any]] = {"_moe_C.moe_wna16_marlin_gemm.default": marlin_experts}
"""Compiled operators whose shape function in vLLM 0.26.0 takes fewer arguments than they do: (output, elements of each
float32 scratch).
"""


def aliased_outputs(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """The arguments that an operator returns after writing into them; None if it returns anything else."""
    schema = func._schema
    bound = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
    outputs = []
    for returned in schema.returns:
        if returned.alias_info is None:
            return None
        for argument in schema.arguments:
            if argument.alias_info and argument.alias_info.before_set & returned.alias_info.before_set:
                outputs.append(bound[argument.name])
                break
        else:
            return None
    return outputs
