"""The draft model's forward in the profile run: after the target's, beside its hidden states.

Source: v1/worker/gpu/model_runner.py: _dummy_run; v1/worker/gpu/spec_decode: propose (0.26.0 to 0.33.0);
v1/worker/gpu_model_runner.py: _dummy_run of runner V1, which drafts from a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vllm_capacity.activations.layers import layer_phases
from vllm_capacity.activations.live import Phase, Sizes, transient
from vllm_capacity.context import RankContext
from vllm_capacity.engine_defaults.speculation import resolve_speculation
from vllm_capacity.ledger import MemoryTerm
from vllm_capacity.overheads.speculative import draft_rank


def drafting_phases(ctx: RankContext, sizes: Sizes, alive: tuple[MemoryTerm, ...]) -> Iterator[Phase]:
    """Phases of a draft with a config of its own; `alive`: what the target's forward was called with and keeps."""
    draft = draft_rank(ctx)
    if draft is None:
        return
    own = Sizes.of(draft)
    kept = [*alive, _states("target_hidden_states", sizes, "the target's output, held by the profile run")]
    if ctx.engine.model_runner == "V2":
        kept.append(
            transient(
                "draft_counts",
                "2 * round_up(4 * rows, 512)",
                "v1/worker/gpu/model_runner.py: _dummy_run (num_sampled, num_rejected)",
                rows=sizes.rows,
            )
        )
        if resolve_speculation(ctx.engine.args, ctx.config).method == "eagle3":
            kept.append(
                _states("combined_hidden_states", own, "models/llama_eagle3.py: combine_hidden_states")
            )
    for found in layer_phases(draft, own, tuple(kept), ()):
        yield replace(found, name=f"draft {found.name}")


def _states(name: str, sizes: Sizes, source: str) -> MemoryTerm:
    return transient(
        name, "tokens * hidden * el", source, tokens=sizes.tokens, hidden=sizes.hidden, el=sizes.el
    )
