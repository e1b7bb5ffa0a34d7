"""Every suggestion of `plan`, applied, gives the figure it promises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vllm_capacity.cli import run

PLANS = {
    "does not start": ("--model", "Qwen/Qwen3-8B", "--gpu", "L4"),
    "GPU in use": ("--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100", "--free-memory", "60GiB"),
    "starts": ("--model", "openai/gpt-oss-120b", "--gpu", "H100", "--tp", "2"),
    "states": ("--model", "Qwen/Qwen3-Next-80B-A3B-Instruct", "--gpu", "H200", "--tp", "2"),
}


def planned(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    run(["plan", "--json", "--vllm-version", "0.26.0", *words])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def available(plan: dict[str, Any]) -> int:
    tightest = min(plan["ranks"], key=lambda rank: rank["num_blocks_own"])
    return int(tightest["available_kv_bytes"])


@pytest.mark.parametrize("name", PLANS)
def test_a_suggestion_applied_gives_what_it_promises(name: str, capsys: pytest.CaptureFixture[str]):
    before = planned(PLANS[name], capsys)
    assert before["verdict"]["suggestions"]
    for suggestion in before["verdict"]["suggestions"]:
        # a flag given twice: the later one counts, as in vLLM
        after = planned((*PLANS[name], *suggestion["flags"]), capsys)
        effect = suggestion["effect"]
        assert (after["verdict"]["status"] == "starts") == effect["starts"], suggestion
        assert available(after) - available(before) == effect["available_kv_bytes_delta"], suggestion
        assert (
            after["kv_cache"]["size_tokens"] - before["kv_cache"]["size_tokens"]
            == effect["kv_cache_size_tokens_delta"]
        ), suggestion
