"""A lower bound on what a layout needs, from the plan of one GPU: what cannot win is never planned."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vllm_capacity.answer import Plan
from vllm_capacity.sizing.demand import Demand
from vllm_capacity.sizing.engine_capacity import blocks_for, shared_blocks
from vllm_capacity.sizing.layouts import Layout
from vllm_capacity.sizing.nodes import Node, purchase

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Bound:
    """What one GPU would hold of the model, from which follows the least that any layout can need.

    A layout of g GPUs holds at least the weights of one GPU in all, and a sequence takes at least the KV bytes it takes on
    one GPU; what is left of g x `share_bytes` bounds the sequences from above. `SLACK` allows for paddings that splitting
    avoids.
    """

    share_bytes: int
    weights_bytes: int
    sequence_bytes: float
    demanded: int

    def fewest_gpus(self, node: Node, layout: Layout, known: tuple[int, float] | None) -> int:
        """A lower bound on the GPUs to buy with this layout; NEVER where the weights alone do not fit.

        `known` are its weights per rank and KV bytes per sequence (of the stage with most), where it was planned before.
        """
        free = layout.gpus * self.share_bytes - SLACK * self.weights_bytes
        per_sequence = self.sequence_bytes
        if known is not None:
            free, per_sequence = layout.dp * (self.share_bytes - known[0]), known[1]
        if free <= 0:
            return NEVER
        held = free / (SLACK * per_sequence) if per_sequence else float(self.demanded)
        if held < 1:
            return NEVER
        return purchase(node, layout.gpus, math.ceil(self.demanded / held)).gpus_bought


SLACK = 0.9


def sequence_bytes(plan: Plan, demand: Demand) -> float:
    """KV bytes of a sequence of mean length per rank, of the stage that takes most."""
    if not plan.kv_cache.stages:
        return 0.0
    blocks = sum(blocks_for(plan, point.tokens) * point.weight for point in demand.lengths)
    return max(blocks - shared_blocks(plan, demand.shared_tokens), 0.0) * plan.kv_cache.bytes_per_block
