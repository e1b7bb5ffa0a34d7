"""Runs the real vLLM, measures it from inside its workers, and compares it with the plan."""

from __future__ import annotations


def tool_version() -> str:
    """The version of this package as records carry it."""
    from importlib import metadata

    try:
        return metadata.version("vllm-capacity")
    except metadata.PackageNotFoundError:
        return "uninstalled"
