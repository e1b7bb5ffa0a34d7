"""What can be bought: GPUs one by one or in boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_capacity.device import Device
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.gpus import find_device, list_devices
from vllm_capacity.units import cdiv

USUAL_NODE = 8
"""GPUs that share a node's links where the user names no box; also the largest tensor-parallel group tried."""
MOST_IN_A_BOX = 1024


@dataclass(frozen=True, slots=True)
class Node:
    """A box of `gpus` GPUs. `whole`: it is bought as one; else GPUs are bought one by one, up to `gpus` in a machine."""

    device: Device
    gpus: int
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """What `replicas` replicas take. A replica that fits into a node never spans two; a larger one takes whole nodes."""

    replicas: int
    gpus_used: int
    gpus_bought: int
    nodes: int


def purchase(node: Node, gpus_per_replica: int, replicas: int) -> Purchase:
    """Nodes and GPUs for at least `replicas` replicas of `gpus_per_replica` GPUs; boxes bought as a whole are filled."""
    if gpus_per_replica > node.gpus:
        nodes = replicas * cdiv(gpus_per_replica, node.gpus)
    else:
        nodes = cdiv(replicas, node.gpus // gpus_per_replica)
    if node.whole:
        # The box is paid for: it is filled with replicas.
        replicas = nodes * (node.gpus // gpus_per_replica) if gpus_per_replica <= node.gpus else replicas
    used = replicas * gpus_per_replica
    return Purchase(
        replicas=replicas, gpus_used=used, gpus_bought=nodes * node.gpus if node.whole else used, nodes=nodes
    )


def choose_nodes(
    gpus: Sequence[str], vendor: str | None, boxes: Sequence[str], gpus_per_node: int | None
) -> tuple[Node, ...]:
    """The GPUs to consider: --node, else --gpu, else the whole catalogue (of one --vendor). Raises InputError."""
    if gpus_per_node is not None and not 1 <= gpus_per_node <= MOST_IN_A_BOX:
        raise InputError(f"--gpus-per-node {gpus_per_node} must lie between 1 and {MOST_IN_A_BOX}")
    if boxes:
        if gpus or gpus_per_node:
            raise InputError("--node names GPU and size of the box; leave --gpu and --gpus-per-node out")
        nodes = [_box(text) for text in boxes]
    else:
        devices = [find_device(name) for name in gpus] if gpus else list_devices()
        nodes = [_usual(device, gpus_per_node) for device in devices]
    if vendor is not None:
        nodes = [node for node in nodes if node.device.vendor == vendor.lower()]
    if not nodes:
        vendors = ", ".join(sorted({device.vendor for device in list_devices()}))
        raise InputError(f"no GPU is left to consider; --vendor knows {vendors}")
    return tuple(dict.fromkeys(nodes))


def _usual(device: Device, gpus_per_node: int | None) -> Node:
    if single(device):
        return Node(device, 1, whole=gpus_per_node is not None)
    return Node(device, gpus_per_node or USUAL_NODE, whole=gpus_per_node is not None)


def single(device: Device) -> bool:
    """One GPU is all a machine has (memory shared with its CPU), or NCCL does not join it to others (a MIG slice)."""
    return device.integrated or "-MIG-" in device.name


def _box(text: str) -> Node:
    name, times, count = text.strip().lower().rpartition("x")
    if not (times and name and count.isdecimal() and 1 <= int(count) <= MOST_IN_A_BOX):
        raise InputError(f"--node {text}: write it as GPU x number, for example h100x8")
    device = find_device(name)
    if single(device) and int(count) > 1:
        raise InputError(
            f"--node {text}: {device.name} cannot be joined with others in one engine; use {name}x1"
        )
    return Node(device, int(count), whole=True)
