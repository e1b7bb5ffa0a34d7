"""One answer: a GPU, a layout, how many of them, and what that gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from vllm_capacity.answer import Plan, RefusedPlan, Status
from vllm_capacity.calibration import Calibration
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.planner import make_plan
from vllm_capacity.releases.release import Release
from vllm_capacity.sizing.engine_capacity import EngineCapacity
from vllm_capacity.sizing.layouts import Layout
from vllm_capacity.sizing.margins import Margin
from vllm_capacity.sizing.nodes import Node, Purchase


class Binding(StrEnum):
    """What decides the number of GPUs."""

    KV_CACHE = "kv_cache"
    """With fewer GPUs the KV cache does not hold the demand, though the weights would fit."""
    MAX_NUM_SEQS = "max_num_seqs"
    """An engine takes no more sequences than --max-num-seqs, though its KV cache would."""
    WEIGHTS = "weights"
    """The weights of all its GPUs do not fit on one GPU fewer."""
    NOTHING = "nothing"
    """It is a single GPU, and it holds the demand."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recipe:
    """What a plan is made of; equal only to itself. A row keeps this, and the plan is made again when somebody looks at it: a
    plan takes twenty times the memory.
    """

    config: ModelConfig
    args: EngineArgs
    device: Device
    release: Release
    release_source: str
    calibration: Calibration | None

    def plan(self) -> Plan | RefusedPlan:
        return make_plan(
            self.config, self.args, self.device, self.release, release_source=self.release_source, suggestions=False,
            calibration=self.calibration,
        )  # fmt: skip


@lru_cache(maxsize=4)
def _planned(recipe: Recipe) -> Plan:
    """A report asks a row for many figures before it goes on to the next."""
    plan = recipe.plan()
    assert isinstance(plan, Plan)
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`plan` is exactly what `plan` gives for `args` on `device`: one replica. The rest follows from it and the demand."""

    quantised_variant: bool
    node: Node
    layout: Layout
    recipe: Recipe
    status: Status
    size_tokens: int
    """KV cache of one engine."""
    margin: Margin
    capacity: EngineCapacity
    purchase: Purchase
    sequences: int
    """Requests that all replicas hold at once, margin left out."""
    headroom: float
    """(sequences - demanded) / demanded."""
    binding: Binding
    cost: float | None
    power_watts: int | None
    decode_ceiling: float | None
    """Tokens per second of all replicas together, an upper bound from memory bandwidth."""

    @property
    def model(self) -> str:
        return self.recipe.config.name

    @property
    def args(self) -> EngineArgs:
        return self.recipe.args

    @property
    def plan(self) -> Plan:
        return _planned(self.recipe)

    @property
    def device(self) -> Device:
        return self.node.device

    @property
    def starts(self) -> bool:
        return self.status is Status.STARTS

    @property
    def total_kv_cache_size_tokens(self) -> int:
        """What all engines together print as their KV cache size."""
        return self.size_tokens * self.layout.dp * self.purchase.replicas

    @property
    def fp8_cache(self) -> bool:
        return self.args.kv_cache_dtype != "auto"
