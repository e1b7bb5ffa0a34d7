"""Contexts for tests, without vLLM's defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.context import RankContext
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs, EngineConfig
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.parallel import ParallelConfig, stage_bounds
from vllm_capacity.releases import get_release

DATA = Path(__file__).parents[1] / "data" / "vllm_exact" / "llama_qwen_weights.json"

H200 = Device(name="NVIDIA H200", cuda_total_bytes=150109880320, nvml_total_bytes=150754820096,
              compute_capability=(9, 0), num_sms=132, nvlink=True)  # fmt: skip
L40S = Device(name="NVIDIA L40S", cuda_total_bytes=47697362944, nvml_total_bytes=48305799168,
              compute_capability=(8, 9), num_sms=142)  # fmt: skip


@lru_cache(maxsize=1)
def exact() -> Mapping[str, Any]:
    """What vLLM 0.26.0's own classes build; see `origin` in the file."""
    data: Mapping[str, Any] = json.loads(DATA.read_text())
    return data


@cache
def model(name: str) -> ModelConfig:
    return normalise(name, exact()["configs"][name], source="test data")


def changed(name: str, **fields: Any) -> ModelConfig:
    """A model's config with fields replaced; None removes one."""
    root = {**exact()["configs"][name], **fields}
    return normalise(name, {k: v for k, v in root.items() if v is not None}, source="test data")


def context(
    config: ModelConfig, *, parallel: ParallelConfig | None = None, pp_rank: int = 0, release: str = "0.26.0",
    device: Device = H200, args: EngineArgs | None = None, **engine: Any,
) -> RankContext:  # fmt: skip
    """A rank's context; `engine` replaces fields of the engine config."""
    parallel = parallel or ParallelConfig()
    found = get_release(release)
    architecture = build_architecture(config, found)
    fields: dict[str, Any] = {
        "parallel": parallel,
        "usage": "server",
        "dtype": architecture.dtype,
        "kv_cache_dtype": "auto",
        "kv_dtype": architecture.dtype,
        "max_model_len": 4096,
        "max_model_len_auto": False,
        "gpu_memory_utilization": 0.92,
        "kv_cache_memory_bytes": None,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 1024,
        "block_size": 16,
        "enforce_eager": False,
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": (1, 2, 4),
        "compiled": True,
        "attention_backends": ("FLASH_ATTN",),
        "model_runner": "V2",
        "async_scheduling": True,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "hybrid_kv_cache_manager_disabled": False,
        "num_gpu_blocks_override": None,
        "max_in_flight_tokens": 16384,
        "mamba_cache_mode": "none",
        "quantization": None,
        "num_speculative_tokens": 0,
        "args": args or EngineArgs(),
    } | engine
    first, last = stage_bounds(architecture.num_hidden_layers, parallel)[pp_rank]
    layers = tuple(
        (group, count)
        for group in architecture.layers
        if (count := sum(first <= i < last for i in group.indices))
    )
    return RankContext(
        config=config, architecture=architecture, engine=EngineConfig(**fields), release=found, device=device,
        tp_rank=0, pp_rank=pp_rank, layers=layers,
    )  # fmt: skip


def exact_ranks() -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any], bool]]:
    """(label, case, rank, first rank of its case) for every recorded rank."""
    for case in exact()["cases"]:
        for position, rank in enumerate(case["ranks"]):
            yield f"{case['name']}-rank{rank['rank']}", case, rank, position == 0


def case_context(case: Mapping[str, Any], rank: int) -> RankContext:
    parallel = ParallelConfig(tp=case["tp"], pp=case["pp"], expert_parallel=case["ep"])
    return context(
        model(case["model"]),
        parallel=parallel,
        pp_rank=rank // case["tp"],
        kv_cache_dtype=case["kv_cache_dtype"],
        max_num_batched_tokens=case["max_num_batched_tokens"],
        attention_backends=tuple(case["backends"]),
    )
