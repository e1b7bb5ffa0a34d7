"""vllm-capacity: will this model start under vLLM on these GPUs, how much KV cache, and where does every byte go?

from vllm_capacity import plan

answer = plan("Qwen/Qwen3-30B-A3B", gpu="H100-80GB", tensor_parallel_size=2)
answer.starts, answer.kv_cache.size_tokens
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_capacity._version import __version__

if TYPE_CHECKING:
    from vllm_capacity.answer import Plan, RefusedPlan, Status
    from vllm_capacity.api import plan
    from vllm_capacity.errors import CapacityError, InputError, Reason

__all__ = ["CapacityError", "InputError", "Plan", "Reason", "RefusedPlan", "Status", "__version__", "plan"]

_HOMES = {
    "plan": "vllm_capacity.api",
    "CapacityError": "vllm_capacity.errors",
    "InputError": "vllm_capacity.errors",
    "Reason": "vllm_capacity.errors",
    "Plan": "vllm_capacity.answer",
    "RefusedPlan": "vllm_capacity.answer",
    "Status": "vllm_capacity.answer",
}


def __getattr__(name: str) -> Any:
    """Imports on first use, so that `import vllm_capacity` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
