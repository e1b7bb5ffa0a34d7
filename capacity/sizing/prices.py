"""Prices from the user's file: per GPU hour or to buy, of single GPUs or of boxes. No price is built in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_capacity.sizing.nodes import Node, Purchase


@dataclass(frozen=True, slots=True)
class Prices:
    """`gpus` by catalogue id, `nodes` by (catalogue id, GPUs in the box); amounts in `currency`, per hour or once."""

    currency: str
    unit: str
    gpus: Mapping[str, float]
    nodes: Mapping[tuple[str, int], float]

    def cost(self, node: Node, bought: Purchase) -> float | None:
        """Of a purchase, per hour or once; None where the file has no price of that GPU or box."""
        box = self.nodes.get((node.device.name, node.gpus)) if node.whole else None
        if box is not None:
            return box * bought.nodes
        each = self.gpus.get(node.device.name)
        return None if each is None else each * bought.gpus_bought
