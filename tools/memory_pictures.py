"""Draws the pictures of docs/memory.md and README.md from plans, so that every number in them is a planned one.

`PICTURES` maps file names in docs/pictures to functions; `python tools/write_docs.py` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from svg import Svg
from vllm_capacity import Plan, plan
from vllm_capacity.budget import Account
from vllm_capacity.kv_cache.specs import KVCacheGroup
from vllm_capacity.ledger import Allocator, Component, Lifetime
from vllm_capacity.report.palette import LINE_COLOURS, LOOKS, name_of
from vllm_capacity.units import GIB, gib

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"
TWO_ACCOUNTINGS = ("0.26.0", "0.33.0")
QUIET, GRID, EMPTY = "#5b7083", "#dde3ea", "#e9eef3"


@cache
def planned(model: str, **flags: Any) -> Plan:
    answer = plan(model, suggestions=False, calibration="none", **flags)
    assert isinstance(answer, Plan)
    return answer


def bar(
    svg: Svg, x: float, y: float, height: float, parts: list[tuple[str, str, str, int]], scale: float
) -> None:
    """Segments (name, colour, colour of its text, bytes) side by side; a label where there is room for it."""
    for name, colour, ink, n_bytes in parts:
        width = n_bytes * scale
        svg.rect(x, y, width, height, colour, stroke="#ffffff", title=f"{name}: {gib(n_bytes)}")
        if width > 6.6 * max(len(name), 9):
            svg.text(x + width / 2, y + height / 2 - 2, name, anchor="middle", colour=ink, weight="bold")
            svg.text(x + width / 2, y + height / 2 + 13, gib(n_bytes), anchor="middle", colour=ink)
        x += width


def label(component: Component) -> str:
    """A component's name as prose writes it."""
    words = {"kv": "KV", "cuda": "CUDA", "nccl": "NCCL", "lora": "LoRA", "flashinfer": "FlashInfer"}
    return " ".join(words.get(word, word) for word in name_of(component).split())


def legend(svg: Svg, x: float, y: float, items: list[tuple[str, str]]) -> None:
    """Coloured squares with words, in one line."""
    for words, colour in items:
        svg.rect(x, y - 9, 10, 10, colour)
        svg.text(x + 14, y, words, colour=QUIET, size=11.5)
        x += 28 + 6.1 * len(words)


ACCOUNTS = {
    Account.WEIGHTS: ("weights", Component.WEIGHTS),
    Account.ACTIVATION: ("activation peak", Component.ACTIVATION),
    Account.NON_TORCH: ("non-torch", Component.CUDA_CONTEXT),
    Account.RUNNER_BUFFERS: ("runner buffers", Component.RUNNER_BUFFERS),
}
GRAPHS, KV, REST = LOOKS[Component.CUDA_GRAPHS].colour, LOOKS[Component.KV_CACHE].colour, "#c9d3dd"


