"""The ledger's lines for what model loading leaves on a rank."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, term
from vllm_capacity.units import DTYPE_BYTES, round_up
from vllm_capacity.weights.allocator import (
    LOAD_MAX_SPLIT,
    SMALL,
    LayerSizes,
    RopeBuild,
    allocated_by_load,
    carved,
)
from vllm_capacity.weights.allocator_settings import AllocatorSettings, allocator_settings
from vllm_capacity.weights.groups import ROLES, ParameterGroup
from vllm_capacity.weights.imports import imported_tables
from vllm_capacity.weights.libraries import deep_gemm_workspace, deep_gemm_workspace_is_measured
from vllm_capacity.weights.model import RankWeights, Section, method_of, rank_weights
from vllm_capacity.weights.segments import allocated_after_load, smallest

SOURCES = {
    "embedding": "VocabParallelEmbedding, model_executor/layers/vocab_parallel_embedding.py",
    "attention": "QKVParallelLinear and RowParallelLinear, model_executor/layers/linear.py",
    "state_space": "model_executor/layers/mamba",
    "mlp": "MergedColumnParallelLinear and RowParallelLinear, model_executor/layers/linear.py",
    "experts": "RoutedExperts, model_executor/layers/fused_moe/routed_experts.py",
    "shared_experts": "the model's shared experts, model_executor/models",
    "router": "ReplicatedLinear, model_executor/layers/linear.py",
    "norms": "RMSNorm, model_executor/layers/layernorm.py",
    "lm_head": "ParallelLMHead, model_executor/layers/vocab_parallel_embedding.py",
    "encoder": "the model's vision or audio tower, model_executor/models",
    "rope_cache": "get_rope, model_executor/layers/rotary_embedding/__init__.py",
    "attention_scales": "set_default_quant_scales, model_executor/layers/attention/attention.py",
    "quantisation_scales": "model_executor/layers/quantization",
    "expert_map": "determine_expert_map, model_executor/layers/fused_moe/expert_map_manager.py",
    "other": "the model's class, model_executor/models",
}
"""Where vLLM makes the tensors of a role."""

_NAME = re.compile(r"\W+")


def weight_terms(
    ctx: RankContext, ep_rank: int = 0, *, runner: tuple[int, ...] = ()
) -> tuple[MemoryTerm, ...]:
    """One exact term per role of tensor, then `allocator_rounding`; all of lifetime `load`.

    `runner`: bytes of the tensors that the model runner made before; weights are cut from what they leave of a segment.
    """
    weights, workspace = rank_weights(ctx, ep_rank), deep_gemm_workspace(ctx, method_of(ctx))
    settings = allocator_settings(ctx.engine.environment)
    least = smallest(weights, small=False)
    if workspace:
        least = min(least, workspace)
    free = tuple([size for size in left_of_segments(runner, settings.max_split) if size >= least])
    if ctx.release.has("load_max_split_size"):
        settings = replace(settings, max_split=LOAD_MAX_SPLIT)
    tables = sum(imported_tables(ctx))
    measured = deep_gemm_workspace_is_measured(ctx)
    return _terms(weights, workspace, measured, settings, tables, free)


@lru_cache(maxsize=256)
def _terms(
    weights: RankWeights,
    workspace: int,
    measured: bool,
    settings: AllocatorSettings,
    tables: int,
    free: tuple[int, ...],
) -> tuple[MemoryTerm, ...]:
    return (*_role_terms(weights), _rounding_term(weights, workspace, measured, settings, tables, free))


@lru_cache(maxsize=64)
def _role_terms(weights: RankWeights) -> tuple[MemoryTerm, ...]:
    by_role: dict[str, list[ParameterGroup]] = {}
    for group in weights.groups:
        by_role.setdefault(group.role, []).append(group)
    return tuple(_role_term(role, by_role[role]) for role in ROLES if role in by_role)


def load_peak_bytes(ctx: RankContext, ep_rank: int = 0) -> int:
    """The most bytes that model loading holds beyond what stays: what must fit on top of the loaded weights.

    Either everything as constructed, with a tied head that is allocated and then dropped, or the post-load
    processing of the largest module. Source: `BaseModelLoader.load_model`,
    model_executor/model_loader/base_loader.py:42-86, and `process_weights_after_loading`,
    model_loader/utils.py:101-137 (0.26.0): one module at a time.
    """
    return _load_peak(rank_weights(ctx, ep_rank))


@lru_cache(maxsize=256)
def _load_peak(weights: RankWeights) -> int:
    stays, built = weights.n_bytes, weights.built_bytes
    dropped = sum(group.n_bytes for group in weights.after.dropped)
    transient = max(section.transient_bytes for section in weights.sections)
    return max(built + dropped, max(built, stays) + transient) - stays


def allocated_bytes(
    weights: RankWeights,
    *,
    workspace: int = 0,
    max_split: int | None = LOAD_MAX_SPLIT,
    free: tuple[int, ...] = (),
) -> int:
    """What `torch.cuda.memory_allocated` grows by over model loading, `workspace` included.

    `max_split` is max_split_size_mb in bytes while loading, None without; `free` are blocks of segments that hold other
    tensors.
    """
    if weights.repacked:
        return allocated_after_load(weights, workspace, free, max_split)
    ropes = tuple(
        RopeBuild(group.shape[0], group.shape[1], group.tensor_bytes, group.scaled)
        for group in weights.caches.groups
        if len(group.shape) == 2
    )
    others = tuple(group.tensor_bytes for group in weights.caches.groups if len(group.shape) != 2)
    return allocated_by_load(
        _sizes(weights.before.groups),
        tuple((_layer_sizes(section), section.layer_indices) for section in weights.layers),
        ropes,
        (*others, workspace) if workspace else others,
        _sizes(weights.after.groups),
        max_split,
        free,
    )


def left_of_segments(sizes: tuple[int, ...], max_split: int | None) -> tuple[int, ...]:
    """Free blocks beside large tensors of these sizes, made in this order."""
    return carved((), [size for size in sizes if size > SMALL], small=False, max_split=max_split)


def _sizes(groups: Iterable[ParameterGroup]) -> tuple[int, ...]:
    return tuple(group.tensor_bytes for group in groups for _ in range(group.count))


def _layer_sizes(section: Section) -> LayerSizes:
    sizes = tuple(group.tensor_bytes for group in section.groups)
    attention = next(
        (
            i
            for i, group in enumerate(section.groups)
            if group.role not in ("attention", "quantisation_scales")
        ),
        len(sizes),
    )
    return LayerSizes(sizes, attention)


def _role_term(role: str, groups: list[ParameterGroup]) -> MemoryTerm:
    formula, names = _formula(tuple((_short(group.name), len(group.shape)) for group in groups))
    values: dict[str, Any] = {}
    for name, group in zip(names, groups, strict=True):
        values[f"{name}_count"] = group.count
        values[f"{name}_itemsize"] = DTYPE_BYTES[group.dtype]
        for axis, size in enumerate(group.shape):
            values[f"{name}_{axis}"] = size
    return term(role, Component.WEIGHTS, formula, lifetime=Lifetime.LOAD, source=SOURCES[role], **values)


@lru_cache(maxsize=512)
def _formula(groups: tuple[tuple[str, int], ...]) -> tuple[str, tuple[str, ...]]:
    """('qkv_count * qkv_0 * qkv_1 * qkv_itemsize + ...', the names used): count x shape x bytes per
    element.
    """
    used: dict[str, int] = {}
    names: list[str] = []
    parts: list[str] = []
    for name, dimensions in groups:
        used[name] = used.get(name, 0) + 1
        unique = (
            name
            if used[name] == 1
            else f"{name}_{'abcdefghijklmnopqrstuvwxyz'[(used[name] - 2) % 26]}{used[name]}"
        )
        names.append(unique)
        axes = "".join(f" * {unique}_{axis}" for axis in range(dimensions))
        parts.append(f"{unique}_count{axes} * {unique}_itemsize")
    return " + ".join(parts), tuple(names)


@lru_cache(maxsize=4096)
def _short(name: str) -> str:
    parts = name.split(".")
    if parts[-1] == "weight" and len(parts) > 1:
        parts = parts[:-1]
    short = _NAME.sub("_", "_".join(parts[-2:])).strip("_")
    return f"block_{short}" if short[:1].isdigit() else short


def _rounding_term(
    weights: RankWeights,
    workspace: int,
    measured: bool,
    settings: AllocatorSettings,
    tables: int,
    free: tuple[int, ...],
) -> MemoryTerm:
    """What "Model loading took" counts beyond the tensors of the model."""
    tensors = weights.n_bytes
    usual = allocated_bytes(weights, workspace=workspace, max_split=settings.max_split, free=free) - workspace
    at_least = sum(round_up(group.tensor_bytes, 512) * group.count for group in weights.groups)
    allocated = at_least if settings.expandable else usual
    blocks = (
        "tensors of 20 MiB and more, whose blocks are multiples of 2 MiB and not split (max_split_size_mb=20),"
        if settings.max_split
        else "remainders of up to 1 MiB that it does not split off,"
    )
    note = (
        f"PyTorch counts whole blocks: {at_least - tensors:,} B for 512-byte multiples, the rest for {blocks} and for free "
        "blocks of the rope cache's construction that weights took over"
    )
    if settings.expandable:
        note = "expandable segments cut every block to a multiple of 512 bytes; no recorded run has them"
    if workspace:
        note += (
            f"; {workspace:,} B of it are DeepGEMM's cuBLASLt workspace, kept from the first fp8 quantiser on "
            "(vllm/utils/deep_gemm.py: _lazy_init)"
        )
        if not measured:
            note += ", in a DeepGEMM that no recorded run shows"
    if tables:
        note += (
            f"; {tables:,} B are tables of libraries that are imported while the model is built on the device"
        )
    total = allocated - tensors + workspace + tables
    return term(
        "allocator_rounding", Component.WEIGHTS, "blocks_bytes - tensor_bytes + library_workspace_bytes + table_bytes",
        lifetime=Lifetime.LOAD,
        source="c10/cuda/CUDACachingAllocator.cpp; vllm/v1/worker/gpu_worker.py: Worker.load_model",
        low=total if measured else total - workspace,
        high=total + max(0, usual - allocated),
        note=note, blocks_bytes=allocated, tensor_bytes=tensors, library_workspace_bytes=workspace,
        table_bytes=tables,
    )  # fmt: skip
