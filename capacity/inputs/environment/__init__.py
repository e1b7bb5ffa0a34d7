"""The environment variables that vLLM, NCCL and PyTorch read, and what they do to GPU memory.

`generated.json` is written by `tools/generate_environment.py` from the wheels; `effects.py` is kept by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.environment.effects import EFFECTS, FAMILIES, Effect
from vllm_capacity.releases.release import Release

__all__ = ["Variable", "check_environment", "variable", "variables_of"]

_NOT_VARIABLES = {
    "VLLM_MAX_MODEL_LEN": "use --max-model-len",
    "VLLM_GPU_MEMORY_UTILIZATION": "use --gpu-memory-utilization",
    "VLLM_TENSOR_PARALLEL_SIZE": "use --tensor-parallel-size",
    "VLLM_MAX_NUM_SEQS": "use --max-num-seqs",
    "VLLM_MAX_NUM_BATCHED_TOKENS": "use --max-num-batched-tokens",
    "VLLM_KV_CACHE_DTYPE": "use --kv-cache-dtype",
    "VLLM_DTYPE": "use --dtype",
    "VLLM_ATTENTION_BACKEND": "use --attention-backend",
    "VLLM_USE_V1": "V1 is the only engine; the model runner is chosen with VLLM_USE_V2_MODEL_RUNNER",
}
"""Names that guides mention or that older releases had, with what does the same in the releases read."""


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable: what it does to GPU memory and why that is so, or why it is not modelled."""

    name: str
    effect: Effect
    reason: str
    default: str = ""
    """What envs.py declares, as source; empty where it declares none or another library reads it."""


@cache
def _generated() -> tuple[dict[str, int], dict[str, list[list[str]]]]:
    data = json.loads(Path(__file__).with_name("generated.json").read_bytes())
    return {version: index for index, version in enumerate(data["releases"])}, data["variables"]


@cache
def variables_of(release: Release) -> Mapping[str, Variable]:
    """Every variable in that release's envs.py, by name."""
    order, rows = _generated()
    now = order[release.version]
    return {
        name: Variable(name, *EFFECTS[name], default)
        for name, runs in rows.items()
        for first, last, default in runs
        if order[first] <= now <= order[last]
    }


def variable(name: str, release: Release) -> Variable:
    """What `name` is to that release. Raises InputError for a VLLM_ name that it does not read."""
    known = variables_of(release).get(name)
    if known is not None:
        return known
    if name.startswith("VLLM_"):
        raise InputError(_unknown(name, release))
    if name in EFFECTS:
        return Variable(name, *EFFECTS[name])
    for prefix, reason in FAMILIES.items():
        if name.startswith(prefix):
            return Variable(name, "unmodelled", reason)
    return Variable(name, "no_effect", "neither vLLM nor NCCL, PyTorch or cuBLAS reads it for memory")


def planned(environment: Mapping[str, str], release: Release) -> dict[str, str]:
    """The variables that a plan depends on: what may be shown. Others, credentials among them, stay with who gave them."""
    return {
        name: value for name, value in environment.items() if variable(name, release).effect != "no_effect"
    }


def check_environment(
    environment: Mapping[str, str], release: Release, *, allow_unmodelled: bool = False
) -> tuple[Variable, ...]:
    """Refuse what cannot be planned; return the variables whose effect on memory is left out of the plan.

    Raises InputError for an unknown VLLM_ name, naming the nearest real one, and for a variable that may
    change memory in a way that is not modelled, unless it is set to its default or `allow_unmodelled`.
    """
    found = [(variable(name, release), value) for name, value in environment.items()]
    left_out = tuple(
        item for item, value in found if item.effect == "unmodelled" and not _is_default(item, value)
    )
    if left_out and not allow_unmodelled:
        first = left_out[0]
        raise InputError(
            f"{first.name} may change memory in a way that is not modelled ({first.reason}); "
            "leave it out, or pass --allow-unmodelled to plan without it"
        )
    return left_out


def _is_default(item: Variable, value: str) -> bool:
    if item.default in ("True", "False"):
        return value.strip().lower() in (("1", "true") if item.default == "True" else ("0", "false", ""))
    return item.default != "" and value == item.default.strip("'")


def _unknown(name: str, release: Release) -> str:
    import difflib  # only on the way to an error

    _, rows = _generated()
    if name in rows:
        spans = rows[name]
        span = spans[0][0] if spans[0][0] == spans[-1][1] else f"{spans[0][0]} to {spans[-1][1]}"
        return f"vLLM {release.version} does not read {name}; {span} does"
    if name in _NOT_VARIABLES:
        return f"{name} does not exist in vLLM {release.version}: {_NOT_VARIABLES[name]}"
    near = difflib.get_close_matches(name, variables_of(release), n=1, cutoff=0.0)
    return f"{name} does not exist in vLLM {release.version}; the nearest variable is {near[0]}"
