"""Tensors of the model runner: inputs, sampler state, block tables.

Up to 0.26.0 no account of vLLM's budget holds them; from 0.27.0 on those that exist before profiling are
subtracted. Block tables and slot mappings come with the KV cache, after it was sized.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.architecture.modules import StateSpace
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Allocator, Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.attention_buffers import aligned_blocks
from vllm_capacity.overheads.draft_buffers import draft_tensors
from vllm_capacity.units import DTYPE_BYTES, cdiv

BUFFERS = Component.RUNNER_BUFFERS


def runner_buffer_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """All buffers of this rank's runner."""
    if ctx.engine.model_runner == "V2":
        yield from _v2(ctx)
    else:
        yield from _v1(ctx)
    yield from _block_tables(ctx)


def _query_length(ctx: RankContext) -> int:
    return 1 + ctx.engine.num_speculative_tokens


def _v2(ctx: RankContext) -> Iterator[MemoryTerm]:
    engine, architecture = ctx.engine, ctx.architecture
    sequences, tokens, vocab = engine.max_num_seqs, engine.max_num_batched_tokens, architecture.vocab_size
    limited = int(ctx.release.has("load_max_split_size"))
    yield term(
        "input_buffers",
        BUFFERS,
        "block(4 * tokens) + block(8 * tokens) + block(tokens) + block(4 * (sequences + 1)) + 5 * block(4 * sequences)"
        " + block(8 * sequences) + block(8 * drafts * sequences)",
        lifetime=Lifetime.RUNNER_INIT,
        source="v1/worker/gpu/input_batch.py: InputBuffers; v1/worker/gpu/states.py: RequestState",
        tokens=tokens,
        sequences=sequences,
        drafts=engine.num_speculative_tokens,
    )
    yield term(
        "token_ids_uva",
        BUFFERS,
        "4 * sequences * max_model_len",
        allocator=Allocator.HOST,
        lifetime=Lifetime.RUNNER_INIT,
        source="v1/worker/gpu/states.py: RequestState.all_token_ids (pinned host memory seen by the GPU)",
        sequences=sequences,
        max_model_len=engine.max_model_len,
    )
    if architecture.is_multimodal or engine.args.other("enable_prompt_embeds"):
        yield term(
            "inputs_embeds",
            BUFFERS,
            "tokens * hidden * el",
            lifetime=Lifetime.RUNNER_INIT,
            source="v1/worker/gpu/mm/encoder_runner.py",
            tokens=tokens,
            hidden=architecture.hidden_size,
            el=DTYPE_BYTES[engine.dtype],
        )
    yield from _m_rope(ctx)
    if not ctx.is_first_stage:
        yield term(
            "intermediate_tensors",
            BUFFERS,
            "2 * tokens * hidden * el",
            lifetime=Lifetime.RUNNER_INIT,
            source="v1/worker/gpu/model_runner.py: load_model (make_empty_intermediate_tensors)",
            tokens=tokens,
            hidden=architecture.hidden_size,
            el=DTYPE_BYTES[engine.dtype],
        )
    if ctx.is_last_stage and architecture.runner_type == "generate":
        yield term(
            "penalty_counts",
            BUFFERS,
            "block(4 * sequences * vocab, limited)",
            lifetime=Lifetime.RUNNER_INIT,
            source="v1/worker/gpu/sample/penalties.py: PenaltiesState.output_bin_counts",
            note="allocated whether or not a request uses penalties; --max-num-seqs scales it",
            sequences=sequences,
            vocab=vocab,
            limited=limited,
        )
        yield term(
            "prompt_mask",
            BUFFERS,
            "block(4 * sequences * cdiv(vocab, 32), limited)",
            lifetime=Lifetime.RUNNER_INIT,
            source="v1/worker/gpu/sample/penalties.py: PenaltiesState.prompt_bin_mask",
            sequences=sequences,
            vocab=vocab,
            limited=limited,
        )
        yield term(
            "sampler_state",
            BUFFERS,
            "4 * block(4096 * sequences) + block(516 * sequences) + 2 * block(512 * sequences)",
            lifetime=Lifetime.RUNNER_INIT,
            source="v1/worker/gpu/sample: bad_words.py, logit_bias.py, logprob.py",
            sequences=sequences,
        )
        yield term(
            "grammar_bitmask",
            BUFFERS,
            "block(4 * sequences * query * cdiv(vocab, 32), limited) + block(4 * sequences * query)",
            lifetime=Lifetime.RUNNER_INIT,
            source="v1/worker/gpu/structured_outputs.py: StructuredOutputsWorker",
            sequences=sequences,
            query=_query_length(ctx),
            vocab=vocab,
            limited=limited,
        )
        yield from _mamba_states(ctx)


