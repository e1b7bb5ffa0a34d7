"""What a cold torch.compile adds to the peak: kernels are timed on example tensors as large as the real ones.

`torch._inductor.standalone_compile` sets `triton.autotune_at_compile_time` (torch 2.10 to 2.14, so every
release planned here): for each Triton kernel of a piece the generated wrapper allocates example arguments,
runs the kernel and frees an argument after the last kernel that uses it (torch/_inductor/codegen/wrapper.py:
generate_example_arg_value, generate_and_run_autotune_block). The first piece holds the embedding lookup,
whose arguments include the rank's whole vocabulary matrix.
"""

from __future__ import annotations

from vllm_capacity.activations.layers import l2_flush
from vllm_capacity.activations.live import Phase, Sizes, phase, transient
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import MemoryTerm

SOURCE = (
    "torch/_inductor/standalone_compile.py: autotune_at_compile_time; "
    "codegen/wrapper.py: generate_example_arg_value"
)


def compiles_embedding(ctx: RankContext) -> bool:
    """Whether the compiled graph of this rank starts with the lookup of token ids.

    Multimodal models look ids up outside the graph and pass embeddings in; later pipeline stages get hidden
    states.
    """
    return ctx.engine.compiled and ctx.is_first_stage and not ctx.architecture.is_multimodal


def compile_phase(ctx: RankContext, sizes: Sizes) -> Phase | None:
    """Example arguments of the first kernel of the first piece.

    On one GPU the lookup and the first norm are one kernel: ids, vocabulary matrix, norm weight, residual and
    normed output. With tensor parallelism the all-reduce stands between them: ids, the rank's rows and one
    output, and the kernel has variants to time, for which the benchmarker allocates its L2 buffer.
    """
    if not compiles_embedding(ctx):
        return None
    rows = sizes.padded_vocab // sizes.tp
    table = transient(
        "autotune_vocabulary",
        "rows * hidden * el",
        SOURCE,
        note="example argument of the embedding kernel",
        rows=rows,
        hidden=sizes.hidden,
        el=sizes.el,
    )
    others: tuple[MemoryTerm, ...]
    if sizes.tp == 1:
        others = (
            transient(
                "autotune_outputs",
                "2 * tokens * hidden * el + 4 * tokens + hidden * el",
                SOURCE,
                note="residual and normed output, token ids, norm weight",
                tokens=sizes.tokens,
                hidden=sizes.hidden,
                el=sizes.el,
            ),
        )
    else:
        others = (
            transient(
                "autotune_outputs",
                "tokens * hidden * el + 4 * tokens",
                SOURCE,
                note="embedding output, token ids",
                tokens=sizes.tokens,
                hidden=sizes.hidden,
                el=sizes.el,
            ),
            l2_flush(ctx),
        )
    return phase("compile", (table, *others), warm_bytes=0)
