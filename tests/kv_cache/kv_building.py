"""Engine configurations and specs for the KV cache tests, built by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_capacity.engine import EngineArgs, EngineConfig
from vllm_capacity.kv_cache.planning import KVCachePlan, fill, kv_pool
from vllm_capacity.kv_cache.specs import KVCacheGroup, KVCacheSpec, KVLayers, LayerRun
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.releases import get_release
from vllm_capacity.releases.release import Release

GIB = 1 << 30


def kv_layers_from_specs(specs: list[KVCacheSpec], block_size: int, *, layout: str = "LBNHC") -> KVLayers:
    """One spec per decoder layer, in order, as `KVLayers`."""
    runs: dict[KVCacheSpec, list[int]] = {}
    for key, spec in enumerate(specs):
        runs.setdefault(spec, []).append(key)
    return KVLayers(
        runs=tuple(LayerRun(spec, tuple(keys)) for spec, keys in runs.items()),
        layer_index=tuple(range(len(specs))),
        block_size=block_size,
        layout=layout,
    )


def plan_kv_cache(
    layers: KVLayers,
    available_bytes: Sequence[int],
    engine: EngineConfig,
    release: Release,
    *,
    stages: Sequence[tuple[int, int]] = (),
    groups: tuple[KVCacheGroup, ...] | None = None,
) -> KVCachePlan:
    """The plan for `available_bytes[s]` bytes of KV memory per rank on pipeline stage s; as `kv_pool` and `fill`."""
    return fill(kv_pool(layers, engine, release, stages=stages, groups=groups), available_bytes)


def engine(
    max_model_len: int = 131072,
    *,
    max_num_batched_tokens: int = 8192,
    concurrent_batches: int = 2,
    tp: int = 1,
    pp: int = 1,
    dcp: int = 1,
    **changes: Any,
) -> EngineConfig:
    values: dict[str, Any] = {
        "parallel": ParallelConfig(tp=tp, pp=pp, dcp=dcp),
        "usage": "server",
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "kv_dtype": "bfloat16",
        "max_model_len": max_model_len,
        "max_model_len_auto": False,
        "derived_max_model_len": max_model_len,
        "gpu_memory_utilization": 0.92,
        "kv_cache_memory_bytes": None,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": 256,
        "block_size": None,
        "enforce_eager": False,
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": (512, 256, 1),
        "compiled": True,
        "attention_backends": ("FLASH_ATTN",),
        "model_runner": "V1",
        "async_scheduling": True,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "hybrid_kv_cache_manager_disabled": False,
        "num_gpu_blocks_override": None,
        "max_in_flight_tokens": concurrent_batches * max_num_batched_tokens,
        "mamba_cache_mode": "none",
        "quantization": None,
        "num_speculative_tokens": 0,
        "args": EngineArgs(),
    }
    return EngineConfig(**(values | changes))


def plan(
    specs: list[KVCacheSpec] | KVLayers,
    available: int | list[int] = 100 * GIB,
    release: str = "0.26.0",
    *,
    stages: tuple[tuple[int, int], ...] = (),
    layout: str = "LBNHC",
    **settings: Any,
) -> KVCachePlan:
    layers = specs if isinstance(specs, KVLayers) else kv_layers_from_specs(specs, 16, layout=layout)
    sizes = available if isinstance(available, list) else [available] * max(len(stages), 1)
    return plan_kv_cache(layers, sizes, engine(**settings), get_release(release), stages=stages)
