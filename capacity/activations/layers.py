"""Phases inside a decoder layer: attention, MLP, MLA, state-space mixers. Bytes are per rank.

vLLM cuts the compiled graph at the attention operations. One piece runs from the output projection of one
attention to the projections of the next; its inputs (attention output and residual) stay referenced until the
piece returns (compilation/codegen.py:42-55, 0.26.0), everything else is freed at its last use. Inside the
attention operation those inputs are gone. The counts below reproduce recorded peaks to within a few KiB: see
tests/activations.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.activations.compressed import compressed_phases
from vllm_capacity.activations.live import Phase, Sizes, kv_share, phase, share, transient
from vllm_capacity.activations.quant_kind import QuantKind, quant_kind, quantises_activations, static_inputs
from vllm_capacity.architecture.modules import (
    Attention,
    DenseMLP,
    LayerGroup,
    Mixer,
    MixtureOfExperts,
    MultiHeadLatentAttention,
    StateSpace,
    StateSpaceKind,
)
from vllm_capacity.calibration import l2_cache
from vllm_capacity.context import RankContext, once
from vllm_capacity.ledger import MemoryTerm
from vllm_capacity.units import cdiv

PIECE = "compilation/codegen.py (inputs of a piece live until it returns) and the layer's forward"
EAGER = "the layer's and the MLP's forward: Python locals keep their tensors"


def attention_width(mixer: Mixer, tp: int) -> int:
    """Elements per token of the attention operation's output on one rank."""
    if isinstance(mixer, Attention):
        return share(mixer.num_heads, tp) * mixer.head_size_v
    if isinstance(mixer, MultiHeadLatentAttention):
        return share(mixer.num_heads, tp) * mixer.v_head_dim
    return share(state_space_width(mixer), tp)


def state_space_width(mixer: StateSpace) -> int:
    """Elements per token of a state-space mixer's output before the output projection, all ranks together."""
    if mixer.num_value_heads:
        return mixer.num_value_heads * mixer.value_head_dim
    return mixer.inner_size


@once
def l2_flush(ctx: RankContext) -> MemoryTerm:
    """The buffer with which Inductor's benchmarker flushes the L2 cache while it times kernel variants."""
    found = l2_cache(ctx.device)
    return transient(
        "autotune_l2_flush",
        "l2_bytes",
        "torch/_inductor/runtime/benchmarking.py: InductorBenchmarker.benchmark_gpu (torch 2.10 to 2.14)",
        note="kernel variants are timed at a first start; with a warm cache there is no such buffer",
        low=found.low,
        high=found.high,
        l2_bytes=found.n_bytes,
    )


def flush_at_first_run(ctx: RankContext) -> tuple[MemoryTerm, ...]:
    """`l2_flush` where kernels of a compiled layer are timed once more, on the real tensors of the profile run.

    Each is timed on examples while it is compiled, but up to torch 2.11 the saved kernel keeps all its variants; from 2.13
    on only the one that won (torch/_inductor/runtime/triton_heuristics.py: autotune_to_one_config,
    _prune_compile_results_to_launcher; torch 2.12 was in no release).
    """
    timed = ctx.engine.compiled and not ctx.release.has("kernels_timed_once")
    return (l2_flush(ctx),) if timed else ()


def layer_phases(
    ctx: RankContext,
    sizes: Sizes,
    early: tuple[MemoryTerm, ...],
    workspace: tuple[MemoryTerm, ...],
) -> Iterator[Phase]:
    """All phases of the layers on this stage. `early` is alive in each, the MoE `workspace` from the first
    MoE layer on.
    """
    first_moe = min(
        (i for g, _ in ctx.layers if isinstance(g.feed_forward, MixtureOfExperts) for i in g.indices),
        default=0,
    )
    seen: set[tuple[object, ...]] = set()
    for group, _count in ctx.layers:
        kept = early if max(group.indices) < first_moe else (*early, *workspace)
        for mixer in group.mixers:
            key = (mixer, group.feed_forward)
            if key in seen:
                continue
            seen.add(key)
            yield from _mixer_phases(ctx, sizes, group, mixer, kept)
            if isinstance(group.feed_forward, DenseMLP):
                yield _mlp(
                    ctx,
                    sizes,
                    group.feed_forward,
                    mixer,
                    kept,
                )