def _mamba_states(ctx: RankContext) -> Iterator[MemoryTerm]:
    """Accepted tokens per sequence of models with state-space layers, and three more indices where prefix caching aligns
    states to blocks.
    """
    if not any(isinstance(mixer, StateSpace) for group, _ in ctx.layers for mixer in group.mixers):
        return
    aligned = ctx.engine.mamba_cache_mode == "align"
    yield term(
        "mamba_indices",
        BUFFERS,
        "tensors * block(4 * sequences)",
        lifetime=Lifetime.RUNNER_INIT,
        source="v1/worker/gpu/model_states/mamba_hybrid.py: MambaHybridModelState.__init__",
        tensors=4 if aligned else 1,
        sequences=ctx.engine.max_num_seqs,
    )


def runner_tensors(ctx: RankContext) -> tuple[int, ...]:
    """Bytes of the tensors that the runner allocates before the model is loaded, in order (sources: as the terms')."""
    engine = ctx.engine
    sequences, tokens = engine.max_num_seqs, engine.max_num_batched_tokens
    if engine.model_runner == "V2":
        row = 4 * sequences
        drafts = (8 * engine.num_speculative_tokens * sequences,) if engine.num_speculative_tokens else ()
        states = (row, row, 2 * row, *drafts, row)
        return (*states, *draft_tensors(ctx), 4 * tokens, 8 * tokens, tokens, row + 4, row, row)
    embeds = tokens * ctx.architecture.hidden_size * DTYPE_BYTES[engine.dtype]
    inputs = (4 * tokens, 8 * tokens, 8 * tokens, 8 * tokens, tokens)
    return (4 * sequences * _first_row(ctx), *inputs, embeds, 48 * sequences, 24 * sequences)


def _first_row(ctx: RankContext) -> int:
    """Block ids per sequence in the table that runner V1 makes before it knows the KV cache groups.

    Source: v1/worker/gpu_model_runner.py: __init__ (placeholder_block_size; 0.19.0 to 0.33.0).
    """
    return cdiv(ctx.engine.max_model_len, ctx.engine.block_size or 16)


def sampler_tensors(ctx: RankContext) -> tuple[int, ...]:
    """Bytes of the tensors that runner V2 allocates while the model is loaded, after the weights and in order.

    Source: v1/worker/gpu/model_runner.py: load_model; v1/worker/gpu/sample/sampler.py: Sampler.__init__ (0.27.0 to 0.33.0).
    """
    engine = ctx.engine
    if engine.model_runner != "V2" or not ctx.is_last_stage or ctx.architecture.runner_type != "generate":
        return ()
    sequences, vocab = engine.max_num_seqs, ctx.architecture.vocab_size
    states = next(_mamba_states(ctx), None)
    indices = int(states.values["tensors"]) * (4 * sequences,) if states else ()
    mask = 4 * cdiv(vocab, 32)
    biases = (4096 * sequences, 4096 * sequences, 4096 * sequences, 512 * sequences)
    words = (4096 * sequences, 516 * sequences)
    rows = sequences * _query_length(ctx)
    return (
        *indices,
        mask * sequences,
        4 * vocab * sequences,
        *biases,
        *words,
        512 * sequences,
        4 * rows,
        mask * rows,
    )


