"""docs/sizing.md sizes the six models of its title (tests/docs runs them); its price file is one that `size` reads."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from vllm_capacity.sizing.price_file import read_prices

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "sizing.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```console\n\$ vllm-capacity ([^\n]+)\n(.*?)```", PAGE, re.DOTALL)


def test_the_six_models_are_there():
    models = [shlex.split(command)[2] for command, _ in EXAMPLES]
    assert [model.rpartition("/")[2] for model in models] == [
        "Llama-3.1-70B-Instruct", "Qwen3-235B-A22B-FP8", "DeepSeek-V3", "gpt-oss-120b", "gemma-3-27b-it",
        "Qwen3-Next-80B-A3B-Instruct",
    ]  # fmt: skip
    assert all("--max-model-len 32K --concurrency 64" in command for command, _ in EXAMPLES)


def test_the_example_prices_are_read_and_say_where_they_come_from():
    prices = read_prices(DOCS / "prices.example.yaml")
    assert (prices.currency, prices.unit) == ("USD", "gpu_hour")
    assert ("H100-80GB", 8) in prices.nodes
