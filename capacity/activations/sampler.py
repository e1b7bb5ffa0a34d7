"""The end of the profile run on the last stage: final hidden states, logits, and the sampler's dummy pass or
passes.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.activations.final_block import most_of_final_block, rest_of_final_block
from vllm_capacity.activations.live import Phase, Sizes, persistent, phase, transient
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import MemoryTerm

TOP_K_BUFFER = "v1/sample/ops/topk_topp_triton.py: apply_top_k_top_p_triton (cached buffer)"


def needs_topk_buffer(ctx: RankContext, sizes: Sizes) -> bool:
    """Runner V1's second pass takes the native path, whose Triton kernel is used from 8 rows on."""
    return ctx.engine.model_runner == "V1" and _samples(ctx) and sizes.rows >= 8


def topk_buffer(ctx: RankContext, sizes: Sizes) -> MemoryTerm:
    """The Triton top-k/top-p kernel's scratch: one row of fp32 logits per SM, kept for the life of the
    process.
    """
    return persistent(
        "topk_topp_buffer",
        "min(sms, rows) * vocab * 4",
        TOP_K_BUFFER,
        sms=ctx.device.num_sms,
        rows=sizes.rows,
        vocab=sizes.vocab,
    )


def flashinfer_rows(ctx: RankContext, sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """FlashInfer's scratch of the V1 sampler's first pass, and the lookup tables of the Triton kernel's second:
    both are cached for the life of the process.

    Source: v1/sample/ops/topk_topp_sampler.py: flashinfer_sampler_supported; flashinfer/sampling.py:
    top_k_mask_logits (_get_cache_buf of 1 MiB); v1/sample/ops/topk_topp_triton.py (two tables of 200 fp32).
    """
    if ctx.engine.model_runner != "V1" or not _samples(ctx):
        return ()
    return (
        persistent(
            "sampler_tables",
            "1048576 * flashinfer + 2 * block(800)",
            "flashinfer/sampling.py: top_k_mask_logits; v1/sample/ops/topk_topp_triton.py",
            flashinfer=int(_samples_with_flashinfer(ctx)),
        ),
    )


def _samples_with_flashinfer(ctx: RankContext) -> bool:
    """Source: v1/sample/ops/topk_topp_sampler.py: flashinfer_sampler_supported (0.26.0, 0.33.0)."""
    chosen = ctx.engine.environment.get("VLLM_USE_FLASHINFER_SAMPLER")
    on = ctx.release.has("flashinfer_sampler") if chosen is None else chosen not in ("", "0")
    return on and ctx.device.sm >= 80


def flashinfer_scratch(ctx: RankContext) -> tuple[MemoryTerm, ...]:
    """The same scratch of FlashInfer where runner V2 profiles top-k and top-p sampling (from 0.33.0 on).

    Source: flashinfer/sampling.py: top_k_mask_logits (_get_cache_buf of 1 MiB), 0.7.2.
    """
    warmed = ctx.engine.model_runner == "V2" and ctx.release.has("v2_sampler_warmup_params")
    if not warmed or not _samples(ctx) or not _samples_with_flashinfer(ctx):
        return ()
    return (persistent("sampler_scratch", "1048576", "flashinfer/sampling.py: top_k_mask_logits"),)


def _samples(ctx: RankContext) -> bool:
    return ctx.is_last_stage and ctx.architecture.runner_type == "generate"


def final_phases(ctx: RankContext, sizes: Sizes, kept: tuple[MemoryTerm, ...]) -> Iterator[Phase]:
    """Final norm, then logits and sampler (generate) or pooler; nothing on stages before the last."""
    if not ctx.is_last_stage:
        return
    hidden = transient(
        "final_hidden_states",
        "tokens * hidden * el + rest",
        "the model's forward: last_hidden_state, held by profile_run",
        tokens=sizes.tokens,
        hidden=sizes.hidden,
        el=sizes.el,
        high=sizes.tokens * sizes.hidden * sizes.el + most_of_final_block(ctx, sizes),
        rest=rest_of_final_block(ctx, sizes),
    )
    residual = transient(
        "final_norm",
        "tokens * hidden * el",
        "the model's final norm: residual beside the normed output",
        tokens=sizes.tokens,
        hidden=sizes.hidden,
        el=sizes.el,
    )
    yield phase("final norm", (*kept, hidden, residual))
    if not _samples(ctx):
        yield phase("pooler", (*kept, hidden, _pooled(sizes)))
        return
    sampled = _sampled(ctx, sizes)
    yield phase("logits", (*kept, hidden, sampled, *_gather(ctx, sizes)))
    if ctx.engine.model_runner == "V1":
        yield phase("sampler", (*kept, hidden, sampled, *_sampler_v1(sizes)))
        if ctx.engine.num_speculative_tokens:
            yield phase("rejection sampler", (*kept, hidden, sampled, *_rejection_v1(sizes)))
    elif ctx.release.has("v2_sampler_warmup_params"):
        yield phase("sampler", (*kept, hidden, sampled, *_sampler_v2_warmup(ctx, sizes)))
    else:
        yield phase("sampler", (*kept, hidden, sampled, *_sampler_v2(sizes)))


def _pooled(sizes: Sizes) -> MemoryTerm:
    return transient(
        "pooler",
        "tokens * hidden * 4",
        "layers/pooler: heads run in fp32, token-wise pooling over all tokens",
        low=sizes.rows * sizes.hidden * 4,
        tokens=sizes.tokens,
        hidden=sizes.hidden,
    )


def _sampled(ctx: RankContext, sizes: Sizes) -> MemoryTerm:
    """The rows that are sampled; runner V1 replaces them by random ones of the same shape."""
    copies = 2 if ctx.engine.model_runner == "V1" else 1
    return transient(
        "sampled_hidden_states",
        "copies * rows * hidden * el",
        "profile_run, _dummy_sampler_run",
        copies=copies,
        rows=sizes.rows,
        hidden=sizes.hidden,
        el=sizes.el,
    )


def _logits(sizes: Sizes) -> MemoryTerm:
    return transient(
        "logits",
        "block(rows * padded_vocab * el, limited)",
        "layers/logits_processor.py: _get_logits",
        rows=sizes.rows,
        padded_vocab=sizes.padded_vocab,
        el=sizes.el,
        limited=sizes.limited,
    )


def _gather(ctx: RankContext, sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """Logits in the model's dtype; with tp > 1 the local part, the gathered parts and their contiguous copy
    at once.
    """
    local = transient(
        "logits_local",
        "(rows * padded_vocab // tp) * el + rows * padded_vocab * el if tp > 1 else 0",
        "distributed/device_communicators/base_device_communicator.py: all_gather (movedim and reshape copy)",
        rows=sizes.rows,
        padded_vocab=sizes.padded_vocab,
        tp=sizes.tp,
        el=sizes.el,
    )
    cap = transient(
        "logits_soft_cap",
        "capped * rows * vocab * el",
        "layers/logits_processor.py: soft_cap, one temporary",
        capped=int(ctx.architecture.logits_soft_cap),
        rows=sizes.rows,
        vocab=sizes.vocab,
        el=sizes.el,
    )
    return (_logits(sizes), local, cap)


def _sampler_v1(sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """fp32 logits, probabilities and exponential noise beside the logits: 14 bytes per logit for a 2-byte
    model dtype.

    Source: `_dummy_sampler_run`, v1/worker/gpu_model_runner.py; v1/sample/sampler.py: forward;
    v1/sample/ops/topk_topp_sampler.py: forward_native, random_sample.
    """
    fp32 = transient(
        "sampler_fp32_logits",
        "block(rows * vocab * 4) * copied",
        "v1/sample/sampler.py: logits.to(torch.float32)",
        note="no copy where the logits are fp32 already",
        rows=sizes.rows,
        vocab=sizes.vocab,
        copied=int(sizes.el != 4),
    )
    noise = transient(
        "sampler_probabilities",
        "2 * block(rows * vocab * 4)",
        "v1/sample/ops/topk_topp_sampler.py: softmax, then exponential noise",
        rows=sizes.rows,
        vocab=sizes.vocab,
    )
    parameters = transient(
        "sampler_parameters",
        "3 * block(8 * rows) + 6 * block(4 * rows)",
        "v1/worker/gpu_model_runner.py: _dummy_sampler_run (SamplingMetadata, sampled ids)",
        rows=sizes.rows,
    )
    return (_logits(sizes), fp32, noise, parameters)


def _rejection_v1(sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """One draft and one bonus row per sequence: random logits, then the bonus rows' sampling in fp32.

    Source: `_dummy_sampler_run`, v1/worker/gpu_model_runner.py; v1/sample/rejection_sampler.py: forward.
    """
    logits = transient(
        "rejection_logits",
        "2 * rows * vocab * el",
        "v1/worker/gpu_model_runner.py: _dummy_sampler_run",
        rows=sizes.rows,
        vocab=sizes.vocab,
        el=sizes.el,
    )
    probabilities = transient(
        "rejection_probabilities",
        "3 * rows * vocab * 4",
        "v1/sample/rejection_sampler.py: forward",
        rows=sizes.rows,
        vocab=sizes.vocab,
    )
    return (logits, probabilities)


def _sampler_v2(sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """Up to 0.32 the dummy pass has no top-k, top-p or logprobs: logits in the model's dtype and the Gumbel
    maxima.
    """
    gumbel = transient(
        "sampler_gumbel",
        "rows * cdiv(vocab, 1024) * 12",
        "v1/worker/gpu/sample/gumbel.py: gumbel_sample",
        rows=sizes.rows,
        vocab=sizes.vocab,
    )
    return (_logits(sizes), gumbel)


def _sampler_v2_warmup(ctx: RankContext, sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """From 0.33.0 on a second pass with warm-up parameters: fp32 copy, masked logits and probabilities.

    Source: `_dummy_sampler_run`, v1/worker/gpu/model_runner.py:993-1015; v1/worker/gpu/sample/sampler.py:
    apply_sampling_params; FlashInfer's top_k_top_p_sampling_from_logits (0.33.0).
    """
    fp32 = transient(
        "sampler_fp32_logits",
        "block(rows * vocab * 4, limited)",
        "v1/worker/gpu/sample/sampler.py: apply_sampling_params",
        rows=sizes.rows,
        vocab=sizes.vocab,
        limited=sizes.limited,
    )
    filtered = transient(
        "sampler_filtered",
        "2 * block(rows * vocab * 4, limited)",
        "flashinfer/sampling.py: top_k_top_p_sampling_from_logits (masked logits and probabilities)",
        low=None if _samples_with_flashinfer(ctx) else 0,
        rows=sizes.rows,
        vocab=sizes.vocab,
        limited=sizes.limited,
    )
    parameters = transient(
        "sampler_parameters",
        "2 * block(8 * rows) + block(4 * (rows + 1)) + 6 * block(4 * rows) + block(rows)",
        "v1/worker/gpu/input_batch.py: make_dummy; v1/worker/gpu/sample/sampler.py: __call__, get_top_k_top_p; "
        "flashinfer/sampling.py: top_p_sampling_from_probs",
        rows=sizes.rows,
    )
    return (_logits(sizes), fp32, filtered, parameters)
