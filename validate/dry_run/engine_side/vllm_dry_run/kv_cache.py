"""KV cache: specs of a rank's layers, and vLLM's own planner over all stages."""

from __future__ import annotations

import importlib
from typing import Any

PLANNER_MODULES = ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils", "vllm.v1.engine.core")
"""Where the planner's functions are: kv_cache_planning.py holds most of them from 0.33.0 on; the engine core imports the
rest.
"""
SPEC_FIELDS = (
    "block_size", "num_kv_heads", "head_size", "head_size_v", "sliding_window", "attention_chunk_size", "shapes",
    "mamba_type", "page_size_padded", "cache_dtype_str", "num_speculative_blocks",
)  # fmt: skip


def describe(spec: Any) -> dict[str, Any]:
    """A spec as plain data."""
    row: dict[str, Any] = {"type": type(spec).__name__, "page_size_bytes": spec.page_size_bytes}
    for name in SPEC_FIELDS:
        value = getattr(spec, name, None)
        if value is not None:
            row[name] = value if isinstance(value, (int, str, list)) else _plain(value)
    if hasattr(spec, "dtype"):
        row["dtype"] = str(spec.dtype)
    if hasattr(spec, "dtypes"):
        row["dtypes"] = [str(dtype) for dtype in spec.dtypes]
    return row


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else getattr(value, "name", value)


def describe_layers(specs: dict[str, Any]) -> list[dict[str, Any]]:
    """Equal specs once, with their count, in order of first use."""
    kinds: list[dict[str, Any]] = []
    for spec in specs.values():
        row = describe(spec)
        known = next(
            (kind for kind in kinds if {k: v for k, v in kind.items() if k != "layers"} == row), None
        )
        if known is None:
            kinds.append({**row, "layers": 1})
        else:
            known["layers"] += 1
    return kinds


def _find(name: str) -> Any:
    for module_name in PLANNER_MODULES:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        if hasattr(module, name):
            return getattr(module, name)
    return None


def resolve_layout(config: Any, worker: Any, specs: dict[str, Any]) -> None:
    """Newer releases let the engine core choose one layout of the cache before workers profile."""
    resolve = _find("resolve_kv_cache_layout")
    if resolve is None or not hasattr(worker, "get_supported_kv_cache_layouts"):
        return
    layout = resolve(config, [worker.get_supported_kv_cache_layouts()], list(specs.values()))
    worker.set_kv_cache_layout(layout.name, config.parallel_config.cp_kv_cache_interleave_size)


def plan(config: Any, specs: list[dict[str, Any]], available: list[int]) -> dict[str, Any]:
    """What the engine core does with the specs and free bytes of its ranks (v1/engine/core.py: _initialize_kv_caches).

    Raises ValueError where vLLM refuses.
    """
    from vllm.config import set_current_vllm_config

    manager = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager")
    register = getattr(manager, "register_all_kvcache_specs", None)
    with set_current_vllm_config(config):
        if register is not None:
            register(config)
        arguments: list[Any] = [config, specs, available]
        group = _find("get_global_kv_cache_groups")
        if group is not None:
            groups = group(config, specs)
            config.adjust_dcp_kv_cache_interleave_size(groups)
            arguments.append(groups)
        configs = _find("get_kv_cache_configs")(*arguments)
        scheduler = _find("generate_scheduler_kv_cache_config")(configs)
        if not scheduler.kv_cache_groups:
            empty = {"num_blocks": 0, "tokens": 0, "max_concurrency": 0.0, "groups": [], "kv_tensors": 0}
            return {**empty, "bytes": [0] * len(specs), "max_model_len": config.model_config.max_model_len}
        concurrency = _find("get_max_concurrency_for_kv_cache_config")(config, scheduler)
        return {
            "num_blocks": scheduler.num_blocks,
            # as "GPU KV cache size" prints it (v1/core/kv_cache_utils.py)
            "tokens": int(concurrency * config.model_config.max_model_len),
            "max_concurrency": concurrency,
            "max_model_len": config.model_config.max_model_len,
            "groups": [
                {
                    "spec": type(g.kv_cache_spec).__name__,
                    "block_size": g.kv_cache_spec.block_size,
                    "layers": len(g.layer_names),
                    "page_size_bytes": g.kv_cache_spec.page_size_bytes,
                }
                for g in scheduler.kv_cache_groups
            ],
            "kv_tensors": len(configs[0].kv_cache_tensors),
            "bytes": [sum(tensor.size for tensor in one.kv_cache_tensors) for one in configs],
        }
