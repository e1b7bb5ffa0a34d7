"""Speed of the main job, as ratios within one run on one machine (seconds mean nothing elsewhere).

    python benchmarks/plan_speed.py            # prints a table
    python benchmarks/plan_speed.py --check    # exits 1 if a target is missed

Targets: `plan --json` of a local config takes at most twice `python -c "import click; from pydantic import BaseModel"`; one
library plan without suggestions takes under 1 ms once the config is read, whatever the model's size.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

RUNS = 15
BASELINE = [sys.executable, "-c", "import click; from pydantic import BaseModel"]
MODELS = ("HuggingFaceTB/SmolLM2-135M", "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-235B-A22B",
          "meta-llama/Llama-3.1-405B")  # fmt: skip


def seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def paired_ratio(command: Sequence[str], baseline: Sequence[str]) -> float:
    """Median of the ratios of runs made in turn, so that a machine that drifts does not matter."""
    seconds(command), seconds(baseline)
    return statistics.median(seconds(command) / seconds(baseline) for _ in range(RUNS))


def best_milliseconds(call: Callable[[], object], repeats: int = 200) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def main() -> int:
    from vllm_capacity.api import plan
    from vllm_capacity.inputs.catalogue import find_entry
    from vllm_capacity.inputs.gpus import find_device
    from vllm_capacity.inputs.models import load_model

    missed = []
    with tempfile.TemporaryDirectory() as folder:
        entry = find_entry(MODELS[1])
        assert entry is not None
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(dict(entry.config)))
        program = Path(sys.executable).with_name("vllm-capacity")
        ratio = paired_ratio([str(program), "plan", "--model", str(path), "--gpu", "H100-80GB", "--json"], BASELINE)
    print(f"plan --json, process against import of click and pydantic: {ratio:.2f}x (target 2x)")
    if ratio > 2:
        missed.append("process")
    device = find_device("H100-80GB")
    for name in MODELS:
        config = load_model(name)
        milliseconds = best_milliseconds(
            lambda config=config: plan(config, gpu=device, vllm_version="0.33.0", tensor_parallel_size=8, suggestions=False)
        )
        print(f"library plan, {name}: {milliseconds:.2f} ms (target 1 ms)")
        if milliseconds > 1:
            missed.append(name)
    return 1 if missed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
