"""What a cold torch.compile adds to the peak: kernels are timed on example tensors as large as the real ones.

`torch._inductor.standalone_compile` sets `triton.autotune_at_compile_time` (torch 2.10 to 2.14, so every
release planned here): for each Triton kernel of a piece the generated wrapper allocates example arguments,
runs the kernel and frees an argument after the last kernel that uses it (torch/_inductor/codegen/wrapper.py:
generate_example_arg_value, generate_and_run_autotune_block). The first piece holds the embedding lookup,
whose arguments include the rank's whole vocabulary matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vllm_capacity.activations.layers import l2_flush
from vllm_capacity.activations.live import Phase, Sizes, phase, transient
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import MemoryTerm

SOURCE = (
    "torch/_inductor/standalone_compile.py: autotune_at_compile_time; "
    "codegen/wrapper.py: generate_example_arg_value"
)

RECORDED_TORCH = ("2.10", "2.11")
"""PyTorch releases whose peaks are recorded; whether later ones time variants of the fused kernel is not."""


def compiles_embedding(ctx: RankContext) -> bool:
    """Whether the compiled graph of this rank starts with the lookup of token ids.

    Multimodal models, and all with `--enable-prompt-embeds`, look ids up outside the graph and pass embeddings
    in; later pipeline stages get hidden states.
    """
    outside = ctx.architecture.is_multimodal or ctx.engine.args.other("enable_prompt_embeds")
    return ctx.engine.compiled and ctx.is_first_stage and not outside


def compile_phase(ctx: RankContext, sizes: Sizes) -> Phase | None:
    """Example arguments of the first kernel of the first piece; None where the graph looks nothing up."""
    if not compiles_embedding(ctx):
        return None
    return phase("compile", example_arguments(ctx, sizes), warm_bytes=0)


def draft_compile_phase(ctx: RankContext, sizes: Sizes, alive: tuple[MemoryTerm, ...]) -> Phase | None:
    """The same for a draft model that looks ids up itself; it is compiled after the target ran."""
    given = ctx.engine.args.other("speculative_config")
    method = str(given.get("method") or "") if isinstance(given, Mapping) else ""
    with_model = method.startswith(("eagle", "draft")) or method.endswith("mtp")
    if not (with_model and ctx.engine.compiled and ctx.is_last_stage) or ctx.architecture.is_multimodal:
        return None
    examples = tuple(replace(t, low=0) for t in example_arguments(ctx, sizes))
    target = transient(
        "final_hidden_states",
        "tokens * hidden * el",
        "the target's output, which the draft reads",
        tokens=sizes.tokens,
        hidden=sizes.hidden,
        el=sizes.el,
    )
    warm = sum([t.n_bytes for t in (*alive, target)])
    return phase("draft compile", (*alive, target, *examples), warm_bytes=warm)


def example_arguments(ctx: RankContext, sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """What the embedding kernel is timed on.

    On one GPU the lookup and the first norm are one kernel: ids, vocabulary matrix, norm weight, residual and
    normed output; recorded with torch 2.10 and 2.11 it has no variants to time. With tensor parallelism the
    all-reduce stands between the two: ids, the rank's rows and one output, and the kernel has variants, for
    which the benchmarker allocates its L2 buffer.
    """
    table = transient(
        "autotune_vocabulary",
        "block(rows * hidden * el)",
        SOURCE,
        note="example argument of the embedding kernel",
        rows=sizes.padded_vocab // sizes.tp,
        hidden=sizes.hidden,
        el=sizes.el,
    )
    flush = l2_flush(ctx)
    if sizes.tp > 1:
        output = transient(
            "autotune_outputs",
            "block(tokens * hidden * el) + block(4 * tokens)",
            SOURCE,
            note="embedding output, token ids",
            tokens=sizes.tokens,
            hidden=sizes.hidden,
            el=sizes.el,
        )
        return (table, output, flush)
    outputs = transient(
        "autotune_outputs",
        "2 * block(tokens * hidden * el) + block(4 * tokens) + block(hidden * el) + 512 * scaled",
        SOURCE,
        note="residual and normed output, token ids, norm weight, a scale of the embedding",
        scaled=int(any(placed.module.name == "normalizer" for placed in ctx.architecture.outside)),
        tokens=sizes.tokens,
        hidden=sizes.hidden,
        el=sizes.el,
    )
    if not (dict(ctx.release.pins).get("torch") or "").startswith(RECORDED_TORCH):
        outputs = replace(outputs, high=outputs.n_bytes + flush.high)
    return (table, outputs)
