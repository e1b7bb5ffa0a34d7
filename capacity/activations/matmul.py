"""Workspaces of the matrix-product libraries, which PyTorch allocates at their first call and keeps."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_capacity.activations.encoder import profiles_encoder
from vllm_capacity.activations.live import persistent
from vllm_capacity.architecture.modules import Linear, QkvLinear
from vllm_capacity.context import RankContext
from vllm_capacity.device import Device
from vllm_capacity.errors import InputError
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, term
from vllm_capacity.weights.groups import ParameterGroup
from vllm_capacity.weights.model import rank_weights


def cublas_terms(ctx: RankContext) -> tuple[MemoryTerm, ...]:
    """What the profile run's first matrix products allocate; releases that call cuBLAS earlier have it before."""
    if ctx.release.has("cublas_before_snapshot"):
        return ()
    kept = cublas_workspace(ctx, Lifetime.PROFILE_PERSISTENT)
    return (kept, cublaslt_workspace(ctx)) if adds_bias(ctx) else (kept,)


def cublas_bytes(device: Device, environment: Mapping[str, str]) -> int:
    """PyTorch's cuBLAS workspace per stream: 32 MiB from Hopper on, 8.125 MiB before, or CUBLAS_WORKSPACE_CONFIG.

    That is ':SIZE:COUNT' in KiB, once or several times (':4096:2:16:8'). Raises InputError for anything else.
    """
    given = environment.get("CUBLAS_WORKSPACE_CONFIG")
    if given:
        numbers = given.removeprefix(":").split(":")
        if (
            not given.startswith(":")
            or len(numbers) % 2
            or not all(n.isdecimal() and len(n) < 10 for n in numbers)
        ):
            raise InputError(
                f"CUBLAS_WORKSPACE_CONFIG={given:.40} must be pairs :SIZE:COUNT, for example :4096:8"
            )
        return sum(
            int(size) * int(count) * 1024 for size, count in zip(numbers[::2], numbers[1::2], strict=True)
        )
    return 4096 * 8 * 1024 if device.sm >= 90 else 4096 * 1024 * 2 + 16 * 1024 * 8


def cublas_workspace(ctx: RankContext, lifetime: Lifetime) -> MemoryTerm:
    """The cuBLAS workspace with the lifetime that the release gives it."""
    n_bytes = cublas_bytes(ctx.device, ctx.engine.environment)
    given = "CUBLAS_WORKSPACE_CONFIG" in ctx.engine.environment
    return term(
        "cublas_workspace",
        Component.WORKSPACE,
        "workspace",
        lifetime=lifetime,
        source="PyTorch, ATen/cuda/CublasHandlePool.cpp: parseChosenWorkspaceSize",
        low=n_bytes if ctx.device.sm <= 90 or given else 4096 * 1024 * 2 + 16 * 1024 * 8,
        note="CUBLAS_WORKSPACE_CONFIG changes it",
        workspace=n_bytes,
    )


def cublaslt_workspace(ctx: RankContext) -> MemoryTerm:
    """cuBLASLt's own: 1 MiB, or CUBLASLT_WORKSPACE_SIZE in KiB. Recorded with PyTorch 2.11 (eager-qwen2.5-7b-kv-fp8-u0.5,
    eager-qwen2.5-14b-cpu-offload-s256, gpt-oss-20b). Raises InputError for another value.
    """
    given = ctx.engine.environment.get("CUBLASLT_WORKSPACE_SIZE", "1024")
    if not given.isdecimal() or len(given) > 9:
        raise InputError(f"CUBLASLT_WORKSPACE_SIZE={given:.40} must be a number of KiB, for example 1024")
    return persistent(
        "cublaslt_workspace",
        "1024 * kib",
        "PyTorch, ATen/cuda/CublasHandlePool.cpp: parseCUDABlasLtWorkspaceSize",
        note="a product that adds a bias is cuBLASLt's",
        kib=int(given),
    )


def adds_bias(ctx: RankContext) -> bool:
    """Whether a linear layer that the profile run calls has a bias and plain weights: then PyTorch's `addmm` adds it in
    cuBLASLt's epilogue (aten/src/ATen/native/cuda/Blas.cpp: addmm_out_cuda_impl).
    """
    encoder = profiles_encoder(ctx)
    if not encoder and not any(
        isinstance(m, (Linear, QkvLinear)) and m.bias for group, _ in ctx.layers for m in group.modules
    ):
        return False
    groups = rank_weights(ctx).groups
    plain = {_layer(g) for g in groups if _is_plain_matrix(g, ctx.engine.dtype)}
    roles = {g.role for g in groups if g.name.endswith("bias") and _layer(g) in plain}
    return bool(roles - {"encoder"}) or ("encoder" in roles and encoder)


def _layer(group: ParameterGroup) -> str:
    return group.name.rpartition(".")[0]


def _is_plain_matrix(group: ParameterGroup, dtype: str) -> bool:
    """A matrix that `apply` multiplies; a mixer's conv1d is a linear layer whose weights its kernel reads."""
    matrix = group.name.endswith(".weight") and len(group.shape) == 2 and group.dtype == dtype
    return matrix and not _layer(group).endswith("conv1d")
