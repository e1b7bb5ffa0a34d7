"""Ten thousand library plans on one core, no two of them the same question, in CPU time.

    python benchmarks/many_plans.py                # prints what they took
    python benchmarks/many_plans.py --check        # exits 1 above the target
    python benchmarks/many_plans.py --plans 1000

Target: 10,000 plans in under 10 seconds of one core. The configs are read once, as a service or a search would do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import count, product
from typing import Any

PLANS = 10_000
TARGET_SECONDS = 10.0
MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-30B-A3B",
    "google/gemma-3-27b-it",
    "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3",
    "meta-llama/Llama-3.1-405B",
)
GPUS = ("H100-80GB", "H200", "A100-80GB", "L40S")
RELEASES = ("0.26.0", "0.33.0")


def questions(plans: int) -> Iterator[dict[str, Any]]:
    """Model by model, as a search goes through them: so many questions, no two alike."""
    kinds = list(product(MODELS, GPUS, RELEASES, (1, 2, 4, 8)))
    number = count()
    for index, (model, gpu, release, tp) in enumerate(kinds):
        for _ in range(plans * index // len(kinds), plans * (index + 1) // len(kinds)):
            varied = next(number)
            yield {
                "model": model,
                "gpu": gpu,
                "vllm_version": release,
                "tensor_parallel_size": tp,
                "max_num_batched_tokens": 512 + 8 * (varied % 1000),
                "max_model_len": 1024 + varied % 7000,
                "max_num_seqs": 1 + varied % 255,
            }


def seconds(plans: int) -> tuple[float, int]:
    """(CPU seconds of so many plans, how many of the models start)."""
    from vllm_capacity.api import plan
    from vllm_capacity.inputs.gpus import find_device
    from vllm_capacity.inputs.models import load_model

    configs = {name: load_model(name) for name in MODELS}
    devices = {name: find_device(name) for name in GPUS}
    asked = [
        {**question, "model": configs[question["model"]], "gpu": devices[question["gpu"]]}
        for question in questions(plans)
    ]
    start = time.process_time()
    starting = sum(plan(**question, suggestions=False).starts for question in asked)
    return time.process_time() - start, starting


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, default=PLANS)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    took, starting = seconds(options.plans)
    target = TARGET_SECONDS * options.plans / PLANS
    print(f"{options.plans:,} plans ({starting:,} start): {took:.2f} s of one core (target {target:.1f} s)")
    return 1 if options.check and took > target else 0


if __name__ == "__main__":
    sys.exit(main())