def _mlp(
    ctx: RankContext,
    sizes: Sizes,
    mlp: DenseMLP,
    mixer: Mixer,
    kept: tuple[MemoryTerm, ...],
) -> Phase:
    """gate_up -> activation -> down. Compiled: attention output, both residuals and the widest pair of MLP
    tensors.
    """
    width = share(mlp.intermediate_size, sizes.tp)
    wide = 2 * width if mlp.gated else width
    reduced = sizes.hidden if sizes.tp > 1 else 0
    terms = list(kept)
    warm = 0
    if ctx.engine.compiled:
        flush = flush_at_first_run(ctx)
        terms.append(
            transient(
                "mlp_residuals",
                "tokens * (attention_out + 2 * hidden) * el",
                PIECE,
                note="attention output and residual that entered the piece, and the new residual",
                tokens=sizes.tokens,
                attention_out=attention_width(mixer, sizes.tp),
                hidden=sizes.hidden,
                el=sizes.el,
            )
        )
        activated = transient(
            "mlp_activation",
            "tokens * (gate_up + down_in) * el",
            "layers/activation.py: SiluAndMul and friends",
            tokens=sizes.tokens,
            gate_up=wide,
            down_in=width,
            el=sizes.el,
        )
        entered = transient(
            "mlp_projections",
            "tokens * max(hidden + gate_up, down_in + hidden + reduced) * el",
            "the MLP's forward",
            tokens=sizes.tokens,
            gate_up=wide,
            down_in=width,
            hidden=sizes.hidden,
            reduced=reduced,
            el=sizes.el,
        )
        timed = sum([t.n_bytes for t in (activated, *flush)])
        warm = max(activated.n_bytes, entered.n_bytes) - max(timed, entered.n_bytes)
        terms += [activated, *flush] if timed >= entered.n_bytes else [entered]
    else:
        low = sizes.tokens * (3 * sizes.hidden + wide + width) * sizes.el
        widest = "max(gate_up, hidden + reduced)" if mlp.frees_gate_up else "gate_up + hidden + reduced"
        terms.append(
            transient(
                "mlp_eager",
                f"tokens * ((3 + new_residual) * hidden + down_in + {widest}) * el",
                EAGER,
                low=low,
                note="caller's hidden state and residual, normed output, gate_up, activation, down's output"
                + (" once gate_up is gone" if mlp.frees_gate_up else "")
                + (
                    "; the layer's residual is not the caller's"
                    if ctx.architecture.norm_makes_residual
                    else ""
                ),
                new_residual=int(ctx.architecture.norm_makes_residual),
                tokens=sizes.tokens,
                hidden=sizes.hidden,
                reduced=reduced,
                gate_up=wide,
                down_in=width,
                el=sizes.el,
            )
        )
    down = None if ctx.engine.compiled else _quantised_input(ctx, sizes, width)
    if down is not None:
        terms.append(down)
    elif quantises_activations(ctx):
        terms.append(_quantised_inputs(ctx, sizes, width))
    return phase("MLP", terms, warm_bytes=sum([t.n_bytes for t in terms]) + warm)


def _quantised_inputs(ctx: RankContext, sizes: Sizes, width: int) -> MemoryTerm:
    """Quantised copies of both projections' inputs, alive beside the wide tensors: a start of a w8a8 model of
    0.19.0 needs both (Mistral-Small-24B: 2.18 GiB). A fused activation-and-quantise kernel avoids them.
    """
    eight_bit = quant_kind(ctx) is not QuantKind.NVFP4
    return transient(
        "mlp_quantised_inputs",
        "tokens * (down_in + hidden) // per_byte + 8 * tokens",
        "layers/quantization: the linear method's apply",
        low=0,
        tokens=sizes.tokens,
        down_in=width,
        hidden=sizes.hidden,
        per_byte=1 if eight_bit else 2,
    )