def two_accountings() -> str:
    """One model and GPU under the accounting up to 0.26.0 and from 0.27.0 on."""
    svg = Svg(900, 352, "What vLLM subtracts, up to 0.26.0 and from 0.27.0 on")
    left, width = 20, 860
    for row, version in enumerate(TWO_ACCOUNTINGS):
        answer = planned(LLAMA_8B, gpu="H100-80GB", vllm_version=version)
        rank, y = answer.tightest, 30 + row * 170
        budget, total = rank.budget, answer.device.cuda_total_bytes
        scale = width / total
        parts = [
            (name, LOOKS[component].colour, LOOKS[component].text, budget.totals[account])
            for account, (name, component) in ACCOUNTS.items()
            if budget.totals[account]
        ]
        applied = budget.graph_applied_bytes
        parts += [("graph estimate", GRAPHS, "black", applied)] if applied else []
        parts += [("KV cache", KV, "black", budget.available_kv_bytes)]
        rest = total - budget.requested_bytes
        svg.text(
            left,
            y,
            f"vLLM {version}: requested {gib(budget.requested_bytes)} of {gib(total)}",
            weight="bold",
            size=14,
        )
        bar(svg, left, y + 12, 46, [*parts, ("not requested", REST, "black", rest)], scale)
        share = left + budget.requested_bytes * scale
        svg.line(share, y + 6, share, y + 64, "#1d2b36", width=2)
        svg.text(left, y + 82, "subtracted:", colour=QUIET)
        legend(svg, left + 100, y + 82, [(f"{name} {gib(n)}", colour) for name, colour, _, n in parts[:-1]])
        beside = {Account.OUTSIDE} if applied else {Account.OUTSIDE, Account.CUDA_GRAPHS}
        others = [(component, n) for component, n in sums_by_component(answer, beside) if n > GIB / 100]
        svg.text(left, y + 103, "not subtracted:", colour=QUIET)
        legend(svg, left + 100, y + 103, [(f"{label(c)} {gib(n)}", LOOKS[c].colour) for c, n in others])
        spare = total - rank.device_used_bytes
        svg.text(left, y + 124, f"free once the server is up: {gib(spare)}", colour=QUIET)
    return svg.document()


def sums_by_component(answer: Plan, accounts: set[Account]) -> list[tuple[Component, int]]:
    """Device bytes of the fullest rank in these accounts, what single requests need left out."""
    rank, sums = answer.tightest, dict.fromkeys(LOOKS, 0)
    for term, account in zip(rank.terms, rank.accounts, strict=True):
        if (
            account in accounts
            and term.allocator is not Allocator.HOST
            and term.lifetime is not Lifetime.RUNTIME
        ):
            sums[term.component] += term.n_bytes
    return [(component, n_bytes) for component, n_bytes in sums.items() if n_bytes]


STAGES: tuple[tuple[str, frozenset[Lifetime]], ...] = tuple(
    (name, frozenset(lifetimes))
    for name, lifetimes in (
        ("CUDA is up", {Lifetime.BEFORE_SNAPSHOT}),
        ("model loaded", {Lifetime.BEFORE_SNAPSHOT, Lifetime.RUNNER_INIT, Lifetime.LOAD}),
        ("profile run", set(Lifetime) - {Lifetime.AFTER_PROFILE, Lifetime.RUNTIME}),
        (
            "KV cache made",
            {Lifetime.BEFORE_SNAPSHOT, Lifetime.RUNNER_INIT, Lifetime.LOAD, Lifetime.PROFILE_PERSISTENT},
        ),
        ("graphs captured", set(Lifetime) - {Lifetime.PROFILE_TRANSIENT, Lifetime.RUNTIME}),
    )
)


def start_up() -> str:
    """What is on the GPU at each stage of vLLM's start-up."""
    answer = planned(LLAMA_8B, gpu="H100-80GB", vllm_version=TWO_ACCOUNTINGS[0])
    rank, total = answer.tightest, answer.device.cuda_total_bytes
    svg = Svg(900, 430, "What is on the GPU at each stage of the start-up")
    left, bottom, height, column, gap = 70, 370, 330, 92, 36
    scale = height / total
    for mark in range(0, 81, 20):
        y = bottom - mark * GIB * scale
        svg.line(left, y, left + 5 * (column + gap) + 10, y, GRID)
        svg.text(left - 8, y + 4, f"{mark} GiB", anchor="end", colour=QUIET)
    asked = bottom - rank.budget.requested_bytes * scale
    x, seen = left + gap / 2, dict.fromkeys(LOOKS, 0)
    for name, alive in STAGES:
        y = bottom
        sums = dict.fromkeys(LOOKS, 0)
        for term in rank.terms:
            cache_is_up = name in {"KV cache made", "graphs captured"}
            there = cache_is_up if term.component is Component.KV_CACHE else term.lifetime in alive
            if there and term.allocator is not Allocator.HOST:
                sums[term.component] += term.n_bytes
        for component, n_bytes in sums.items():
            if n_bytes:
                y -= n_bytes * scale
                svg.rect(
                    x,
                    y,
                    column,
                    n_bytes * scale,
                    LOOKS[component].colour,
                    title=f"{label(component)}: {gib(n_bytes)}",
                )
                seen[component] = max(seen[component], n_bytes)
        svg.text(x + column / 2, y - 7, gib(sum(sums.values())), anchor="middle", weight="bold")
        svg.text(x + column / 2, bottom + 18, name, anchor="middle")
        x += column + gap
    svg.line(left, asked, left + 5 * (column + gap) + 10, asked, "#1d2b36", width=1.5, dash="6 4")
    svg.text(x + 4, asked + 4, f"requested {gib(rank.budget.requested_bytes)}")
    y = 150
    for component in [component for component in LOOKS if seen[component] > GIB / 10]:
        svg.rect(x + 4, y - 10, 12, 12, LOOKS[component].colour)
        svg.text(x + 22, y, label(component))
        y += 20
    svg.text(left, 412, f"{LLAMA_8B}, one H100-80GB, vLLM {TWO_ACCOUNTINGS[0]}", colour=QUIET)
    return svg.document()


