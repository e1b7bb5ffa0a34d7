"""The commands in docs/sizing.md run, and buy what the page says; its price file is one that `size` reads."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from vllm_capacity.cli import run
from vllm_capacity.sizing.price_file import read_prices

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "sizing.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```console\n\$ vllm-capacity ([^\n]+)\n(.*?)```", PAGE, re.DOTALL)
ROW = re.compile(r"^(\d+ x \S+)\s{2,}(\d+ x tp\d.*?)\s{2,}(\S+)\s{2,}", re.MULTILINE)
"""What is bought, its layout, and the cache dtype: figures with digits behind may move with every measured constant."""


def test_the_six_models_are_there():
    models = [shlex.split(command)[2] for command, _ in EXAMPLES]
    assert [model.rpartition("/")[2] for model in models] == [
        "Llama-3.1-70B-Instruct", "Qwen3-235B-A22B-FP8", "DeepSeek-V3", "gpt-oss-120b", "gemma-3-27b-it",
        "Qwen3-Next-80B-A3B-Instruct",
    ]  # fmt: skip
    assert all("--max-model-len 32K --concurrency 64" in command for command, _ in EXAMPLES)


@pytest.mark.parametrize(
    ("command", "shown"), EXAMPLES, ids=[shlex.split(command)[2] for command, _ in EXAMPLES]
)
def test_a_documented_command_buys_what_the_page_says(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "118")
    assert run(shlex.split(command)) == 0
    out = capsys.readouterr().out.split("\nThe first row\n")[0]
    assert ROW.findall(shown)
    assert ROW.findall(out) == ROW.findall(shown)
    assert "64 requests x 32,768 tokens = 2,097,152 tokens" in out


OTHERS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("vllm-capacity ")
]


@pytest.mark.parametrize("command", OTHERS)
def test_every_other_command_on_the_page_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requests.jsonl").write_text(
        '{"prompt_tokens": 900, "output_tokens": 80, "start": 0, "end": 3}\n' * 9
    )
    (tmp_path / "prices.yaml").write_text((DOCS / "prices.example.yaml").read_text())
    assert run(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


def test_the_example_prices_are_read_and_say_where_they_come_from():
    prices = read_prices(DOCS / "prices.example.yaml")
    assert (prices.currency, prices.unit) == ("USD", "gpu_hour")
    assert ("H100-80GB", 8) in prices.nodes
