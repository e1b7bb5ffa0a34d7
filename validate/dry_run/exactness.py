"""What of a dry-run is exact, and why the rest is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REASONS = {
    "imitated_operators": "a stand-in made the result of",
    "values_read": "Python read a device value, zero here, at",
    "copied_to_host": "device values went to the host as zeros at",
    "skipped_operators": "left out, with whatever scratch memory it takes:",
}
FOR_THE_LOG = frozenset({"get_compressed_map_string"})
"""Functions of vLLM that read values only to print them (layers/fused_moe/expert_map_manager.py)."""
CHANGES_SIZES = ("imitated_operators", "values_read")
"""What can change the size of a tensor that stays; a skipped operator wrote into tensors that existed."""


def reasons(
    found: Mapping[str, Mapping[str, int]], kinds: tuple[str, ...] = tuple(REASONS)
) -> tuple[str, ...]:
    """One sentence per thing that was not followed; none: exact."""
    return tuple(
        f"{REASONS[kind]} {name} ({count} times)"
        for kind in kinds
        for name, count in sorted(found.get(kind, {}).items())
        if name.rpartition(" ")[2] not in FOR_THE_LOG
    )


def weights_reasons(rank: Mapping[str, Any]) -> tuple[str, ...]:
    return reasons(rank["load_exactness"], CHANGES_SIZES)


def load_peak_reasons(rank: Mapping[str, Any]) -> tuple[str, ...]:
    """Real weights stream in beside what is counted, so this is a lower bound for checkpoints that are repacked."""
    return reasons(rank["load_exactness"])


def activation_reasons(rank: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a rank that was profiled."""
    return (*reasons(rank["profile_exactness"]), *(note for note in rank["notes"]))