KINDS = {
    "FullAttentionSpec": ("full attention", "#009E73"),
    "SlidingWindowSpec": ("sliding window", "#56B4E9"),
    "MLAAttentionSpec": ("latent (MLA)", "#CC79A7"),
    "MambaSpec": ("state", "#E69F00"),
}
GROUPED = (
    ("meta-llama/Llama-3.1-8B-Instruct", "H200"),
    ("deepseek-ai/DeepSeek-V2-Lite", "H200"),
    ("google/gemma-3-27b-it", "H200"),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "B300"),
)


def groups() -> str:
    """How layers are put into groups: a row is a group, a square a layer; one block of the pool is one row."""
    cell, left = 14, 20
    rows = sum(len(planned(model, gpu=gpu).kv_cache.groups) for model, gpu in GROUPED)
    svg = Svg(900, 50 + len(GROUPED) * 62 + rows * (cell + 5), "KV cache groups of four models")
    y = 34
    for model, gpu in GROUPED:
        answer = planned(model, gpu=gpu)
        cache = answer.kv_cache
        svg.text(left, y, model.rpartition("/")[2], weight="bold", size=14)
        svg.text(
            left + 300, y, f"a block: {cache.bytes_per_block:,} bytes; blocks in {gib(cache.stages[0].kv_bytes)} "
            f"on {answer.device.name}: {cache.num_blocks:,}", colour=QUIET,
        )  # fmt: skip
        y += 14
        for group in cache.groups:
            _group(svg, left, y, cell, group)
            y += cell + 5
        y += 48
    x = left
    for name, colour in KINDS.values():
        svg.rect(x, y - 22, 12, 12, colour)
        svg.text(x + 18, y - 12, name)
        x += 140
    return svg.document()


def _group(svg: Svg, left: float, y: float, cell: int, group: KVCacheGroup) -> None:
    for position, layer in enumerate(group.layers):
        colour = KINDS[type(group.spec).__name__][1]
        svg.rect(left + position * (cell + 2), y, cell, cell, colour, radius=2, title=f"layer {layer}")
    name = KINDS[type(group.spec).__name__][0]
    held = "one request's state" if name == "state" else f"{group.spec.block_size} tokens"
    shown = ", ".join(str(layer) for layer in group.layers[:4])
    more = ", ..." if len(group.layers) > 4 else ""
    svg.text(
        left + max(len(group.layers), 12) * (cell + 2) + 12, y + 11, f"{name}: layers {shown}{more}; a block holds {held}",
        colour=QUIET,
    )  # fmt: skip


GROWING = (
    "meta-llama/Llama-3.1-70B-Instruct",
    "google/gemma-3-27b-it",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
)


