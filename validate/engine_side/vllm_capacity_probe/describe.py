"""What a worker holds: parameters, KV cache, workspaces, buffers, versions, settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

_INDEX = re.compile(r"\.\d+(?=\.|$)")


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def tensor_groups(named: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Tensors by name with indices as N: name, shape, dtype, device, count, bytes."""
    groups: dict[tuple[str, tuple[int, ...], str, str], int] = {}
    for name, tensor in named:
        key = (
            _INDEX.sub(".N", name),
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            tensor.device.type,
        )
        groups[key] = groups.get(key, 0) + _bytes(tensor)
    counted: dict[tuple[str, tuple[int, ...], str, str], int] = {}
    for name, tensor in named:
        key = (
            _INDEX.sub(".N", name),
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            tensor.device.type,
        )
        counted[key] = counted.get(key, 0) + 1
    return [
        {
            "name": name,
            "shape": list(shape),
            "dtype": dtype,
            "device": device,
            "count": counted[name, shape, dtype, device],
            "bytes": n_bytes,
        }
        for (name, shape, dtype, device), n_bytes in groups.items()
    ]


def model(module: Any) -> dict[str, Any]:
    """Parameters, buffers and other CUDA tensors that hang on the model's modules."""
    import torch

    parameters = list(module.named_parameters())
    buffers = list(module.named_buffers())
    known = {t.data_ptr() for _, t in parameters + buffers}
    attributes = []
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) and value.is_cuda and value.data_ptr() not in known:
                known.add(value.data_ptr())
                attributes.append((f"{path}.{name}", value))
    return {
        "parameter_bytes": sum(_bytes(t) for _, t in parameters),
        "buffer_bytes": sum(_bytes(t) for _, t in buffers),
        "attribute_bytes": sum(_bytes(t) for _, t in attributes),
        "parameters": tensor_groups(parameters),
        "buffers": tensor_groups(buffers),
        "attributes": tensor_groups(attributes),
    }


def kv_cache(config: Any) -> dict[str, Any]:
    """vLLM's `KVCacheConfig` of this rank: blocks, groups with their specs, tensors as [bytes, how many]."""
    groups = []
    for group in getattr(config, "kv_cache_groups", ()):
        spec = group.kv_cache_spec
        groups.append(
            {
                "layers": len(group.layer_names),
                "first_layer": group.layer_names[0] if group.layer_names else None,
                "spec": type(spec).__name__,
                "block_size": getattr(spec, "block_size", None),
                "page_size_bytes": getattr(spec, "page_size_bytes", None),
                "fields": str(spec)[:600],
            }
        )
    sizes: dict[int, int] = {}
    for tensor in getattr(config, "kv_cache_tensors", ()):
        sizes[int(tensor.size)] = sizes.get(int(tensor.size), 0) + 1
    return {
        "num_blocks": int(config.num_blocks),
        "groups": groups,
        "tensors": [list(item) for item in sizes.items()],
    }


def workspaces() -> list[int]:
    """Bytes of each workspace buffer (vllm/v1/worker/workspace.py); empty when there is none."""
    from vllm.v1.worker import workspace

    manager = workspace._manager
    if manager is None:
        return []
    buffers = getattr(manager, "_current_workspaces", ())
    return [0 if buffer is None else _bytes(buffer) for buffer in buffers]


def held_tensors(owner: Any, skip: frozenset[str], depth: int = 3) -> dict[str, int]:
    """Bytes of CUDA tensors reachable from an object's attributes, by attribute path; each storage is counted
    once.
    """
    import torch

    seen_storage: set[int] = set()
    seen_objects: set[int] = {id(owner)}
    found: dict[str, int] = {}

    def visit(value: Any, path: str, left: int) -> None:
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                storage = value.untyped_storage()
                if storage.data_ptr() not in seen_storage:
                    seen_storage.add(storage.data_ptr())
                    found[path] = found.get(path, 0) + int(storage.nbytes())
            return
        if left == 0 or id(value) in seen_objects:
            return
        seen_objects.add(id(value))
        for name, part in _parts(value):
            if name not in skip:
                visit(part, f"{path}.{name}" if path else name, left - 1)

    for name, value in _parts(owner):
        if name not in skip:
            visit(value, name, depth)
    return dict(sorted(found.items(), key=lambda item: -item[1])[:60])


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of vLLM's own objects and items of plain containers; nothing else is entered."""
    if isinstance(value, dict):
        yield from ((str(k), v) for k, v in list(value.items())[:64])
    elif isinstance(value, (list, tuple)):
        yield from (("N", v) for v in value[:64])
    elif (type(value).__module__ or "").startswith("vllm.") and hasattr(value, "__dict__"):
        yield from list(vars(value).items())


