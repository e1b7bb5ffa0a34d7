"""Speed of the main job, as ratios and CPU time of processes (wall-clock seconds mean little on a shared machine).

    python benchmarks/plan_speed.py            # prints a table
    python benchmarks/plan_speed.py --check    # exits 1 if a target is missed

Targets: `plan --json` of a local config takes at most twice `python -c "import click; from pydantic import BaseModel"`;
one library plan without suggestions takes under 1 ms once the config is read, whatever the model's size.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAIRS = 15
BASELINE = (sys.executable, "-c", "import click; from pydantic import BaseModel")
PLAN = (
    sys.executable,
    "-c",
    "from vllm_capacity.cli import main; main()",
    "plan",
    "--gpu",
    "H100-80GB",
    "--json",
)
MODELS = {
    "Qwen/Qwen2.5-0.5B-Instruct": 1,
    "meta-llama/Llama-3.1-8B-Instruct": 8,
    "google/gemma-3-27b-it": 8,
    "Qwen/Qwen3-235B-A22B": 8,
    "meta-llama/Llama-3.1-405B": 8,
    "deepseek-ai/DeepSeek-V3": 8,
}
"""From small to large, with the tensor parallel size to plan for."""
RELEASES = ("0.26.0", "0.33.0")
RATIO_TARGET = 2.0
LIBRARY_TARGET_MS = 1.0


@dataclass(frozen=True)
class Cost:
    """Seconds of one finished process: CPU (user and system) and wall clock."""

    cpu: float
    wall: float


def process_cost(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """What the command took. RuntimeError where it fails: a program that stops early is quick."""
    start = time.perf_counter()
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    _, status, usage = os.wait4(os.posix_spawn(command[0], command, environment, file_actions=quiet), 0)
    wall = time.perf_counter() - start
    if status:
        raise RuntimeError(f"{' '.join(command)}: status {status}")
    return Cost(usage.ru_utime + usage.ru_stime, wall)


def paired_ratios(pairs: int = PAIRS) -> tuple[float, float]:
    """(CPU, wall clock) of one plan over the baseline: medians over runs made in turn, so that drift cancels out.

    Both programs find their bytecode cached, as after any installation.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        plan = (*PLAN, "--model", str(local_config(Path(folder))))
        process_cost(plan, environment), process_cost(BASELINE, environment)
        runs = [(process_cost(plan, environment), process_cost(BASELINE, environment)) for _ in range(pairs)]
    return (
        statistics.median(ours.cpu / base.cpu for ours, base in runs),
        statistics.median(ours.wall / base.wall for ours, base in runs),
    )


def local_config(folder: Path) -> Path:
    """A config.json as it lies in a model's folder."""
    from vllm_capacity.inputs.catalogue import find_entry

    entry = find_entry("meta-llama/Llama-3.1-8B-Instruct")
    assert entry is not None
    path = folder / "config.json"
    path.write_text(json.dumps(dict(entry.config)), encoding="utf-8")
    return path


def library_milliseconds(name: str, release: str, repeats: int = 300) -> tuple[float, float]:
    """(least, median) CPU time of one plan, its config already read."""
    from vllm_capacity.api import plan
    from vllm_capacity.inputs.gpus import find_device
    from vllm_capacity.inputs.models import load_model

    config, device = load_model(name), find_device("H200")
    return milliseconds(
        lambda: plan(
            config, gpu=device, vllm_version=release, tensor_parallel_size=MODELS[name], suggestions=False
        ),
        repeats,
    )


def milliseconds(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time_ns()
        call()
        times.append((time.process_time_ns() - start) / 1e6)
    return min(times), statistics.median(times)


def main() -> int:
    missed = 0
    cpu, wall = paired_ratios()
    print(
        f"plan --json over the import of click and pydantic: CPU {cpu:.2f}x, wall clock {wall:.2f}x (target 2x)"
    )
    missed += max(cpu, wall) > RATIO_TARGET
    for release in RELEASES:
        for name in MODELS:
            least, median = library_milliseconds(name, release)
            print(f"library plan, {name}, {release}: {least:.2f} ms, median {median:.2f} ms (target 1 ms)")
            missed += least > LIBRARY_TARGET_MS
    return 1 if missed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
