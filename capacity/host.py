"""What the machine needs beside its GPUs: pinned memory, /dev/shm, disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vllm_capacity.answer import HostNeeds
from vllm_capacity.engine import EngineConfig
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.ledger import Allocator, MemoryTerm
from vllm_capacity.units import MIB

_RESPONSE_CHUNK = 24 * MIB
"""Default `max_chunk_bytes` of MessageQueue (distributed/device_communicators/shm_broadcast.py:373, 0.26.0)."""
_CHUNKS = 10


def message_queue_bytes(world_size: int, broadcast_chunk_mib: int = 16) -> int:
    """/dev/shm bytes of MultiprocExecutor's ring buffers for one engine.

    One broadcast queue with `world_size` readers (VLLM_MQ_MAX_CHUNK_BYTES_MB, default 16) and one response queue per
    worker; each buffer is (chunk + 1 + readers) x 10 bytes. A single GPU runs without workers and needs none, nor do the
    executors that start no processes of their own (ray, uni, external_launcher).
    Source: v1/executor/multiproc_executor.py:151, 574; shm_broadcast.py:275-279 (0.26.0).
    """
    if world_size == 1:
        return 0
    broadcast = (broadcast_chunk_mib * MIB + 1 + world_size) * _CHUNKS
    return broadcast + world_size * (_RESPONSE_CHUNK + 2) * _CHUNKS


def host_needs(
    config: ModelConfig,
    engine: EngineConfig,
    ranks: Iterable[tuple[int, tuple[MemoryTerm, ...]]],
    parameter_bytes: Callable[[], int],
) -> HostNeeds:
    """Needs of all engines of this plan together; `ranks` gives each kind of rank's count and terms.

    `parameter_bytes` is asked where the checkpoint's size is not known.
    """
    pinned = sum(n * t.n_bytes for n, terms in ranks for t in terms if t.allocator is Allocator.HOST)
    chunk = int(engine.environment.get("VLLM_MQ_MAX_CHUNK_BYTES_MB", 16))
    world = engine.parallel.world_size
    executor = engine.args.other("distributed_executor_backend") or ("mp" if world > 1 else "uni")
    queues = message_queue_bytes(world, chunk) if executor == "mp" else 0
    known = config.facts.get("checkpoint_bytes")
    origin = str(config.facts.get("checkpoint_bytes_source", "recorded"))
    return HostNeeds(
        pinned_bytes=pinned,
        shared_memory_bytes=engine.parallel.dp * queues,
        checkpoint_bytes=int(known) if known else parameter_bytes(),
        checkpoint_bytes_source=origin if known else "parameters as loaded on one GPU",
    )
