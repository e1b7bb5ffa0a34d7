"""Which ranks to run."""

from __future__ import annotations

from vllm_capacity.errors import InputError
from vllm_capacity.parallel import ParallelConfig


def choose_ranks(text: str, parallel: ParallelConfig) -> tuple[int, ...]:
    """`ends`: the first rank of every pipeline stage, and the last rank of all where experts are spread; `all`; or a list.

    Ranks count as vLLM does: data-parallel engine, then stage, then tensor-parallel rank. Raises InputError.
    """
    per_stage = parallel.tp * parallel.pcp
    total = parallel.num_gpus
    if text == "all":
        return tuple(range(total))
    if text == "ends":
        stages = [stage * per_stage for stage in range(parallel.pp)]
        return tuple(sorted({*stages, total - 1})) if parallel.expert_parallel else tuple(stages)
    try:
        ranks = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise InputError(
            f"--ranks {text}: write ends, all, or numbers with commas, for example 0,7"
        ) from None
    outside = [rank for rank in ranks if not 0 <= rank < total]
    if outside:
        raise InputError(f"--ranks {text}: this layout has ranks 0 to {total - 1}")
    return ranks


def stage_of(rank: int, parallel: ParallelConfig) -> int:
    return rank % parallel.world_size // (parallel.tp * parallel.pcp)


def stages_run(ranks: tuple[int, ...], parallel: ParallelConfig) -> bool:
    """Whether every pipeline stage has a rank among them: KV planning needs all stages."""
    return {stage_of(rank, parallel) for rank in ranks} == set(range(parallel.pp))
