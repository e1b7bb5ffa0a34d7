"""What has to be served at once: how concurrency, a workload or a trace become tokens in the KV cache.

A demand says how many requests are in flight at the same time and how long they are. It knows nothing about models: what a
request of so many tokens takes is the plan's business (`engine_capacity`), because windows and states do not grow with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_capacity.errors import InputError
from vllm_capacity.units import cdiv, round_up

LENGTH_STEP = 256
"""A workload's --max-model-len is its longest request, rounded up to this many tokens."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A share `weight` of the requests holds `tokens` tokens, prompt and output together."""

    tokens: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """`sequences` requests at once. Lengths are in tokens and count the whole prompt and the whole output.

    `p95_tokens` equals the mean where all requests are alike; `longest_tokens` is what --max-model-len must allow;
    `shared_tokens` is the prefix that every request has in common. `how` says in words how the tokens came about.
    """

    sequences: int
    lengths: tuple[Lengths, ...]
    p95_tokens: int
    longest_tokens: int
    shared_tokens: int = 0
    how: tuple[str, ...] = ()

    @property
    def mean_tokens(self) -> float:
        return sum(point.tokens * point.weight for point in self.lengths)


def from_concurrency(sequences: int, max_model_len: int, prefix_share: float = 0.0) -> Demand:
    """`sequences` requests of `max_model_len` tokens each, all of them in the KV cache. Raises InputError."""
    shared = _shared(prefix_share, max_model_len)
    how = [
        f"{sequences:,} requests x {max_model_len:,} tokens = {sequences * max_model_len:,} tokens in the KV cache"
    ]
    if shared:
        how.append(_share_in_words(prefix_share, max_model_len, shared))
    return Demand(
        sequences=sequences, lengths=(Lengths(max_model_len, 1.0),), p95_tokens=max_model_len,
        longest_tokens=max_model_len, shared_tokens=shared, how=tuple(how),
    )  # fmt: skip


def from_workload(
    users: int,
    prompt_tokens: int,
    output_tokens: int,
    *,
    prompt_p95: int | None = None,
    output_p95: int | None = None,
    prefix_share: float = 0.0,
) -> Demand:
    """`users` requests in flight with the given mean lengths; p95 values default to the means. Raises InputError."""
    for name, mean, p95 in (("prompt", prompt_tokens, prompt_p95), ("output", output_tokens, output_p95)):
        if p95 is not None and p95 < mean:
            raise InputError(f"--{name}-p95 {p95} is below the mean of {mean} tokens")
    mean = prompt_tokens + output_tokens
    p95 = (prompt_p95 or prompt_tokens) + (output_p95 or output_tokens)
    shared = _shared(prefix_share, prompt_tokens)
    how = [
        f"a request counts with its whole prompt and output: {prompt_tokens:,} + {output_tokens:,} = {mean:,} tokens; "
        f"{users:,} at once = {users * mean:,} tokens in the KV cache"
    ]
    if p95 > mean:
        how.append(_spread_in_words(mean, p95))
    if shared:
        how.append(_share_in_words(prefix_share, prompt_tokens, shared))
    return Demand(
        sequences=users, lengths=(Lengths(mean, 1.0),), p95_tokens=p95, longest_tokens=round_up(p95, LENGTH_STEP),
        shared_tokens=shared, how=tuple(how),
    )  # fmt: skip


def from_lengths(
    counts: dict[int, int],
    sequences: int,
    *,
    longest: int,
    mean_prompt: float,
    prefix_share: float = 0.0,
    how: tuple[str, ...] = (),
) -> Demand:
    """`sequences` requests at once whose lengths are spread as in `counts` (tokens -> how many). Raises InputError."""
    total = sum(counts.values())
    if not total:
        raise InputError("--trace: the file holds no request")
    p95 = _quantile(counts, 0.95)
    shared = _shared(prefix_share, int(mean_prompt))
    points = _condensed(counts)
    mean = sum(point.tokens * point.weight for point in points)
    words = [
        *how,
        f"{sequences:,} at once x {mean:,.0f} tokens on average = {sequences * mean:,.0f} tokens in the KV cache",
    ]
    if p95 > mean:
        words.append(_spread_in_words(round(mean), p95))
    if shared:
        words.append(_share_in_words(prefix_share, round(mean_prompt), shared))
    return Demand(
        sequences=sequences, lengths=points, p95_tokens=max(p95, round(mean)),
        longest_tokens=round_up(max(longest, 1), LENGTH_STEP), shared_tokens=shared, how=tuple(words),
    )  # fmt: skip


POINTS = 64
"""Lengths of a trace are condensed to this many points of equal weight, each the mean of its share of requests."""


def _condensed(counts: dict[int, int]) -> tuple[Lengths, ...]:
    total = sum(counts.values())
    per_point = cdiv(total, POINTS)
    points: list[Lengths] = []
    tokens = taken = 0
    for length, count in sorted(counts.items()):
        while count:
            now = min(count, per_point - taken)
            tokens, taken, count = tokens + now * length, taken + now, count - now
            if taken == per_point:
                points.append(Lengths(cdiv(tokens, taken), taken / total))
                tokens = taken = 0
    if taken:
        points.append(Lengths(cdiv(tokens, taken), taken / total))
    return tuple(points)


def _quantile(counts: dict[int, int], share: float) -> int:
    """The smallest length that at least `share` of the requests do not exceed."""
    wanted = share * sum(counts.values())
    seen = 0
    for length, count in sorted(counts.items()):
        seen += count
        if seen >= wanted:
            return length
    raise AssertionError("share is at most 1")


def _shared(share: float, prompt_tokens: int) -> int:
    if not 0 <= share < 1:
        raise InputError(f"--prefix-share {share:g} must be at least 0 and below 1")
    return int(share * prompt_tokens)


def _share_in_words(share: float, prompt_tokens: int, shared: int) -> str:
    return (
        f"prefix share {share:g} of {prompt_tokens:,} prompt tokens: {shared:,} tokens are kept once per engine, "
        "in whole blocks, where prefix caching is on and only in layers that keep the whole context"
    )


def _spread_in_words(mean: int, p95: int) -> str:
    return (
        f"spread: 19 of 20 requests stay below {p95:,} tokens; N at once need N x mean + sqrt(N) x (p95 - mean), "
        f"the 95 % bound of a sum of N independent requests (mean {mean:,})"
    )
