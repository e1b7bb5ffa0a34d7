"""PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF): what of it changes how many bytes tensors take.

Source: c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp, parseArgs (torch 2.10 to 2.14).
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.units import MIB

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The first that is set wins."""

_NO_EFFECT = frozenset({
    "garbage_collection_threshold", "pinned_use_cuda_host_register", "pinned_num_register_threads",
    "pinned_use_background_threads", "pinned_reserve_segment_size_mb", "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc", "graph_capture_record_stream_reuse", "use_uuid",
})  # fmt: skip
"""Host memory, or when cached blocks are given back: the same tensors take the same blocks."""


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """`max_split` in bytes (None: no limit). With `expandable` segments grow in place and blocks are cut to 512 bytes."""

    max_split: int | None = None
    expandable: bool = False


def allocator_settings(environment: Mapping[str, str]) -> AllocatorSettings:
    """The settings in force. Raises InputError for one that changes memory and is not modelled."""
    name = next((name for name in VARIABLES if environment.get(name)), None)
    if name is None:
        return AllocatorSettings()
    max_split, expandable = None, False
    for part in environment[name].split(","):
        key, _, value = (piece.strip() for piece in part.partition(":"))
        if key == "max_split_size_mb":
            if not value.isdecimal() or int(value) <= 20:
                raise InputError(f"{name}: max_split_size_mb must be a number above 20, not {value!r:.20}")
            max_split = int(value) * MIB
        elif key == "expandable_segments":
            if value not in ("True", "False"):
                raise InputError(f"{name}: expandable_segments must be True or False, not {value!r:.20}")
            expandable = value == "True"
        elif key == "backend" and value == "native":
            continue
        elif key and key not in _NO_EFFECT:
            raise InputError(
                f"{name}: {part.strip()!r:.60} changes memory in a way that is not modelled; leave it out"
            )
    return AllocatorSettings(max_split, expandable)
