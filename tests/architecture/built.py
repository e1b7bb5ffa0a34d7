"""What vLLM's own classes build, as test cases: configs and per-rank tensors from tests/data/vllm_built."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    AttentionKind,
    MultiHeadLatentAttention,
    StateSpace,
)
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.context import RankContext
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs, EngineConfig
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.kv_cache.compressed_latent import cache_parts, compressed_latent_spec
from vllm_capacity.kv_cache.specs import KVCacheSpec, MLAAttentionSpec, SlidingWindowMLASpec
from vllm_capacity.parallel import ParallelConfig, stage_bounds
from vllm_capacity.releases import get_release

BUILT = Path(__file__).parents[1] / "data" / "vllm_built"

H200 = Device(
    name="NVIDIA H200",
    cuda_total_bytes=150109880320,
    nvml_total_bytes=150754820096,
    compute_capability=(9, 0),
    num_sms=132,
    nvlink=True,
)


@dataclass(frozen=True)
class Case:
    """One rank as vLLM built it."""

    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        f = self.facts
        ep = " ep" if f["ep"] else ""
        return f"{f['model']} {f['release']} tp{f['tp']} pp{f['pp']}{ep} rank{f['rank']}"

    @property
    def pp_rank(self) -> int:
        return int(self.facts["rank"]) // int(self.facts["tp"])

    def architecture(self) -> Architecture:
        return _architecture(self.facts["model"], self.facts["release"])

    def context(self) -> RankContext:
        f = self.facts
        config, architecture = config_of(f["model"]), self.architecture()
        parallel = ParallelConfig(tp=f["tp"], pp=f["pp"], expert_parallel=f["ep"])
        first, last = stage_bounds(architecture.num_hidden_layers, parallel)[self.pp_rank]
        layers = tuple(
            (group, count)
            for group in architecture.layers
            if (count := sum(first <= i < last for i in group.indices))
        )
        return RankContext(
            config=config,
            architecture=architecture,
            engine=engine(
                parallel,
                architecture,
                tokens=f["max_num_batched_tokens"],
                sequences=f["max_num_seqs"],
                compiled=f["compiled"],
                backends=tuple(f["backends"]),
                model_runner=f.get("model_runner", "V1"),
            ),
            release=get_release(f["release"]),
            device=H200,
            tp_rank=0,
            pp_rank=self.pp_rank,
            layers=layers,
        )

    @property
    def tensors(self) -> Counter[tuple[int, str, bool]]:
        """(bytes, dtype, is a buffer) -> how many, as constructed."""
        return Counter(
            {(size, dtype, kind == "buffer"): count for size, dtype, kind, count in self.facts["tensors"]}
        )

    @property
    def kv_layers(self) -> Counter[tuple[Any, ...]]:
        """KV-bearing layers by kind and size, from vLLM's specs."""
        found: Counter[tuple[Any, ...]] = Counter()
        for spec in self.facts["kv"]:
            if spec["type"] == "MambaSpec":
                found["state", spec["mamba_type"].removesuffix("_attn")] += spec["layers"]
            elif spec["type"] == "SlidingWindowMLASpec":
                found["window", spec["head_size"], spec["sliding_window"]] += spec["layers"]
            elif spec["type"] == "MLAAttentionSpec":
                found["latent", spec["head_size"]] += spec["layers"]
            else:
                found[
                    "heads",
                    spec["num_kv_heads"],
                    spec["head_size"],
                    spec.get("head_size_v", spec["head_size"]),
                    spec.get("sliding_window") or spec.get("attention_chunk_size"),
                ] += spec["layers"]
        return found


