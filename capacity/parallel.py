"""The layout: how a model is spread over GPUs."""

from __future__ import annotations

from functools import lru_cache

from vllm_capacity.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """vLLM's parallel sizes. A data-parallel rank is an engine of its own; experts span dp x pcp x tp."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False
    dcp: int = 1
    pcp: int = 1
    layer_partition: tuple[int, ...] | None = None
    """VLLM_PP_LAYER_PARTITION."""

    @property
    def world_size(self) -> int:
        """GPUs of one engine (one data-parallel rank)."""
        return self.tp * self.pp * self.pcp

    @property
    def num_gpus(self) -> int:
        return self.world_size * self.dp

    @property
    def moe_parallel_size(self) -> int:
        """Ranks over which experts are spread (layers/fused_moe/config.py:1135-1262, 0.26.0)."""
        return self.tp * self.dp * self.pcp


@lru_cache(maxsize=256)
def stage_bounds(num_layers: int, parallel: ParallelConfig) -> tuple[tuple[int, int], ...]:
    """Per pipeline stage the first layer and the one after the last.

    Source: `get_pp_indices`, vllm/distributed/utils.py:127-172 (0.26.0): the rest of L / pp goes to the stages before the
    last one, from the back. Raises ValueError where VLLM_PP_LAYER_PARTITION does not fit.
    """
    pp = parallel.pp
    if parallel.layer_partition is not None:
        sizes = list(parallel.layer_partition)
        if len(sizes) != pp or sum(sizes) != num_layers:
            raise ValueError(
                f"VLLM_PP_LAYER_PARTITION={','.join(map(str, sizes))} must have {pp} entries that sum to {num_layers}"
            )
    else:
        sizes = [num_layers // pp] * pp
        for i in range(2, num_layers % pp + 2):
            sizes[-i] += 1
    starts = [sum(sizes[:i]) for i in range(pp)]
    return tuple((start, start + size) for start, size in zip(starts, sizes, strict=True))
