"""Kubernetes manifests: a Deployment and a Service, or a LeaderWorkerSet for a replica of several nodes."""

from __future__ import annotations

import json

from vllm_capacity.emit.facts import PORT, RAY_PORT, Deployment


def kubernetes(wanted: Deployment) -> str:
    """Documents separated by `---`. Several nodes: leaderworkerset.x-k8s.io/v1, as vLLM's own documentation does."""
    lines = [f"# {comment}" for comment in wanted.comments]
    if wanted.several_nodes:
        lines += _leader_worker_set(wanted)
        selector = {"leaderworkerset.sigs.k8s.io/name": wanted.name, "role": "leader"}
    else:
        lines += _deployment(wanted)
        selector = {"app": wanted.name}
    lines += ["---", *_service(wanted, selector)]
    return "\n".join(lines) + "\n"


def _deployment(wanted: Deployment) -> list[str]:
    return [
        "apiVersion: apps/v1",
        "kind: Deployment",
        "metadata:",
        f"  name: {wanted.name}",
        "spec:",
        "  replicas: 1",
        "  strategy:",
        "    type: Recreate  # a second copy would find the GPUs taken",
        "  selector:",
        "    matchLabels:",
        f"      app: {wanted.name}",
        "  template:",
        "    metadata:",
        "      labels:",
        f"        app: {wanted.name}",
        *_indented(4, _pod(wanted, "vllm", ["vllm", "serve", *wanted.arguments], serves=True)),
    ]


def _leader_worker_set(wanted: Deployment) -> list[str]:
    gpus = wanted.gpus_per_node
    leader = (
        f"ray start --head --port={RAY_PORT} --num-gpus={gpus} && "
        f"until [ $(ray status 2>/dev/null | grep -c node_) -ge {wanted.nodes} ]; do sleep 5; done && "
        f"exec {wanted.command()}"
    )
    worker = f"until ray start --address=$(LWS_LEADER_ADDRESS):{RAY_PORT} --num-gpus={gpus} --block; do sleep 5; done"
    return [
        "apiVersion: leaderworkerset.x-k8s.io/v1",
        "kind: LeaderWorkerSet",
        "metadata:",
        f"  name: {wanted.name}",
        "spec:",
        "  replicas: 1",
        "  leaderWorkerTemplate:",
        f"    size: {wanted.nodes}",
        "    restartPolicy: RecreateGroupOnPodRestart",
        "    leaderTemplate:",
        "      metadata:",
        "        labels:",
        "          role: leader",
        *_indented(6, _pod(wanted, "leader", ["/bin/bash", "-c", leader], serves=True)),
        "    workerTemplate:",
        *_indented(6, _pod(wanted, "worker", ["/bin/bash", "-c", worker], serves=False)),
    ]


def _pod(wanted: Deployment, container: str, command: list[str], *, serves: bool) -> list[str]:
    lines = [
        "spec:",
        "  containers:",
        f"    - name: {container}",
        f"      image: {json.dumps(wanted.image)}",
        "      command:",
    ]
    lines += [f"        - {json.dumps(word)}" for word in command]
    if wanted.environment:
        lines.append("      env:")
        for name, value in wanted.environment:
            lines += [f"        - name: {name}", f"          value: {json.dumps(value)}"]
    if serves:
        lines += [
            "      ports:",
            f"        - containerPort: {PORT}",
            "      readinessProbe:",
            "        httpGet:",
            "          path: /health",
            f"          port: {PORT}",
            "        periodSeconds: 10",
        ]
    lines += [
        "      resources:",
        "        requests:",
        f'          memory: "{wanted.host_memory_mib}Mi"',
        "        limits:",
        f'          nvidia.com/gpu: "{wanted.gpus_per_node}"',
        "      volumeMounts:",
        "        - name: shm",
        "          mountPath: /dev/shm",
        "  volumes:",
        "    - name: shm",
        "      emptyDir:",
        "        medium: Memory",
        f'        sizeLimit: "{wanted.shared_memory_mib}Mi"',
    ]
    return lines


def _service(wanted: Deployment, selector: dict[str, str]) -> list[str]:
    return [
        "apiVersion: v1",
        "kind: Service",
        "metadata:",
        f"  name: {wanted.name}",
        "spec:",
        "  selector:",
        *(f"    {name}: {value}" for name, value in selector.items()),
        "  ports:",
        f"    - port: {PORT}",
        f"      targetPort: {PORT}",
    ]


def _indented(spaces: int, lines: list[str]) -> list[str]:
    return [" " * spaces + line for line in lines]
