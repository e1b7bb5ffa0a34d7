"""The answer: frozen values that the planner makes and reports print. Nothing here computes."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from vllm_capacity.errors import Reason
from vllm_capacity.frozen import dataclass

if TYPE_CHECKING:
    from vllm_capacity.activations.peak import ActivationPeak
    from vllm_capacity.architecture.modules import Architecture
    from vllm_capacity.budget import Account, RankBudget
    from vllm_capacity.calibration import Coverage
    from vllm_capacity.device import Device
    from vllm_capacity.engine import EngineConfig
    from vllm_capacity.inputs.model_config import ModelConfig
    from vllm_capacity.kv_cache.planning import KVCachePlan
    from vllm_capacity.ledger import MemoryTerm
    from vllm_capacity.releases.release import Release


class Status(StrEnum):
    """`too_close`: the intervals of the terms straddle a limit, so no honest yes or no exists."""

    STARTS = "starts"
    DOES_NOT_START = "does_not_start"
    TOO_CLOSE = "too_close"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """One kind of rank: all global ranks in `ranks` hold the same bytes.

    `terms` are in ledger order, `accounts` says what the release makes of each. Bytes are per GPU.
    """

    ranks: tuple[tuple[int, int, int], ...]
    """(tp_rank, pp_rank, dp_rank) of each rank of this kind."""
    terms: tuple[MemoryTerm, ...]
    accounts: tuple[Account, ...]
    budget: RankBudget
    activation: ActivationPeak
    num_blocks_own: int
    """Blocks that this rank's own memory would give; the smallest rank decides for all."""
    kv_bytes: int
    kv_blocks: int
    load_transient_bytes: int
    """Most bytes above the loaded weights while loading and repacking."""
    activation_peak_warm_bytes: int
    """Activation peak of a start that finds its compiled code in the cache; the cold one where compiling sets no peak."""
    graph_actual_bytes: int
    device_used_bytes: int
    """In use on the device once the server is up, as nvidia-smi shows it (without other processes' share)."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a suggestion does, from a plan with it applied."""

    starts: bool
    available_kv_bytes_delta: int
    kv_cache_size_tokens_delta: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A single change, the flags that make it, and its computed effect."""

    change: str
    flags: tuple[str, ...]
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyAnswer:
    """Whether `asked` requests of max_model_len tokens fit at once, and the least utilisation that does it."""

    asked: int
    fits: bool
    min_gpu_memory_utilization: float | None
    """None where no legal utilisation does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Does it start, why not, and the limits around it."""

    status: Status
    reason: Reason | None = None
    message: str = ""
    """vLLM's own sentence where there is one."""
    max_model_len_that_fits: int | None = None
    min_gpu_memory_utilization: float | None = None
    max_gpu_memory_utilization: float | None = None
    suggestions: tuple[Suggestion, ...] = ()
    concurrency: ConcurrencyAnswer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeeds:
    """What one node needs beside its GPUs, in bytes. `shared_memory` is /dev/shm."""

    pinned_bytes: int
    shared_memory_bytes: int
    checkpoint_bytes: int
    checkpoint_bytes_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One model on one device in one layout with one set of flags."""

    config: ModelConfig
    architecture: Architecture
    parameters: int
    device: Device
    used_by_others_bytes: int
    release: Release
    release_source: str
    engine: EngineConfig
    ranks: tuple[RankPlan, ...]
    kv_cache: KVCachePlan
    verdict: Verdict
    host: HostNeeds
    coverage: Coverage
    warnings: tuple[str, ...] = ()
    kv_cache_warm: KVCachePlan | None = None
    """What a second start gets, with a warm compile cache; None where that is the same."""

    @property
    def starts(self) -> bool:
        return self.verdict.status is Status.STARTS

    @property
    def tightest(self) -> RankPlan:
        """The rank whose memory decides the number of blocks."""
        return min(self.ranks, key=lambda rank: rank.num_blocks_own)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPlan:
    """A layout or model that vLLM refuses before any byte is counted."""

    config: ModelConfig
    device: Device
    release: Release
    release_source: str
    tp: int
    verdict: Verdict
