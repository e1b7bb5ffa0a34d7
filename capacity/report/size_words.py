"""What `size` says in words, in the terminal as on a page."""

from __future__ import annotations

from vllm_capacity.sizing.row import Binding, Row
from vllm_capacity.sizing.sensitivity import Assumption, Sensitivity

BINDING = {
    Binding.KV_CACHE: "KV cache",
    Binding.MAX_NUM_SEQS: "--max-num-seqs",
    Binding.WEIGHTS: "weights",
    Binding.NOTHING: "none",
}
ASSUMPTION = {
    Assumption.CONTEXT: "longest request",
    Assumption.CONCURRENCY: "requests at once",
    Assumption.UTILIZATION: "share of the GPU",
    Assumption.BATCHED_TOKENS: "tokens a batch",
    Assumption.CACHE_DTYPE: "KV cache dtype",
    Assumption.RELEASE: "vLLM release",
}


def bought(row: Row, times: str = "x") -> str:
    """'4 x H100-80GB', '1 x (8 x H100-80GB)'."""
    purchase = row.purchase
    if row.node.whole:
        return f"{purchase.nodes} {times} ({row.node.gpus} {times} {row.device.name})"
    return f"{purchase.gpus_bought} {times} {row.device.name}"


def layout(row: Row, times: str = "x") -> str:
    """'2 x tp4 pp2'."""
    sizes = [f"tp{row.layout.tp}"]
    sizes += [f"pp{row.layout.pp}"] if row.layout.pp > 1 else []
    sizes += [f"dp{row.layout.dp}"] if row.layout.dp > 1 else []
    sizes += ["ep"] if row.layout.expert_parallel else []
    return f"{row.purchase.replicas} {times} {' '.join(sizes)}"


def bound_by(row: Row) -> str:
    """What decides the number of GPUs."""
    return BINDING[row.binding] if row.starts else "not measured"


def flips(item: Sensitivity) -> str:
    """How far an assumption can move."""
    if item.assumption is Assumption.RELEASE:
        return (
            f"holds on every known release, not only {item.now}"
            if not item.flips
            else f"does not hold on {', '.join(item.beyond)}"
        )
    if item.assumption is Assumption.CACHE_DTYPE:
        return f"{item.flag} {item.beyond[0]} does not hold it" if item.flips else "auto holds it too"
    change = f" ({_percent(item)})" if item.distance is not None else ""
    if not item.flips:
        return f"{item.flag} {item.now}: holds as far as tried, to {item.last}{change}"
    return f"{item.flag} {item.now}: holds to {item.last}{change}, no longer at {item.beyond[0]}"


def _percent(item: Sensitivity) -> str:
    sign = "-" if item.assumption is Assumption.UTILIZATION else "+"
    return f"{sign}{item.distance:.0%}"
