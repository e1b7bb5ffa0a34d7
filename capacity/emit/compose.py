"""A docker compose file, after the Compose Specification."""

from __future__ import annotations

import json

from vllm_capacity.emit.facts import PORT, RAY_PORT, Deployment


def compose(wanted: Deployment) -> str:
    """compose.yaml of one replica. On several nodes: the file of the first one, and what the others run."""
    lines = [f"# {comment}" for comment in wanted.comments]
    if wanted.several_nodes:
        lines += [
            f"# Compose manages one machine. This is the first of {wanted.nodes}; on each other one run, with its address:",
            f"#   docker run --gpus all --network host --shm-size {wanted.shared_memory_mib}m \\",
            f"#     --entrypoint ray {wanted.image} \\",
            f"#     start --address=FIRST_NODE:{RAY_PORT} --num-gpus={wanted.gpus_per_node} --block",
        ]
    lines += ["services:", f"  {wanted.name}:", f"    image: {_quoted(wanted.image)}"]
    if wanted.several_nodes:
        script = (
            f"ray start --head --port={RAY_PORT} --num-gpus={wanted.gpus_per_node} && exec {wanted.command()}"
        )
        lines += [
            '    entrypoint: ["/bin/bash", "-c"]', f"    command: [{_quoted(_dollars(script))}]", "    network_mode: host",
        ]  # fmt: skip
    else:
        lines += ["    command:", *(f"      - {_quoted(_dollars(word))}" for word in wanted.arguments)]
        lines += ["    ports:", f'      - "{PORT}:{PORT}"']
    lines += ["    environment:", '      HF_TOKEN: "${HF_TOKEN:-}"']
    lines += [f"      {name}: {_quoted(_dollars(value))}" for name, value in wanted.environment]
    lines += [
        "    volumes:",
        '      - "${HF_HOME:-~/.cache/huggingface}:/root/.cache/huggingface"',
        f'    shm_size: "{wanted.shared_memory_mib}m"',
        "    deploy:",
        "      resources:",
        "        reservations:",
        f'          memory: "{wanted.host_memory_mib}m"',
        "          devices:",
        "            - driver: nvidia",
        f"              count: {wanted.gpus_per_node}",
        "              capabilities: [gpu]",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A JSON string is a YAML string."""
    return json.dumps(text)


def _dollars(text: str) -> str:
    """Compose would put variables in."""
    return text.replace("$", "$$")
