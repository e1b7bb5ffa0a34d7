"""Ten thousand library plans on one core, no two of them the same question, in CPU time.

    python benchmarks/many_plans.py                # prints what they took
    python benchmarks/many_plans.py --check        # exits 1 above the target
    python benchmarks/many_plans.py --share 10     # a tenth of it

Target: 10,000 plans in under 10 seconds of one core. The configs are read once, as a service or a search would do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import product
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


def questions(share: int = 1) -> Iterator[dict[str, Any]]:
    """`PLANS` questions, no two alike, model by model, as a search goes through them; of every `share`-th kind only."""
    kinds = list(enumerate(product(MODELS, GPUS, RELEASES, (1, 2, 4, 8))))
    for index, (model, gpu, release, tp) in kinds[::share]:
        for number in range(PLANS * index // len(kinds), PLANS * (index + 1) // len(kinds)):
            yield {
                "model": model,
                "gpu": gpu,
                "vllm_version": release,
                "tensor_parallel_size": tp,
                "max_num_batched_tokens": 512 + 8 * (number % 1000),
                "max_model_len": 1024 + number % 7000,
                "max_num_seqs": 1 + number % 255,
            }


def seconds(share: int = 1) -> tuple[float, int, int]:
    """(CPU seconds of the plans, how many they are, how many of them start)."""
    from vllm_capacity.api import plan
    from vllm_capacity.inputs.gpus import find_device
    from vllm_capacity.inputs.models import load_model

    configs = {name: load_model(name) for name in MODELS}
    devices = {name: find_device(name) for name in GPUS}
    asked = [
        {**question, "model": configs[question["model"]], "gpu": devices[question["gpu"]]}
        for question in questions(share)
    ]
    start = time.process_time()
    starting = sum(plan(**question, suggestions=False).starts for question in asked)
    return time.process_time() - start, len(asked), starting


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=int, default=1, metavar="N", help="every N-th kind of question only")
    parser.add_argument("--check", action="store_true", help="exit 1 above the target")
    options = parser.parse_args()
    took, plans, starting = seconds(options.share)
    target = TARGET_SECONDS * plans / PLANS
    print(f"{plans:,} plans ({starting:,} start): {took:.2f} s of one core (target {target:.1f} s)")
    return 1 if options.check and took > target else 0


if __name__ == "__main__":
    sys.exit(main())