RUNNER_SKIP = frozenset(
    {
        "model",
        "vllm_config",
        "kv_caches",
        "kv_cache_config",
        "compilation_config",
        "model_config",
        "cache_config",
        "speculative_config",
        "parallel_config",
        "scheduler_config",
        "lora_config",
    }
)


def attention_backends(vllm_config: Any) -> dict[str, int]:
    """How many layers use which attention or state-space backend."""
    counts: dict[str, int] = {}
    for layer in vllm_config.compilation_config.static_forward_context.values():
        backend = layer.get_attn_backend() if hasattr(layer, "get_attn_backend") else None
        if backend is not None:
            counts[backend.get_name()] = counts.get(backend.get_name(), 0) + 1
    return counts


def settings(vllm_config: Any) -> dict[str, Any]:
    """The resolved configuration that decides memory; absent settings are left out."""
    parts = {
        "model_config": ("max_model_len", "dtype", "quantization", "enforce_eager", "runner_type"),
        "cache_config": (
            "block_size",
            "gpu_memory_utilization",
            "cache_dtype",
            "kv_cache_memory_bytes",
            "enable_prefix_caching",
            "num_gpu_blocks_override",
            "mamba_block_size",
            "mamba_cache_mode",
            "mamba_page_size_padded",
            "cpu_offload_gb",
        ),
        "scheduler_config": (
            "max_num_batched_tokens",
            "max_num_seqs",
            "enable_chunked_prefill",
            "async_scheduling",
            "disable_hybrid_kv_cache_manager",
        ),
        "parallel_config": (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "world_size",
            "enable_expert_parallel",
            "disable_custom_all_reduce",
            "distributed_executor_backend",
            "decode_context_parallel_size",
        ),
        "compilation_config": (
            "mode",
            "cudagraph_mode",
            "cudagraph_capture_sizes",
            "compile_ranges_endpoints",
        ),
    }
    found: dict[str, Any] = {}
    for part, names in parts.items():
        config = getattr(vllm_config, part, None)
        for name in names:
            if hasattr(config, name):
                found[name] = _plain(getattr(config, name))
    found["use_v2_model_runner"] = _plain(getattr(vllm_config, "use_v2_model_runner", None))
    passes = getattr(vllm_config.compilation_config, "pass_config", None)
    if passes is not None:
        found["pass_config"] = {
            k: _plain(v) for k, v in vars(passes).items() if isinstance(v, (bool, int, str))
        }
    return found


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return getattr(value, "name", value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return getattr(value, "name", None) or str(value).removeprefix("torch.")


def versions() -> dict[str, str | None]:
    """Versions of the engine and of the libraries that allocate memory."""
    import platform
    from importlib import metadata

    import torch

    found: dict[str, str | None] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in ("vllm", "torch", "transformers", "triton", "flashinfer-python"):
        try:
            found[package.removesuffix("-python")] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package.removesuffix("-python")] = None
    try:
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError):
        found["nccl"] = None
    return found


def device(which: Any) -> dict[str, Any]:
    """The GPU as CUDA describes it."""
    import torch

    properties = torch.cuda.get_device_properties(which)
    return {
        "name": properties.name,
        "compute_capability": [properties.major, properties.minor],
        "num_sms": properties.multi_processor_count,
        "cuda_total_bytes": torch.cuda.mem_get_info(which)[1],
    }