def engine(
    parallel: ParallelConfig,
    architecture: Architecture,
    *,
    tokens: int,
    sequences: int = 256,
    compiled: bool = True,
    backends: tuple[str, ...] = ("FLASH_ATTN",),
    model_runner: str = "V1",
) -> EngineConfig:
    """An engine with the fields that weights depend on."""
    return EngineConfig(
        parallel=parallel,
        usage="server",
        dtype=architecture.dtype,
        kv_cache_dtype="auto",
        kv_dtype=architecture.dtype,
        max_model_len=4096,
        max_model_len_auto=False,
        gpu_memory_utilization=0.92,
        kv_cache_memory_bytes=None,
        max_num_batched_tokens=tokens,
        max_num_seqs=sequences,
        block_size=None,
        enforce_eager=False,
        cudagraph_mode="FULL_AND_PIECEWISE",
        cudagraph_capture_sizes=(1,),
        compiled=compiled,
        attention_backends=backends,
        model_runner=model_runner,
        async_scheduling=True,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        hybrid_kv_cache_manager_disabled=False,
        num_gpu_blocks_override=None,
        max_in_flight_tokens=tokens,
        mamba_cache_mode="none",
        quantization=None,
        num_speculative_tokens=0,
        args=EngineArgs(),
    )


STATE_NAMES = {"kda": "gdn", "gdn_attention": "gdn"}
"""vLLM names a layer's backend, not its kind: both delta nets run on one."""


def kv_layers(ctx: RankContext) -> Counter[tuple[Any, ...]]:
    """The mixers of a rank in the terms of `Case.kv_layers`."""
    tp = ctx.engine.parallel.tp
    found: Counter[tuple[Any, ...]] = Counter()
    for group, count in ctx.layers:
        for mixer in group.mixers:
            if isinstance(mixer, StateSpace):
                found["state", STATE_NAMES.get(mixer.kind.value, mixer.kind.value)] += count
            elif isinstance(mixer, MultiHeadLatentAttention) and mixer.compression is not None:
                found += _compressed_layers(mixer, count)
            elif isinstance(mixer, MultiHeadLatentAttention):
                found["latent", mixer.kv_lora_rank + mixer.qk_rope_head_dim] += count
                if mixer.indexer is not None:
                    size = mixer.indexer.head_size
                    found["latent", size + size // 128 * 4] += count
            elif (
                isinstance(mixer, Attention)
                and not mixer.shares_kv
                and mixer.kind is not AttentionKind.ENCODER_ONLY
            ):
                heads = max(1, mixer.num_kv_heads // tp)
                found[
                    "heads",
                    heads,
                    mixer.head_size,
                    mixer.head_size_v,
                    mixer.sliding_window or mixer.chunk_size,
                ] += count
                if mixer.indexer is not None:
                    found["latent", mixer.indexer.head_size] += count
    return found


def _compressed_layers(mixer: MultiHeadLatentAttention, count: int) -> Counter[tuple[Any, ...]]:
    """DeepSeek V4's caches, as the specs that the tool makes of them."""
    release = get_release("0.33.0")
    specs = [compressed_latent_spec(mixer, part, "fp8", 256, release) for part in cache_parts(mixer)]
    return Counter(
        {
            key: count * specs_with_key
            for key, specs_with_key in Counter(_spec_key(spec) for spec in specs).items()
        }
    )


def _spec_key(spec: KVCacheSpec) -> tuple[Any, ...]:
    if isinstance(spec, SlidingWindowMLASpec):
        return ("window", spec.head_size, spec.sliding_window)
    assert isinstance(spec, MLAAttentionSpec)
    return ("latent", spec.head_size)


@cache
def cases() -> tuple[Case, ...]:
    lines = (BUILT / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Case(json.loads(line)) for line in lines)


@cache
def _configs() -> Mapping[str, Mapping[str, Any]]:
    lines = (BUILT / "configs.jsonl").read_text(encoding="utf-8").splitlines()
    return {entry["model"]: entry["config"] for entry in map(json.loads, lines)}


@cache
def config_of(model: str) -> ModelConfig:
    return normalise(model, _configs()[model], source="tests/data/vllm_built")


@cache
def _architecture(model: str, release: str) -> Architecture:
    return build_architecture(config_of(model), get_release(release))
