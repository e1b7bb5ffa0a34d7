"""Single changes worth knowing, each re-planned with the change made: the effect is computed, never guessed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from vllm_capacity.answer import Effect, Plan, RefusedPlan, Suggestion
from vllm_capacity.engine import EngineArgs
from vllm_capacity.units import MIB

Replan = Callable[[EngineArgs], Plan | RefusedPlan]

MOST = 6
"""Suggestions shown: more would hide the good ones."""
WORTH_BYTES = 64 * MIB
"""A change that frees less on a plan that starts is not worth a line."""


def suggestions(plan: Plan, replan: Replan) -> tuple[Suggestion, ...]:
    """Changes that make a failing plan start, then those that free the most for the KV cache.

    Ranked by what they cost the user: settings first, then quality (KV dtype), then speed (eager), then GPUs.
    """
    found: list[tuple[int, int, Suggestion]] = []
    for cost, (change, flags, args) in enumerate(_candidates(plan)):
        other = replan(args)
        if isinstance(other, RefusedPlan):
            continue
        effect = Effect(
            starts=other.starts,
            available_kv_bytes_delta=other.tightest.budget.available_kv_bytes
            - plan.tightest.budget.available_kv_bytes,
            kv_cache_size_tokens_delta=other.kv_cache.size_tokens - plan.kv_cache.size_tokens,
        )
        helps = effect.starts if not plan.starts else False
        gains = effect.available_kv_bytes_delta >= WORTH_BYTES or effect.kv_cache_size_tokens_delta > 0
        if helps or (gains and effect.starts == plan.starts):
            found.append(
                (
                    0 if helps else 1,
                    cost if helps else -effect.kv_cache_size_tokens_delta,
                    Suggestion(change, flags, effect),
                )
            )
    found.sort(key=lambda item: item[:2])
    return tuple(suggestion for _, _, suggestion in found[:MOST])


def _candidates(plan: Plan) -> Iterator[tuple[str, tuple[str, ...], EngineArgs]]:
    """(what changes, the flags that do it, the arguments with it), cheapest for the user first."""
    engine, args, verdict = plan.engine, plan.engine.args, plan.verdict
    limit = verdict.max_gpu_memory_utilization
    if limit is not None and engine.kv_cache_memory_bytes is None:
        safe = math.floor(limit * 100) / 100
        if 0 < safe != engine.gpu_memory_utilization:
            word = (
                "use all that is free"
                if safe > engine.gpu_memory_utilization
                else "ask for no more than is free"
            )
            yield word, ("--gpu-memory-utilization", f"{safe:g}"), replace(args, gpu_memory_utilization=safe)
    fits = verdict.max_model_len_that_fits
    if not plan.starts and fits and fits < plan.kv_cache.max_model_len:
        yield "shorter requests", ("--max-model-len", str(fits)), replace(args, max_model_len=fits)
    for sequences in (256, 64):
        if engine.max_num_seqs > sequences:
            yield (
                "fewer sequences a batch",
                ("--max-num-seqs", str(sequences)),
                replace(args, max_num_seqs=sequences),
            )
    for tokens in (4096, 2048):
        if engine.max_num_batched_tokens > tokens >= engine.max_num_seqs:
            yield (
                "fewer tokens a batch",
                ("--max-num-batched-tokens", str(tokens)),
                replace(args, max_num_batched_tokens=tokens),
            )
    if engine.kv_cache_dtype in ("auto", "bfloat16", "float16"):
        yield "8-bit KV cache", ("--kv-cache-dtype", "fp8"), replace(args, kv_cache_dtype="fp8")
    if not engine.enforce_eager:
        yield "no compilation, no graphs: slower", ("--enforce-eager",), replace(args, enforce_eager=True)
    parallel = engine.parallel
    if parallel.tp < 8:
        yield (
            "twice the GPUs",
            ("--tensor-parallel-size", str(2 * parallel.tp)),
            replace(args, tensor_parallel_size=2 * parallel.tp),
        )
