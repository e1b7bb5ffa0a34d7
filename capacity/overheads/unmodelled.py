"""What `--allow-unmodelled` lets through: no prediction, but an interval that is as wide as what is not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_capacity.context import RankContext
from vllm_capacity.engine import EngineArgs
from vllm_capacity.inputs.environment import check_environment
from vllm_capacity.inputs.flags import check_keys, flags_for
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.releases.release import Release
from vllm_capacity.units import GIB

ALLOWANCE = GIB
"""Either way, per flag or variable left out. A convention, not a measurement: the buffers that such flags size (DeepEP's,
NCCL's, a connector's) are of this order, and no recorded run says more."""


def left_out(args: EngineArgs, release: Release) -> tuple[str, ...]:
    """Flags, JSON keys and variables of `args` whose effect on memory is not modelled, as the user writes them."""
    known = flags_for(release)
    names: list[str] = []
    for name, value in args.others.items():
        flag = known.get(name)
        if flag is None or value is None or value is False:
            continue
        if flag.effect == "unmodelled":
            names.append(flag.aliases[0])
        elif isinstance(value, Mapping):
            names += _keys(name, value, release)
    names += _keys("compilation_config", args.compilation_config, release)
    names += [item.name for item in check_environment(args.environment, release, allow_unmodelled=True)]
    return tuple(names)


def _keys(name: str, value: Mapping[str, object], release: Release) -> list[str]:
    keys = check_keys(name, value, release, allow_unmodelled=True)
    return ["--" + name.replace("_", "-") + key[len(name) :] for key in keys]


def unmodelled_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """One term around 0 that names what is left out; nothing where everything is modelled."""
    args = ctx.engine.args
    if not args.other("allow_unmodelled"):
        return
    names = left_out(args, ctx.release)
    if names:
        yield term(
            "unmodelled",
            Component.UNEXPLAINED,
            "0",
            allocator=Allocator.CUDA,
            lifetime=Lifetime.PROFILE_PERSISTENT,
            source="--allow-unmodelled",
            low=-len(names) * ALLOWANCE,
            high=len(names) * ALLOWANCE,
            note=f"not modelled: {', '.join(names)}; {ALLOWANCE // GIB} GiB either way for each",
        )


def unmodelled_warnings(args: EngineArgs, release: Release) -> tuple[str, ...]:
    """One line that names what is left out."""
    names = left_out(args, release) if args.other("allow_unmodelled") else ()
    if not names:
        return ()
    return (f"left out of this plan, which is less certain for it (--allow-unmodelled): {', '.join(names)}",)
