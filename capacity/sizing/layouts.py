"""Every layout worth planning: tensor x pipeline x data x expert parallel, and those that vLLM refuses left out first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError, RefusedError
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.releases.release import Release
from vllm_capacity.weights.encoder_modules import whole_towers
from vllm_capacity.weights.layout import check_layout

MOST_STAGES = 8
"""Pipeline stages tried. More stages than this leave each with few layers and every step waiting for all of them."""


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """Sizes of one replica, fewest GPUs first, then the simplest."""

    gpus: int
    pp: int
    dp: int
    expert_parallel: bool
    tp: int

    @property
    def plain(self) -> bool:
        """Tensor parallelism alone."""
        return self.pp == 1 and self.dp == 1 and not self.expert_parallel


ONE_GPU = Layout(1, 1, 1, False, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Sizes that the user gave; None where they are free."""

    tp: tuple[int, ...] | None = None
    pp: int | None = None
    dp: int | None = None
    expert_parallel: bool | None = None


def layouts(
    architecture: Architecture,
    release: Release,
    fixed: Fixed,
    *,
    node_gpus: int,
    most_gpus: int,
    args: EngineArgs,
) -> tuple[Layout, ...]:
    """All valid layouts of one replica, ordered by GPUs and then by simplicity; sizes of `args` but dcp do not count.

    A tensor-parallel group stays within a node. A replica of more than one node takes whole nodes. Data parallelism is
    planned for models with experts only: without them its ranks are engines of their own, which is what replicas are.
    """
    found = []
    dcp, outside = args.decode_context_parallel_size, whole_towers(architecture, args)
    for tp, pp, dp in _sizes(fixed, bool(architecture.num_experts), node_gpus, most_gpus):
        for expert_parallel in _expert_choices(fixed, architecture, tp * dp):
            parallel = ParallelConfig(tp=tp, pp=pp, dp=dp, expert_parallel=expert_parallel, dcp=dcp)
            try:
                check_layout(architecture, parallel, release, outside)
            except (RefusedError, InputError):
                continue
            found.append(Layout(tp * pp * dp, pp, dp, expert_parallel, tp))
    return tuple(sorted(found))


def _sizes(fixed: Fixed, experts: bool, node_gpus: int, most_gpus: int) -> Iterator[tuple[int, int, int]]:
    most = max(most_gpus, (fixed.pp or 1) * (fixed.dp or 1) * max(fixed.tp or (1,)))
    for tp in fixed.tp or range(1, node_gpus + 1):
        for pp in (fixed.pp,) if fixed.pp else range(1, MOST_STAGES + 1):
            for dp in (fixed.dp,) if fixed.dp else range(1, most + 1 if experts else 2):
                gpus = tp * pp * dp
                whole_nodes = gpus <= node_gpus or (gpus % node_gpus == 0 and node_gpus % tp == 0)
                if gpus <= most and tp <= node_gpus and whole_nodes:
                    yield tp, pp, dp


def _expert_choices(fixed: Fixed, architecture: Architecture, ranks: int) -> tuple[bool, ...]:
    if fixed.expert_parallel is not None:
        return (fixed.expert_parallel,)
    return (False, True) if architecture.num_experts and ranks > 1 else (False,)


def with_layout(args: EngineArgs, layout: Layout) -> EngineArgs:
    return replace(
        args, tensor_parallel_size=layout.tp, pipeline_parallel_size=layout.pp, data_parallel_size=layout.dp,
        enable_expert_parallel=layout.expert_parallel,
    )  # fmt: skip
