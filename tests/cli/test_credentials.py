"""What is printed may be handed on: credentials and variables that no plan depends on stay with who gave them."""

from __future__ import annotations

import pytest
from vllm_capacity.cli import run

SECRET = "hf_secretsecret"
GIVEN = ["--gpu", "H200", "--env", f"HF_TOKEN={SECRET}", "--env", "VLLM_USE_V2_MODEL_RUNNER=0"]


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "--model", "Qwen/Qwen3-8B", *GIVEN],
        ["plan", "--model", "Qwen/Qwen3-8B", *GIVEN, "--json"],
        ["size", "--model", "Qwen/Qwen3-8B", *GIVEN, "--max-model-len", "8K", "--concurrency", "4"],
        ["size", "--model", "Qwen/Qwen3-8B", *GIVEN, "--max-model-len", "8K", "--concurrency", "4", "--json"],
    ],
    ids=["plan", "plan-json", "size", "size-json"],
)
def test_no_credential_is_printed(command, capsys):
    assert run(command) == 0
    out = capsys.readouterr().out
    assert SECRET not in out
    assert "VLLM_USE_V2_MODEL_RUNNER" in out
