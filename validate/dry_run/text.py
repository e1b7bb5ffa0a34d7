"""A dry-run for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_capacity.units import GIB, gib
from vllm_capacity.validate.dry_run.differences import Difference


def lines(run: Mapping[str, Any], top: int) -> Iterator[str]:
    """The report, from the dry-run's JSON."""
    verdict, kv = run["verdict"], run["kv_cache"]
    reason = f" ({verdict['reason']})" if verdict["reason"] else ""
    status, gpu = verdict["status"].replace("_", " "), run["gpu"]["name"]
    yield f"{status}{reason}: {run['model']['id']} on {gpu}, vLLM {run['vllm_version']}, dry-run"
    if verdict["message"]:
        yield verdict["message"]
    if kv:
        yield (
            f"GPU KV cache size: {kv['size_tokens']:,} tokens, "
            f"Maximum concurrency for {run['engine']['max_model_len']:,} tokens per request: {kv['max_concurrency']:.2f}x"
        )
        groups = ", ".join(f"{g['layers']} x {g['spec']} ({g['block_size']} tokens)" for g in kv["groups"])
        yield f"{kv['num_blocks']:,} blocks of {kv['block_size']} tokens; groups: {groups}"
    engine = run["engine"]
    if "model_runner" in engine:
        yield (
            f"{run['model']['architecture']}, model runner {engine['model_runner']}, "
            f"{engine['max_num_batched_tokens']:,} tokens a batch, "
            f"{engine['max_num_seqs']:,} sequences, {', '.join(engine['attention_backends']) or 'no attention'}"
        )
    for rank, detail in zip(run["ranks"], run["dry_run"]["ranks"], strict=True):
        yield ""
        yield from _rank(rank, detail, top)
    yield ""
    not_exact = run["dry_run"]["not_exact"]
    for name, why in not_exact.items():
        yield f"{name} is not exact:"
        yield from (f"  {reason}" for reason in why)
    if not not_exact:
        yield "weights, KV cache and eager activation peak: exact"
    yield f"from the analytical plan, not visible without a GPU: {', '.join(run['dry_run']['unseen_terms']) or 'nothing'}"
    yield from (f"warning: {text}" for text in run["warnings"])


def _rank(rank: Mapping[str, Any], detail: Mapping[str, Any], top: int) -> Iterator[str]:
    unseen = "plan"
    yield f"rank {rank['rank']} (stage {rank['pp_rank']}): {detail['parameters_on_rank']:,} parameters here"
    for t in rank["terms"]:
        if t["bytes"] and t["account"] != "outside":
            origin = unseen if t["note"].startswith("from the analytical plan") else "vLLM"
            yield f"  {t['name']:24}{t['bytes'] / GIB:10.3f} GiB  {t['account']:15} {origin}"
    yield (
        f"  requested {gib(rank['requested_bytes'])}, KV cache {gib(rank['available_kv_bytes'])}, "
        f"most while loading {gib(detail['load_peak_bytes'])}"
    )
    profile = detail["profile"]
    if profile and top:
        yield f"  alive at the activation peak: {profile['alive_at_peak']} tensors"
        for tensor in profile["tensors"][:top]:
            where = tensor["lines"][0] if tensor["lines"] else "outside vLLM"
            yield f"  {tensor['bytes'] / (1 << 20):10.1f} MiB  {where}  [{tensor['operator'].removesuffix('.default')}]"


def difference_lines(rows: Sequence[Difference]) -> Iterator[str]:
    """Plan and dry-run side by side; equal rows are counted, not listed."""
    unequal = [row for row in rows if not row.equal]
    yield f"plan and dry-run: {len(rows) - len(unequal)} figures equal, {len(unequal)} differ"
    for row in unequal:
        where = "" if row.rank is None else f" (rank {row.rank})"
        if row.plan is None or row.dry_run is None:
            yield f"  {row.name}{where}: plan {row.plan}, dry-run {row.dry_run}"
            continue
        size = (
            f"{(row.plan - row.dry_run) / GIB:+.3f} GiB"
            if row.name.endswith("_bytes") or row.rank is not None
            else ""
        )
        yield f"  {row.name}{where}: plan {row.plan:,}, dry-run {row.dry_run:,} {size}".rstrip() + (
            f"  [{row.note}]" if row.note else ""
        )
