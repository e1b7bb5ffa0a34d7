"""Answers of `size` and their pages."""

from __future__ import annotations

from functools import cache
from typing import Any

from reading_pages import Page
from vllm_capacity.cli.engine_options import NAMES
from vllm_capacity.report.html import size_page
from vllm_capacity.sizing.ask import Report, ask
from vllm_capacity.sizing.context_curve import Curve, context_curves

SIZE_COMMAND = "vllm-capacity size --of these tests"


@cache
def sized() -> Report:
    return _asked({"max_model_len": "32K"}, model="meta-llama/Llama-3.1-70B-Instruct", concurrency=64,
                  gpus="H100,H200,L40S", vllm_version="0.26.0")  # fmt: skip


@cache
def no_gpu() -> Report:
    return _asked({"max_model_len": "32K"}, model="deepseek-ai/DeepSeek-V3", concurrency=64, gpus="L4,T4",
                  vllm_version="0.26.0")  # fmt: skip


def _asked(flags: dict[str, Any], **options: Any) -> Report:
    return ask((), {**dict.fromkeys(NAMES), **flags}, options).answer()


@cache
def curves() -> list[Curve]:
    return context_curves(sized().question, sized().rows[:3])


@cache
def sized_page() -> Page:
    return Page(size_page(sized(), SIZE_COMMAND, curves=curves(), top=6))


@cache
def no_gpu_page() -> Page:
    return Page(size_page(no_gpu(), SIZE_COMMAND))
