"""What a server allows, as one frozen value that travels to its workers."""

from __future__ import annotations

import os
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Limits of one server. Times are seconds, sizes are bytes."""

    allow_hub: bool = False
    """Whether a model that is not in the catalogue may be asked from the Hugging Face Hub."""
    root_path: str = ""
    """Prefix under which a proxy publishes the server, for example /capacity; empty or starting with a slash."""
    allowed_hosts: tuple[str, ...] = ("localhost",)
    """Names that a request's Host header may have, beside addresses: `*.example.org` for all below, `*` for any."""
    page: bool = True
    """Whether the page is served beside the API."""

    json_body_bytes: int = 4 * MIB
    """The largest config.json known has 3 MB."""
    log_body_bytes: int = 32 * MIB
    body_seconds: float = 30.0
    """A body that takes longer to arrive is given up."""

    workers: int = max(3, min(6, (os.cpu_count() or 1) + 1))
    """Child processes that calculate; see `pool.Pool` for who may hold how many of them."""
    plan_seconds: float = 15.0
    size_seconds: float = 120.0
    explain_seconds: float = 60.0
    wait_seconds: float = 30.0
    """A request that waits longer for a worker is told to come back."""
    waiting: int = 100
    """Plans that may wait for a worker; one more is told to come back later."""
    waiting_slow: int = 8
    """The same for `size` and `explain`."""
    worker_memory_bytes: int = 2 << 30
    """Address space of a worker beyond what it has when it starts (where the system can limit it)."""