def _v1(ctx: RankContext) -> Iterator[MemoryTerm]:
    engine = ctx.engine
    sequences, tokens = engine.max_num_seqs, engine.max_num_batched_tokens
    source = "v1/worker/gpu_model_runner.py: GPUModelRunner.__init__"
    yield term(
        "input_buffers",
        BUFFERS,
        "tokens * (4 + 8 + 8 + 8 + 1) + sequences * 48",
        lifetime=Lifetime.RUNNER_INIT,
        source=source,
        tokens=tokens,
        sequences=sequences,
    )
    yield term(
        "inputs_embeds",
        BUFFERS,
        "block(tokens * hidden * el)",
        lifetime=Lifetime.RUNNER_INIT,
        source=source,
        note="allocated for text-only models too",
        tokens=tokens,
        hidden=ctx.architecture.hidden_size,
        el=DTYPE_BYTES[engine.dtype],
    )
    yield from _m_rope(ctx)
    yield term(
        "sampler_state",
        BUFFERS,
        "6 * 4 * sequences",
        lifetime=Lifetime.RUNNER_INIT,
        source="v1/worker/gpu_input_batch.py",
        sequences=sequences,
    )


def _m_rope(ctx: RankContext) -> Iterator[MemoryTerm]:
    rope = ctx.config.get("rope_scaling") or ctx.config.get("rope_parameters") or {}
    if isinstance(rope, dict) and "mrope_section" in rope:
        yield term(
            "mrope_positions",
            BUFFERS,
            "3 * (tokens + 1) * 8",
            lifetime=Lifetime.RUNNER_INIT,
            source="v1/worker/gpu/mm/rope.py; gpu_model_runner.py",
            tokens=ctx.engine.max_num_batched_tokens,
        )


def _block_tables(ctx: RankContext) -> Iterator[MemoryTerm]:
    """Per KV cache group a row of block ids per sequence (two copies on V2) and one slot per token, with
    prefill context parallelism also for the whole batch and for what all ranks gather.
    """
    from vllm_capacity.kv_cache.specs import MambaSpec

    copies, pcp = 2 if ctx.engine.model_runner == "V2" else 1, ctx.engine.parallel.pcp
    entries = 0
    for group in ctx.kv_groups:
        blocks = aligned_blocks(ctx.engine.max_model_len, group.spec.block_size * ctx.engine.parallel.dcp)
        if isinstance(group.spec, MambaSpec):
            blocks = (blocks if ctx.engine.enable_prefix_caching else 1) + ctx.engine.num_speculative_tokens
        entries += blocks
    groups = len(ctx.kv_groups)
    if not ctx.kv_groups and ctx.architecture.has_attention:
        groups, entries = 1, aligned_blocks(ctx.engine.max_model_len, ctx.engine.block_size or 16)
    v1 = ctx.engine.model_runner == "V1"
    early = _first_row(ctx) if v1 else 0
    if early:
        yield term(
            "first_block_table",
            BUFFERS,
            "4 * sequences * blocks_per_row",
            lifetime=Lifetime.RUNNER_INIT,
            source="v1/worker/gpu_model_runner.py: GPUModelRunner.__init__ (InputBatch)",
            note="made with a placeholder for the block size; made again where that or the groups are others",
            sequences=ctx.engine.max_num_seqs,
            blocks_per_row=early,
        )
    yield term(
        "block_tables",
        BUFFERS,
        "4 * copies * sequences * blocks_per_row",
        lifetime=Lifetime.AFTER_PROFILE,
        source="v1/worker/gpu/block_table.py: BlockTables; v1/worker/block_table.py: BlockTable",
        note="what the first table does not hold" if v1 else "",
        copies=copies,
        sequences=ctx.engine.max_num_seqs,
        blocks_per_row=max(entries - early, 0),
    )
    yield term(
        "slot_mappings",
        BUFFERS,
        "8 * groups * tokens * rows",
        lifetime=Lifetime.RUNNER_INIT if v1 else Lifetime.AFTER_PROFILE,
        source="v1/worker/gpu/block_table.py: slot_mappings; v1/worker/gpu/pcp_manager.py: PCPManager",
        groups=groups,
        tokens=ctx.engine.max_num_batched_tokens,
        rows=1 if pcp == 1 else 2 + pcp,
    )
