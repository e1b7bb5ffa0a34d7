"""Questions of `size` as its command asks them."""

from __future__ import annotations

from functools import cache
from typing import Any

from vllm_capacity.cli.engine_options import NAMES
from vllm_capacity.cli.size import command
from vllm_capacity.sizing.ask import Report, ask

GPT_OSS = "openai/gpt-oss-120b"
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


@cache
def answered(*words: str) -> Report:
    """The report of `size WORDS`."""
    options: dict[str, Any] = dict(command.make_context("size", list(words)).params)
    flags = {name: options.pop(name) for name in NAMES}
    return ask(options.pop("command_line"), flags, options).answer()
