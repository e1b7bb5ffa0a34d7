"""What a deployment needs, taken from a plan."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace

from vllm_capacity.answer import Plan
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.command_line import emit_command_line
from vllm_capacity.units import MIB, cdiv

PORT = 8000
RAY_PORT = 6379
IMAGE = "vllm/vllm-openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One replica. `arguments` are those after `vllm serve`, the model first; sizes are in MiB, per node.

    `shared_memory_mib` is the /dev/shm that vLLM's executors need; `host_memory_mib` that plus pinned memory: what the plan
    knows of the host, to which the Python processes come.
    """

    name: str
    image: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    gpus: int
    nodes: int
    gpus_per_node: int
    shared_memory_mib: int
    host_memory_mib: int
    checkpoint_mib: int
    comments: tuple[str, ...]

    @property
    def several_nodes(self) -> bool:
        return self.nodes > 1

    def command(self) -> str:
        """The `vllm serve` line, without the environment."""
        return shlex.join(("vllm", "serve", *self.arguments))


def deployment(plan: Plan, model: str, args: EngineArgs, *, gpus_per_node: int) -> Deployment:
    """What one replica of `plan` needs on nodes of `gpus_per_node` GPUs.

    Over more than one node vLLM's Ray backend spreads the ranks (v1/executor/ray_executor.py, 0.26.0). Raises InputError for
    models that a container cannot fetch by name and for layouts that do not divide over nodes.
    """
    gpus = plan.engine.parallel.num_gpus
    nodes = cdiv(gpus, gpus_per_node)
    if nodes > 1 and gpus % nodes:
        raise InputError(f"--emit: {gpus} GPUs do not divide over {nodes} nodes of {gpus_per_node}")
    if args.usage != "server":
        raise InputError("--emit writes `vllm serve` deployments; leave --usage offline out")
    if nodes > 1:
        args = replace(args, others={**args.others, "distributed_executor_backend": "ray"})
        if plan.engine.parallel.dp > 1:
            args = replace(args, others={**args.others, "data_parallel_backend": "ray"})
    line = emit_command_line(model, replace(args, environment={}), plan.release)
    arguments = tuple(shlex.split(line)[2:])
    host = plan.host
    shared = cdiv(cdiv(host.shared_memory_bytes, nodes), MIB)
    pinned = cdiv(cdiv(host.pinned_bytes, nodes), MIB)
    return Deployment(
        name=_name(model),
        image=f"{IMAGE}:v{plan.release.version}",
        arguments=arguments,
        environment=tuple(sorted(args.environment.items())),
        gpus=gpus,
        nodes=nodes,
        gpus_per_node=cdiv(gpus, nodes),
        shared_memory_mib=max(shared, 64),
        host_memory_mib=max(shared, 64) + pinned,
        checkpoint_mib=cdiv(host.checkpoint_bytes, MIB),
        comments=(
            f"{plan.verdict.status.value}: {model} on {gpus} x {plan.device.name}, vLLM {plan.release.version}",
            f"GPU KV cache size: {plan.kv_cache.size_tokens:,} tokens, maximum concurrency {plan.kv_cache.max_concurrency:.2f}x",
            f"memory: {shared} MiB of /dev/shm and {pinned} MiB pinned per node come from the plan; the "
            f"Python processes and the page cache ({cdiv(host.checkpoint_bytes, MIB):,} MiB of checkpoint) come on top",
        ),
    )


def _name(model: str) -> str:
    """A DNS label of the model's name."""
    label = re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower()).strip("-")
    return f"vllm-{label}"[:52].rstrip("-")
