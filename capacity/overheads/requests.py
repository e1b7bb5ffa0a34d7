"""What some requests need at run time beyond the profile run, and vLLM's warm-up of the sampler after graph
capture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vllm_capacity.activations.live import Sizes
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, term
from vllm_capacity.units import gib

SAMPLER_WARMUP = "sampler_warmup"
"""Name of the term that lives only during vLLM's warm-up of the sampler, after the KV cache and the graphs exist."""
WARMUP_BEFORE_GRAPHS = "sampler_warmup_before_graphs"
"""The same where the graphs come later."""


def request_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """The sampler's warm-up at full batch, and heavy requests; nothing on stages without a sampler."""
    if not ctx.is_last_stage or ctx.architecture.runner_type != "generate":
        return
    sizes, v2 = Sizes.of(ctx), ctx.engine.model_runner == "V2"
    yield _warm_up(ctx, sizes)
    yield _prompt_logprobs(sizes, v2=v2)
    if not v2:
        yield term(
            "penalties",
            Component.ACTIVATION,
            "rows * (vocab + 1) * 18",
            lifetime=Lifetime.RUNTIME,
            source="model_executor/layers/utils.py: get_token_bin_counts_and_mask",
            note="counts of prompt and output tokens (int64) and masks, once a request uses penalties",
            rows=sizes.rows,
            vocab=sizes.vocab,
        )


def _warm_up(ctx: RankContext, sizes: Sizes) -> MemoryTerm:
    """A full batch with top-k, top-p and penalties after the cache exists. It comes after the graphs, or (runner V2 from
    0.30.0 on) before them: then capturing them gives back what it took. Eager runs of V2 leave it out from 0.31.0 on.
    """
    v2, release = ctx.engine.model_runner == "V2", ctx.release
    if v2 and ctx.engine.enforce_eager and release.has("eager_without_warm_up"):
        return term(
            SAMPLER_WARMUP, Component.ACTIVATION, "0", lifetime=Lifetime.RUNTIME,
            source="config/vllm.py: enable_jit_warmup", note="--enforce-eager leaves the warm-up out",
        )  # fmt: skip
    first = v2 and ctx.engine.cudagraph_mode != "NONE" and release.has("v2_warms_up_before_capture")
    copied = int(v2 and not release.has("v2_sampler_warmup_params"))
    return term(
        WARMUP_BEFORE_GRAPHS if first else SAMPLER_WARMUP,
        Component.ACTIVATION,
        "rows * vocab * (el * (1 + copied) + 4 + 8) + rows * hidden * el",
        lifetime=Lifetime.RUNTIME,
        source="v1/worker/gpu_worker.py: compile_or_warm_up_model; v1/worker/gpu/warmup.py: warmup_kernels",
        high=max(
            sizes.rows * sizes.vocab * (sizes.el * (1 + copied) + 12) * 5 // 4,
            sizes.rows * (sizes.vocab * (sizes.el * (1 + copied) + 12) + sizes.hidden * sizes.el),
        ),
        note="full batch with top-k, top-p, penalties, once the cache exists; "
        + ("given back before graphs are captured" if first else "PyTorch keeps it"),
        rows=sizes.rows,
        vocab=sizes.vocab,
        el=sizes.el,
        copied=copied,
        hidden=sizes.hidden,
    )


def _prompt_logprobs(sizes: Sizes, *, v2: bool) -> MemoryTerm:
    """Runner V2 computes a prompt's logits 1,024 rows at a time and never materialises log-probabilities;
    runner V1 takes all tokens of the request in the batch at once and adds their fp32 log-softmax.
    """
    if v2:
        return term(
            "prompt_logprobs",
            Component.ACTIVATION,
            "min(1024, tokens) * vocab * el",
            lifetime=Lifetime.RUNTIME,
            source="v1/worker/gpu/sample/prompt_logprob.py: compute_prompt_logprobs_with_chunking",
            high=min(1024, sizes.tokens) * sizes.vocab * sizes.el * 2,
            note="one chunk of prompt logits; never profiled",
            tokens=sizes.tokens,
            vocab=sizes.vocab,
            el=sizes.el,
        )
    return term(
        "prompt_logprobs",
        Component.ACTIVATION,
        "tokens * vocab * (el + 4)",
        lifetime=Lifetime.RUNTIME,
        source="v1/worker/gpu_model_runner.py: _get_prompt_logprobs_dict; v1/sample/sampler.py",
        high=sizes.tokens * sizes.vocab * (sizes.el + 12),
        note="logits and log-softmax of a whole batch of prompt tokens; never profiled",
        tokens=sizes.tokens,
        vocab=sizes.vocab,
        el=sizes.el,
    )


def heavy_requests(terms: Iterable[MemoryTerm]) -> tuple[MemoryTerm, ...]:
    """Of a rank's terms those that only some requests need: a start can succeed and one of them fail."""
    return tuple(t for t in terms if t.lifetime is Lifetime.RUNTIME and t.n_bytes and t.allocator != "host")


_CURES = {
    "prompt_logprobs": "a lower --max-num-batched-tokens or --gpu-memory-utilization",
    "penalties": "a lower --max-num-seqs or --gpu-memory-utilization",
    "encoder_cache": "a lower --gpu-memory-utilization or smaller --limit-mm-per-prompt",
}


def request_warnings(terms: Iterable[MemoryTerm], left_bytes: int) -> tuple[str, ...]:
    """One sentence for each kind of request that can run out of memory after a successful start.

    `left_bytes` is what the device has left beside everything that stays allocated (the KV cache included).
    """
    warnings = []
    for t in heavy_requests(terms):
        if t.name in (SAMPLER_WARMUP, WARMUP_BEFORE_GRAPHS) or t.n_bytes <= left_bytes:
            continue
        cure = _CURES.get(t.name, "a lower --gpu-memory-utilization")
        warnings.append(
            f"requests with {t.name.replace('_', ' ')} can run out of memory: they need {gib(t.n_bytes)} at a"
            f" full batch and {gib(max(left_bytes, 0))} are left; {cure} gives them room"
        )
    return tuple(warnings)
