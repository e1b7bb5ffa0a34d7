"""The activation peak of vLLM's profile run: every phase, and the one that wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vllm_capacity.activations.compile import compile_phase, draft_compile_phase
from vllm_capacity.activations.encoder import encoder_phases
from vllm_capacity.activations.layers import layer_phases
from vllm_capacity.activations.live import Phase, Sizes, less, persistent, phase, transient
from vllm_capacity.activations.matmul import cublas_terms
from vllm_capacity.activations.moe import moe_phases
from vllm_capacity.activations.rope import after_conversion
from vllm_capacity.activations.sampler import (
    final_phases,
    flashinfer_rows,
    flashinfer_scratch,
    needs_topk_buffer,
    topk_buffer,
)
from vllm_capacity.activations.workspace import shared_workspace
from vllm_capacity.context import RankContext
from vllm_capacity.frozen import dataclass
from vllm_capacity.ledger import Lifetime, MemoryTerm
from vllm_capacity.overheads.lora import lora_pointers, timed


@dataclass(frozen=True, slots=True)
class ActivationPeak:
    """What a rank needs while it profiles, above what was allocated before.

    `terms` add up to `n_bytes`: what is alive at the winning phase, with everything that stays allocated
    after the profile run counted as such. `warm_bytes` is the peak of a start that finds its kernels in the
    compile caches.
    """

    phases: tuple[Phase, ...]
    winner: Phase
    terms: tuple[MemoryTerm, ...]
    n_bytes: int
    warm_bytes: int


def activation_peak(ctx: RankContext) -> ActivationPeak:
    """The peak of `profile_run` on this rank, cold (terms, n_bytes) and warm (warm_bytes)."""
    stays, phases = _phases(ctx, Sizes.of(ctx))
    winner = max(phases, key=lambda p: p.n_bytes)
    terms = _terms(winner, stays)
    return ActivationPeak(
        phases=phases,
        winner=winner,
        terms=terms,
        n_bytes=sum([t.n_bytes for t in terms]),
        warm_bytes=max(sum([t.n_bytes for t in stays]), *[p.warm_bytes for p in phases]),
    )


def _phases(ctx: RankContext, sizes: Sizes) -> tuple[tuple[MemoryTerm, ...], tuple[Phase, ...]]:
    """What stays allocated after the profile run, and all phases."""
    inputs = (*_inputs(ctx, sizes), *_auxiliary(ctx, sizes))
    pointers = tuple(filter(None, (lora_pointers(ctx),)))
    calls = (*inputs, *(tuple(filter(None, (timed(ctx),))) if ctx.engine.compiled else pointers))
    early = (*cublas_terms(ctx), *_pipeline_buffers(ctx, sizes))
    workspace = shared_workspace(ctx, sizes)
    last = (topk_buffer(ctx, sizes), *flashinfer_rows(ctx, sizes)) if needs_topk_buffer(ctx, sizes) else ()
    last = (*last, *flashinfer_scratch(ctx), *pointers)
    phases: list[Phase] = []
    compiling = compile_phase(ctx, sizes)
    if compiling is not None:
        phases.append(phase(compiling.name, (*inputs, *compiling.terms), warm_bytes=0))
    encoder, kept = encoder_phases(ctx, early)
    phases += encoder
    forward = list(layer_phases(ctx, sizes, (*calls, *early, *kept), workspace))
    alive = (*calls, *early, *workspace, *kept)
    forward += moe_phases(ctx, sizes, alive)
    drafting = draft_compile_phase(ctx, sizes, alive)
    if drafting is not None:
        forward.append(drafting)
    if ctx.engine.args.other("speculative_config"):
        from vllm_capacity.activations.drafting import drafting_phases

        forward += drafting_phases(ctx, sizes, alive)
    batch = _inputs(ctx, sizes) if ctx.engine.model_runner == "V1" else ()  # V2's is gone with execute_model
    forward += final_phases(ctx, sizes, (*batch, *early, *workspace, *kept, *last))
    phases += after_conversion(ctx, forward)
    return (*early, *workspace, *last), tuple(phases)


def _terms(winner: Phase, stays: Iterable[MemoryTerm]) -> tuple[MemoryTerm, ...]:
    """The winner's transient terms and all persistent ones. Persistent bytes that come after the winner reuse
    its memory.
    """
    stays = tuple(stays)
    later = sum(t.n_bytes for t in stays) - sum(
        t.n_bytes for t in winner.terms if t.lifetime is Lifetime.PROFILE_PERSISTENT
    )
    terms = [t for t in winner.terms if t.lifetime is not Lifetime.PROFILE_PERSISTENT]
    while later > 0 and any(t.n_bytes for t in terms):
        largest = max(range(len(terms)), key=lambda i: terms[i].n_bytes)
        taken = min(later, terms[largest].n_bytes)
        terms[largest] = less(terms[largest], taken, "less what is allocated after this phase and stays")
        later -= taken
    return (*terms, *stays)


def _inputs(ctx: RankContext, sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """Index tensors of the dummy batch: four of one integer per sequence (runner V2), each in a block of 512
    bytes.
    """
    release = ctx.release
    if ctx.engine.model_runner != "V2":
        return ()
    return (
        transient(
            "dummy_batch",
            "round_up(index * rows, 512) + 2 * round_up(4 * rows, 512) + round_up(4 * (rows + 1), 512)",
            "v1/worker/gpu/input_batch.py: InputBatch.make_dummy",
            rows=sizes.rows,
            index=8
            if release.has("dummy_indices_int64") or release.has("dummy_indices_int64_at_first")
            else 4,
        ),
    )


def _auxiliary(ctx: RankContext, sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """Hidden states of three layers that EAGLE-3 and dflash drafts read: kept from their layer to the end of
    the forward.
    """
    given = ctx.engine.args.other("speculative_config")
    method = given.get("method") if isinstance(given, Mapping) else None
    if method not in ("eagle3", "dflash") or not ctx.is_last_stage:
        return ()
    return (
        transient(
            "auxiliary_hidden_states",
            "3 * tokens * hidden * el",
            "the model's forward: aux_hidden_states",
            tokens=sizes.tokens,
            hidden=sizes.hidden,
            el=sizes.el,
        ),
    )


def _pipeline_buffers(ctx: RankContext, sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """Hidden states and residual that a later stage receives: runner V1 allocates them in the profile run and
    keeps them.
    """
    if ctx.is_first_stage or ctx.engine.model_runner != "V1":
        return ()
    return (
        persistent(
            "intermediate_tensors",
            "2 * tokens * hidden * el",
            "v1/worker/gpu_model_runner.py: _dummy_run (make_empty_intermediate_tensors)",
            tokens=sizes.tokens,
            hidden=sizes.hidden,
            el=sizes.el,
        ),
    )
