"""The model's published number of parameters, from its modules."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from vllm_capacity.architecture.modules import Architecture, Experts, Linear, Module, Tensor, VocabEmbedding
from vllm_capacity.weights.quantisation.base import plain_experts
from vllm_capacity.weights.sharding import SINGLE, shard_experts, shard_linear, shard_qkv


def parameter_total(architecture: Architecture) -> int:
    """The model's parameters: each once, unpadded, tied heads and buffers left out; equal to the published
    count.
    """
    layers = sum(_logical(group.modules) * len(group.indices) for group in architecture.layers)
    outside = (p for p in architecture.outside if p.shares_storage_with is None)
    return layers + sum(_logical((p.module,)) * p.count for p in outside)


@lru_cache(maxsize=256)
def _logical(modules: tuple[Module, ...]) -> int:
    return sum(_logical_of(module) for module in modules)


def _logical_of(module: Module) -> int:
    if isinstance(module, Tensor):
        return 0 if module.buffer else prod(module.shape)
    if isinstance(module, VocabEmbedding):
        return module.rows * (module.columns + module.bias)
    if isinstance(module, Experts):
        experts = plain_experts(shard_experts(module, SINGLE), "bfloat16")
        return sum(tensor.logical for tensor in experts.stored)
    local = shard_linear(module, SINGLE) if isinstance(module, Linear) else shard_qkv(module, SINGLE)
    return local.rows * local.inputs + local.bias
