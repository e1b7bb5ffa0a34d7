"""The workspace manager's buffer: one for the process, as large as the largest request made of it.

Source: v1/worker/workspace.py: WorkspaceManager.get_simultaneous (0.26.0): each part rounded up to 256 bytes.
"""

from __future__ import annotations

from vllm_capacity.activations.live import Sizes, persistent
from vllm_capacity.activations.moe import moe_workspace
from vllm_capacity.architecture.modules import MultiHeadLatentAttention
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import MemoryTerm


def shared_workspace(ctx: RankContext, sizes: Sizes) -> tuple[MemoryTerm, ...]:
    """The largest user on this stage: MoE layers or the sparse-attention indexer; empty without any."""
    users = [t for t in (moe_workspace(ctx, sizes), _indexer(ctx)) if t is not None and t.n_bytes]
    return (max(users, key=lambda t: t.n_bytes),) if users else ()


def _indexer(ctx: RankContext) -> MemoryTerm | None:
    """Keys gathered for 40 times max_model_len: 128 fp8 bytes and 4 bytes of scale each, and 1 MiB for top-k.

    Source: model_executor/layers/sparse_attn_indexer.py:225-341, v1/attention/backends/mla/indexer.py:
    get_max_prefill_buffer_size (0.26.0; the same size by default up to 0.33.0).
    """
    mixers = [m for group, _ in ctx.layers for m in group.mixers]
    indexers = [m.indexer for m in mixers if isinstance(m, MultiHeadLatentAttention) and m.indexer]
    if not indexers:
        return None
    return persistent(
        "indexer_workspace",
        "round_up(40 * max_model_len * head, 256) + round_up(40 * max_model_len * 4, 256) + 1048576",
        "model_executor/layers/sparse_attn_indexer.py: sparse_attn_indexer (profile branch)",
        note="grows with --max-model-len",
        max_model_len=ctx.engine.max_model_len,
        head=indexers[0].head_size,
    )
