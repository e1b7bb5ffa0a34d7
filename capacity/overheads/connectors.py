"""`--kv-transfer-config`: what a KV connector takes beside the KV cache that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_capacity.context import RankContext
from vllm_capacity.errors import InputError
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.units import GIB

SOURCE = "distributed/kv_transfer/kv_connector/v1; v1/worker/gpu_worker.py: ensure_kv_transfer_initialized"

_HOST = frozenset({"OffloadingConnector", "SimpleCPUOffloadConnector"})
"""Blocks go to pinned host memory: `cpu_bytes_to_use` of `kv_connector_extra_config`, for the whole engine
(v1/kv_offload/cpu/spec.py:78-99, simple_cpu_offload_connector.py:60-66; 0.26.0)."""

_REGISTERED = frozenset({
    "NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector", "MooncakeStoreConnector",
    "LMCacheConnectorV1", "LMCacheMPConnector", "ExampleConnector", "SharedStorageConnector",
})  # fmt: skip
"""The KV cache itself is registered with the transport; there is no pool of their own on the GPU."""

_DEFAULT_HOST = 8 * GIB
"""DEFAULT_CPU_CAPACITY_BYTES, simple_cpu_offload_connector.py (0.26.0)."""


def connector_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """Host memory of offloading connectors, and the transport of the others: created after the KV cache.

    Raises InputError for connectors that are not modelled, unless `--allow-unmodelled`.
    """
    given = ctx.engine.args.other("kv_transfer_config")
    if isinstance(given, Mapping):
        yield from _connector(ctx, given)


def _connector(ctx: RankContext, config: Mapping[str, Any]) -> Iterator[MemoryTerm]:
    name = str(config.get("kv_connector") or "")
    extra = config.get("kv_connector_extra_config") or {}
    extra = extra if isinstance(extra, Mapping) else {}
    if name == "MultiConnector":
        for inner in extra.get("connectors") or ():
            if isinstance(inner, Mapping):
                yield from _connector(ctx, inner)
    elif name in _HOST:
        size = extra.get("cpu_bytes_to_use", _DEFAULT_HOST if name.startswith("Simple") else None)
        if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < 1 << 50:
            raise InputError(
                f"--kv-transfer-config: {name} needs cpu_bytes_to_use in kv_connector_extra_config, in bytes"
            )
        yield term(
            "kv_connector_host", Component.OFFLOAD, "size // ranks", allocator=Allocator.HOST,
            lifetime=Lifetime.AFTER_PROFILE, source=SOURCE, note=f"{name}: pinned; the GPU holds no extra pool",
            size=int(size), ranks=ctx.engine.parallel.world_size,
        )  # fmt: skip
    elif name in _REGISTERED:
        yield term(
            "kv_connector", Component.OFFLOAD, "0", allocator=Allocator.CUDA, lifetime=Lifetime.AFTER_PROFILE,
            source=SOURCE, high=GIB,
            note=f"{name} registers the KV cache and holds none of its own; its transport (UCX, GPUDirect) is not measured",
        )  # fmt: skip
    elif ctx.engine.args.other("allow_unmodelled"):
        yield term(
            "kv_connector", Component.OFFLOAD, "0", allocator=Allocator.CUDA, lifetime=Lifetime.AFTER_PROFILE,
            source=SOURCE, high=4 * GIB, note=f"{name or 'an unnamed connector'} is not modelled",
        )  # fmt: skip
    else:
        known = ", ".join(sorted(_HOST | _REGISTERED | {"MultiConnector"}))
        raise InputError(
            f"--kv-transfer-config: the memory of {name or 'an unnamed connector'} is not modelled; modelled are {known}"
            " (or pass --allow-unmodelled)"
        )
