"""Deployment snippets of a plan: the command, docker compose, Kubernetes. Written as text, from what the plan says."""

from __future__ import annotations

from vllm_capacity.emit.compose import compose
from vllm_capacity.emit.facts import Deployment, deployment
from vllm_capacity.emit.kubernetes import kubernetes
from vllm_capacity.emit.serve import serve

__all__ = ["KINDS", "Deployment", "deployment", "emit"]

KINDS = {"serve": serve, "compose": compose, "kubernetes": kubernetes}


def emit(kind: str, wanted: Deployment) -> str:
    """The snippet of a kind of KINDS."""
    return KINDS[kind](wanted)