def _mixer_phases(
    ctx: RankContext,
    sizes: Sizes,
    group: LayerGroup,
    mixer: Mixer,
    kept: tuple[MemoryTerm, ...],
) -> Iterator[Phase]:
    if isinstance(mixer, Attention):
        yield _attention(ctx, sizes, mixer, kept)
    elif isinstance(mixer, MultiHeadLatentAttention) and mixer.compression is not None:
        yield from compressed_phases(ctx, sizes, mixer, mixer.compression, kept)
    elif isinstance(mixer, MultiHeadLatentAttention):
        yield _mla(ctx, sizes, mixer, kept)
    else:
        yield _state_space(sizes, mixer, kept)


def _attention(ctx: RankContext, sizes: Sizes, mixer: Attention, kept: tuple[MemoryTerm, ...]) -> Phase:
    """qkv projection, norms and rope, and the attention output: the end of a piece. No kernel of it runs in
    the profile. While rope is being timed the output does not exist yet.
    """
    q = share(mixer.num_heads, sizes.tp) * mixer.head_size
    kv = kv_share(mixer.num_kv_heads, sizes.tp) * (mixer.head_size + mixer.head_size_v)
    k = kv_share(mixer.num_kv_heads, sizes.tp) * mixer.head_size
    out = share(mixer.num_heads, sizes.tp) * mixer.head_size_v
    compiled = ctx.engine.compiled
    output = transient(
        "attention_output",
        "tokens * out * el",
        "layers/attention/attention.py: Attention.forward (output buffer)",
        tokens=sizes.tokens,
        out=out,
        el=sizes.el,
    )
    last = max((output, *flush_at_first_run(ctx)), key=lambda t: t.n_bytes)
    terms = (
        *kept,
        *(() if compiled else _projected_output(ctx, sizes, out)),
        transient(
            "attention",
            "tokens * (held + hidden + qkv + roped) * el",
            PIECE if compiled else EAGER,
            note="what entered the piece, residual, qkv, q and k after rope",
            tokens=sizes.tokens,
            held=out + sizes.hidden
            if compiled
            else (2 + int(ctx.architecture.norm_makes_residual)) * sizes.hidden,
            hidden=sizes.hidden,
            qkv=q + kv,
            roped=q + k,
            el=sizes.el,
        ),
        last,
    )
    warm = sum([t.n_bytes for t in terms]) - last.n_bytes + output.n_bytes
    return phase("attention", terms, warm_bytes=warm)


def _projected_output(ctx: RankContext, sizes: Sizes, width: int) -> Iterator[MemoryTerm]:
    """Eager: beside its product, the output projection's quantised input, or the sum over the ranks after it."""
    quantised = _quantised_input(ctx, sizes, width)
    reduced = sizes.tokens * sizes.hidden * sizes.el if sizes.tp > 1 else 0
    if quantised is not None and quantised.n_bytes >= reduced:
        yield quantised
    elif reduced:
        yield transient(
            "attention_reduced",
            "tokens * hidden * el",
            "distributed/parallel_state.py: _all_reduce_out_place",
            tokens=sizes.tokens,
            hidden=sizes.hidden,
            el=sizes.el,
        )


def _quantised_input(ctx: RankContext, sizes: Sizes, width: int) -> MemoryTerm | None:
    """An input of `width` values in 8 bits: with a scale per 128 values for blocks, one per token, or none where the
    checkpoint holds it. Blackwell's 4-bit ones are not counted.
    """
    kind = quant_kind(ctx)
    if not quantises_activations(ctx) or kind is QuantKind.NVFP4:
        return None
    block = kind is QuantKind.FP8_BLOCK
    return transient(
        "quantised_input",
        "tokens * width + 4 * tokens * scales",
        "layers/quantization: the linear method's apply",
        tokens=sizes.tokens,
        width=width,
        scales=cdiv(width, 128) if block else int(not static_inputs(ctx)),
    )


def mla_workspace_tokens(ctx: RankContext) -> int:
    """Tokens of context that MLA's chunked prefill projects up at once.

    Source: `determine_chunked_prefill_workspace_size`,
    model_executor/layers/attention/mla_attention.py:1687-1716 (0.26.0).
    """
    block = ctx.engine.block_size or _kv_block_size(ctx)
    sequences = ctx.engine.max_num_seqs
    return max(min(max(8 * ctx.engine.max_model_len, 4 * sequences * block), 64 * 1024), sequences * block)


