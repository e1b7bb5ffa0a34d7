"""Catalogue configs, broken at random, through a whole plan: a plan with sane figures or one clear error, quickly."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm_capacity import plan
from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.errors import CapacityError
from vllm_capacity.inputs.catalogue import entries, find_entry

SECONDS = 1.0
"""A plan may take no longer, whatever the config says; measured on the process's own clock."""


@cache
def _models() -> tuple[str, ...]:
    """One catalogue model per architecture."""
    first: dict[str, str] = {}
    for entry in entries():
        first.setdefault(str(entry.config.get("architectures")), entry.model_id)
    return tuple(first.values())


def _paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and a few list positions of a config."""
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:3]
    for key, child in items:
        yield (*prefix, key)
        if isinstance(child, (dict, list)):
            yield from _paths(child, (*prefix, key))


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, 7, -1, -128, 10**18, 2**63, 0.0, 0.5, -0.5, 1e308, math.nan, math.inf, -math.inf, "",
    "auto", "x" * 200, "64", "float16", [], [0], [1, 2], [None], ["full_attention"], {}, {"a": 1}, {"rope_type": "yarn"},
    {"rope_type": "yarn", "factor": 1e300}, _nested(40), [[[[]]]],
)  # fmt: skip


@st.composite
def broken_configs(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[Any]]:
    """(model, config with one to three keys removed or replaced, what was done)."""
    model = draw(st.sampled_from(_models()))
    entry = find_entry(model)
    assert entry is not None
    config = copy.deepcopy(dict(entry.config))
    done: list[Any] = []
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(_paths(config)) or [("hidden_size",)]))
        parent: Any = config
        for key in path[:-1]:
            parent = parent[key]
        if draw(st.booleans()) and isinstance(parent, dict):
            parent.pop(path[-1], None)
            done.append(("removed", path))
        else:
            parent[path[-1]] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
            done.append((path, parent[path[-1]]))
    return model, config, done


def _check(made: Plan | RefusedPlan) -> None:
    if isinstance(made, RefusedPlan):
        assert made.verdict.message
        return
    assert made.parameters >= 0
    assert made.kv_cache.num_blocks >= 0
    for rank in made.ranks:
        assert rank.kv_bytes >= 0
        assert rank.kv_blocks >= 0
        for term in rank.terms:
            assert term.low <= term.n_bytes <= term.high, term
            if term.name != "allocator_fragmentation":  # tensors may lie in segments from before the snapshot
                assert term.low >= 0, term
            assert math.isfinite(term.high), term


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    case=broken_configs(),
    size=st.sampled_from((1, 2, 8)),
    version=st.sampled_from(("0.26.0", "0.33.0", "0.20.0")),
)
def test_a_broken_config_gives_a_plan_or_one_error(
    case: tuple[str, dict[str, Any], list[Any]], size: int, version: str
) -> None:
    _, config, _ = case
    error = ""
    seconds = []
    while (
        len(seconds) < 3 and min(seconds, default=math.inf) >= SECONDS
    ):  # a busy machine may slow one try, not three
        start = time.process_time()
        try:
            made = plan(
                config, gpu="H200", vllm_version=version, tensor_parallel_size=size, suggestions=False
            )
        except CapacityError as caught:
            error = str(caught)
        else:
            _check(made)
            error = "none"
        seconds.append(time.process_time() - start)
    assert min(seconds) < SECONDS
    assert error.strip()
    assert "\n" not in error


def test_a_million_layers_and_megabytes_of_junk_cost_neither_time_nor_memory(tmp_path: Path) -> None:
    """Under a second of processor time and 200 MB each, in a process of their own."""
    entry = find_entry("Qwen/Qwen3-8B")
    assert entry is not None
    broken = {
        "layers": {**entry.config, "num_hidden_layers": 1_000_000},
        "many": {**entry.config, "num_hidden_layers": 4_000},
        "junk": {**entry.config, "junk": {f"k{i}": "x" * 50 for i in range(70_000)}},
    }
    program = (
        "import resource, sys; from vllm_capacity.cli import run; "
        "code = run(['plan', '--gpu', 'H200', '--json', '--model', sys.argv[1]]); "
        "use = resource.getrusage(resource.RUSAGE_SELF); "
        # not ru_maxrss: that counts the test process from which this one was started
        "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')); "
        "print(code, use.ru_utime + use.ru_stime, peak, file=sys.stderr)"
    )
    for name, config in broken.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config))
        result = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
        )
        code, seconds, kilobytes = result.stderr.split("\n")[-2].split()
        assert int(code) in (0, 1, 2, 3)
        assert float(seconds) < SECONDS, name
        assert int(kilobytes) < 200_000, name
