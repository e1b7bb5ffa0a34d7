"""Everything that a term of one rank may depend on, in one frozen value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from vllm_capacity.architecture.modules import Architecture, LayerGroup
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineConfig
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

if TYPE_CHECKING:
    from vllm_capacity.kv_cache.specs import KVCacheGroup

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """One rank of one engine. `layers` are the groups with a layer on this pipeline stage and how many of them are here.

    `kv_groups` are the KV cache groups projected to this stage (known before any byte of KV cache is).
    """

    config: ModelConfig
    architecture: Architecture
    engine: EngineConfig
    release: Release
    device: Device
    tp_rank: int
    pp_rank: int
    layers: tuple[tuple[LayerGroup, int], ...]
    kv_groups: tuple[KVCacheGroup, ...] = ()
    answers: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What functions marked `once` have said about this rank; `dataclasses.replace` begins with none."""

    @property
    def is_first_stage(self) -> bool:
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pp_rank == self.engine.parallel.pp - 1


def once(function: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
    """`function` of a RankContext (and hashable values after it), asked once for each rank: what many terms look at is worked
    out for the first of them.
    """

    @wraps(function)
    def answer(ctx: RankContext, *more: Any) -> Answer:
        key = (answer, *more)
        if key not in ctx.answers:
            ctx.answers[key] = function(ctx, *more)  # type: ignore[call-arg, arg-type]
        found: Answer = ctx.answers[key]
        return found

    return answer  # type: ignore[return-value]
