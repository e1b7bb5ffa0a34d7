"""A plan and a dry-run of the same thing, term by term. Reads the shape of `plan --json` only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_capacity.frozen import dataclass

RANK_FIGURES = (
    "weights_bytes",
    "activation_peak_bytes",
    "non_torch_bytes",
    "runner_buffers_bytes",
    "available_kv_bytes",
)
KV_FIGURES = ("num_blocks", "block_size", "size_tokens", "max_concurrency")


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of one rank (None: of the engine) in both; bytes unless it is a count. `note`: why they may differ."""

    name: str
    rank: int | None
    plan: int | float | None
    dry_run: int | float | None
    note: str = ""

    @property
    def equal(self) -> bool:
        return self.plan == self.dry_run

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "rank": self.rank, "plan": self.plan, "dry_run": self.dry_run, "equal": self.equal,
                "note": self.note}  # fmt: skip


def differences(plan: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Weights by group, accounts and KV cache of every rank that the dry-run ran."""
    found = []
    planned = {rank["rank"]: rank for rank in plan["ranks"]}
    not_exact = run["dry_run"]["not_exact"]
    for rank in run["ranks"]:
        beside = planned.get(rank["rank"])
        if beside is None:
            continue
        here, there = _weights(beside), _weights(rank)
        found += [
            Difference(f"weights.{name}", rank["rank"], here.get(name, 0), there.get(name, 0))
            for name in {**here, **there}
        ]
        for name in RANK_FIGURES:
            why = not_exact.get(
                "activation" if name.startswith("activation") else name.removesuffix("_bytes"), []
            )
            found.append(Difference(name, rank["rank"], beside[name], rank[name], "; ".join(why)))
    for name in KV_FIGURES:
        found.append(
            Difference(
                f"kv_cache.{name}",
                None,
                (plan["kv_cache"] or {}).get(name),
                (run["kv_cache"] or {}).get(name),
            )
        )
    groups = [[(g["layers"], g["block_size"], g["page_size_bytes"]) for g in (x["kv_cache"] or {}).get("groups", [])]
              for x in (plan, run)]  # fmt: skip
    found.append(Difference("kv_cache.groups_equal", None, 1, int(groups[0] == groups[1])))
    return tuple(found)


def _weights(rank: Mapping[str, Any]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for t in rank["terms"]:
        if t["account"] == "weights" and (t["bytes"] or t["component"] == "weights"):
            sums[t["name"]] = sums.get(t["name"], 0) + t["bytes"]
    return sums
