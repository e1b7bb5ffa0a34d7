"""The command itself; for more than one node with the Ray cluster around it."""

from __future__ import annotations

import shlex

from vllm_capacity.emit.facts import RAY_PORT, Deployment


def serve(wanted: Deployment) -> str:
    """A shell snippet."""
    lines = [f"# {comment}" for comment in wanted.comments]
    if wanted.several_nodes:
        lines += [
            f"# on the first of {wanted.nodes} nodes:",
            f"ray start --head --port={RAY_PORT} --num-gpus={wanted.gpus_per_node}",
            f"# on the other {wanted.nodes - 1}, with the first one's address:",
            f"#   ray start --address=FIRST_NODE:{RAY_PORT} --num-gpus={wanted.gpus_per_node}",
            "# then on the first:",
        ]
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in wanted.environment)
    lines.append(f"{variables} {wanted.command()}".strip())
    return "\n".join(lines) + "\n"