def _kv_block_size(ctx: RankContext) -> int:
    """Block size of the first attention group; 16 where none is known yet."""
    for group in ctx.kv_groups:
        size = getattr(group, "block_size", None) or getattr(getattr(group, "spec", None), "block_size", None)
        if size:
            return int(size)
    return 16


def _mla(
    ctx: RankContext, sizes: Sizes, mixer: MultiHeadLatentAttention, kept: tuple[MemoryTerm, ...]
) -> Phase:
    """Inside the MLA operation: residual, q, latent, output, and the dummy that stands for the projected-up
    context.
    """
    heads = share(mixer.num_heads, sizes.tp)
    compiled = ctx.engine.compiled
    held = 0 if compiled else sizes.hidden
    normed = 0 if compiled else mixer.kv_lora_rank + 2 * (mixer.q_lora_rank or 0)
    tokens = transient(
        "mla",
        "tokens * (hidden + held + heads * (nope + rope) + lora + rope + normed + heads * v_dim) * el",
        "layers/attention/mla_attention.py: forward_impl (the piece has returned)"
        if compiled
        else "layers/mla.py: forward, whose locals keep the projections beside their normed parts",
        normed=normed,
        tokens=sizes.tokens,
        hidden=sizes.hidden,
        held=held,
        heads=heads,
        nope=mixer.qk_nope_head_dim,
        rope=mixer.qk_rope_head_dim,
        lora=mixer.kv_lora_rank,
        v_dim=mixer.v_head_dim,
        el=sizes.el,
    )
    dummy = transient(
        "mla_context_dummy",
        "context * heads * (nope + v_dim) * el",
        "layers/attention/mla_attention.py: forward_impl with attn_metadata None",
        note="stands for kv_b_proj of a chunk of context, the worst case at run time",
        context=mla_workspace_tokens(ctx),
        heads=heads,
        nope=mixer.qk_nope_head_dim,
        v_dim=mixer.v_head_dim,
        el=sizes.el,
    )
    terms = [tokens, dummy]
    if mixer.indexer is not None:
        megabytes = int(ctx.engine.environment.get("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", 512))
        logits = transient(
            "indexer_logits_dummy",
            "megabytes * 1048576",
            "layers/sparse_attn_indexer.py (profile branch)",
            note="one indexer layer at a time",
            megabytes=megabytes,
        )
        terms = [tokens, max(dummy, logits, key=lambda t: t.n_bytes)]
    return phase("MLA", (*kept, *terms))


def _state_space(sizes: Sizes, mixer: StateSpace, kept: tuple[MemoryTerm, ...]) -> Phase:
    """Projections and outputs of a state-space mixer; its kernels return early without attention metadata."""
    tp = sizes.tp
    out = share(state_space_width(mixer), tp)
    if mixer.num_value_heads:
        key = mixer.num_key_heads * mixer.key_head_dim
        projected = share(2 * key + 2 * state_space_width(mixer) + 2 * mixer.num_value_heads, tp)
        copies = share(2 * key + state_space_width(mixer), tp) + out
    elif mixer.kind is StateSpaceKind.MAMBA2:
        conv = share(mixer.inner_size + 2 * mixer.n_groups * mixer.state_size, tp)
        projected = conv + share(mixer.inner_size + mixer.num_heads, tp)
        copies = 2 * conv
    else:
        projected = share(2 * mixer.inner_size, tp)
        copies = out
    return phase(
        "state space",
        (
            *kept,
            transient(
                "state_space",
                "tokens * (2 * hidden + projected + copies + 2 * out) * el",
                "layers/mamba: forward without attention metadata",
                note="read off the source; no run that it decides is recorded",
                low=sizes.tokens * (sizes.hidden + projected + out) * sizes.el,
                high=sizes.tokens * (3 * sizes.hidden + projected + 2 * copies + 3 * out) * sizes.el,
                tokens=sizes.tokens,
                hidden=sizes.hidden,
                projected=projected,
                copies=copies,
                out=out,
                el=sizes.el,
            ),
        ),
    )
