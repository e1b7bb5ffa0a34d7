"""How components look wherever they are drawn: one order, one colour, one hatch, one name each.

Okabe and Ito's colours, told apart with any colour vision; hatches tell components of one colour apart, in print too.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_capacity.answer import RankPlan
from vllm_capacity.ledger import Allocator, Component, Lifetime


@dataclass(frozen=True, slots=True)
class Look:
    """`hatch` is matplotlib's code, empty for a plain fill; `text` is the colour that stands out on `colour`
    (at least 4.5 : 1)."""

    colour: str
    hatch: str
    text: str = "black"


LOOKS: dict[Component, Look] = {
    Component.WEIGHTS: Look("#0072B2", "", "white"),
    Component.KV_CACHE: Look("#009E73", ""),
    Component.ACTIVATION: Look("#E69F00", ""),
    Component.CUDA_GRAPHS: Look("#CC79A7", ""),
    Component.NCCL: Look("#56B4E9", "//"),
    Component.CUSTOM_ALL_REDUCE: Look("#56B4E9", ".."),
    Component.RUNNER_BUFFERS: Look("#F0E442", "\\\\"),
    Component.WORKSPACE: Look("#F0E442", "xx"),
    Component.FLASHINFER: Look("#F0E442", "++"),
    Component.CUDA_CONTEXT: Look("#D55E00", ""),
    Component.LORA: Look("#999999", "//"),
    Component.ENCODER: Look("#999999", "\\\\"),
    Component.SPECULATIVE: Look("#999999", "xx"),
    Component.OFFLOAD: Look("#999999", ".."),
    Component.UNEXPLAINED: Look("#000000", "", "white"),
}
"""In the order in which components are stacked."""

LINE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Of lines that stand for whole purchases or layouts; each also has a dash or a marker of its own."""


_NAMES = {
    Component.KV_CACHE: "KV cache",
    Component.CUDA_GRAPHS: "CUDA graphs",
    Component.NCCL: "NCCL",
    Component.FLASHINFER: "FlashInfer",
    Component.CUDA_CONTEXT: "CUDA context",
    Component.LORA: "LoRA",
}


def name_of(component: Component) -> str:
    """The component's name for people."""
    return _NAMES.get(component) or component.value.replace("_", " ")


def heights(rank: RankPlan) -> list[tuple[Component, int]]:
    """Device bytes by component, what single requests need left out, in stacking order."""
    sums: dict[Component, int] = {}
    for t in rank.terms:
        if t.allocator is not Allocator.HOST and t.lifetime is not Lifetime.RUNTIME:
            sums[t.component] = sums.get(t.component, 0) + t.n_bytes
    return [(component, sums[component]) for component in LOOKS if sums.get(component, 0) > 0]
