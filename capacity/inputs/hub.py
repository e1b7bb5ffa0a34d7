"""Fetches a model's config files from the Hugging Face Hub."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_capacity.errors import InputError


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Raw files of one revision."""

    config: bytes
    quantization: bytes | None
    commit: str | None
    source: str


def fetch_config(
    repository: str, *, revision: str | None = None, offline: bool = False, hint: str = ""
) -> HubFiles:
    """config.json, and hf_quant_config.json where there is one."""
    raise InputError(f"{repository} is not in the bundled catalogue{hint}")