def growth() -> str:
    """KV cache of one request as it gets longer."""
    svg = Svg(900, 460, "KV cache of one request by its length")
    left, top, width, height = 70, 24, 520, 370
    longest, most = 131_072, 16 * GIB
    for mark in range(0, 17, 4):
        y = top + height - mark * GIB / most * height
        svg.line(left, y, left + width, y, GRID)
        svg.text(left - 8, y + 4, f"{mark} GiB", anchor="end", colour=QUIET)
    for tokens in range(0, longest + 1, 32_768):
        x = left + tokens / longest * width
        svg.line(x, top, x, top + height, GRID)
        svg.text(x, top + height + 18, f"{tokens:,}", anchor="middle", colour=QUIET)
    svg.text(
        left + width / 2,
        top + height + 40,
        "tokens in the request, 8,192 tokens a batch, one GPU holding the whole cache",
        anchor="middle",
        colour=QUIET,
    )
    ends: list[tuple[float, str, str]] = []
    for colour, model in zip(LINE_COLOURS, GROWING, strict=True):
        cache = planned(model, gpu="B300", max_model_len="auto", max_num_batched_tokens=8192).kv_cache
        points = []
        for tokens in (1, *range(2048, longest + 1, 2048)):
            n_bytes = cache.blocks_for(tokens) * cache.bytes_per_block
            if n_bytes > most:
                break
            points.append((left + tokens / longest * width, top + height - n_bytes / most * height))
        svg.path(points, colour)
        at = cache.blocks_for(longest) * cache.bytes_per_block
        ends.append((at, colour, f"{model.rpartition('/')[2]}: {gib(at)}"))
    y = top + 30
    svg.text(left + width + 24, y - 10, f"one request of {longest:,} tokens:", weight="bold")
    for _, colour, words in sorted(ends, reverse=True):
        y += 24
        svg.line(left + width + 24, y - 4, left + width + 44, y - 4, colour, width=3)
        svg.text(left + width + 50, y, words, size=11.5)
    return svg.document()


def tensor_parallel() -> str:
    """What each GPU holds as a model is split over 2, 4, 8 of them."""
    svg = Svg(900, 348, "Llama-3.1-70B over 2, 4 and 8 GPUs")
    left, width = 20, 860
    for row, tp in enumerate((2, 4, 8)):
        answer = planned(LLAMA_70B, gpu="H100-80GB", tensor_parallel_size=tp, max_model_len="auto")
        y = 34 + row * 92
        total = answer.device.cuda_total_bytes
        parts = [
            (label(component), LOOKS[component].colour, LOOKS[component].text, n_bytes)
            for component, n_bytes in sums_by_component(answer, set(Account))
        ]
        used = sum(n_bytes for _, _, _, n_bytes in parts)
        used_by = dict(sums_by_component(answer, set(Account)))
        per_token = answer.kv_cache.marginal_bytes_per_token
        svg.text(left, y, f"tp {tp}: each of {tp} x {answer.device.name}", weight="bold", size=14)
        svg.text(
            left + width, y, f"{per_token:,.0f} bytes per token and GPU; {answer.kv_cache.size_tokens:,} tokens together",
            anchor="end", colour=QUIET,
        )  # fmt: skip
        bar(
            svg,
            left,
            y + 10,
            44,
            [*parts, ("free", EMPTY, "black", max(total - used, 0))],
            width / max(total, used),
        )
    shown = [(label(component), LOOKS[component].colour) for component in LOOKS if component in used_by]
    legend(svg, left, 310, shown)
    svg.text(left, 334, f"{LLAMA_70B}, vLLM {answer.release.version}", colour=QUIET)
    return svg.document()


PICTURES: dict[str, Callable[[], str]] = {
    "two-accountings.svg": two_accountings,
    "start-up.svg": start_up,
    "kv-groups.svg": groups,
    "kv-growth.svg": growth,
    "tensor-parallel.svg": tensor_parallel,
}


def numbers(picture: str) -> set[str]:
    """The figures in a picture's text."""
    return set(re.findall(r"\d[\d,.]*", " ".join(re.findall(r">([^<]+)</text>", picture))))
