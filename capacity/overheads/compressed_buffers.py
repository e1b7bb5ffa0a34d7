"""DeepSeek V4's metadata builders: one for each kind of cache in each KV group, with index lists for a whole batch. Created
with the KV cache, after it was sized.

Source: DeepseekSparseSWAMetadataBuilder (v1/attention/backends/mla/sparse_swa.py), DeepseekV32IndexerMetadataBuilder
(mla/indexer.py), DeepseekV4FlashMLAMetadataBuilder (models/deepseek_v4/sparse_mla.py), CompressorMetadataBuilder
(models/deepseek_v4/compressor.py) (0.26.0).
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.architecture.modules import Compression
from vllm_capacity.context import RankContext
from vllm_capacity.kv_cache.specs import MLAAttentionSpec, SlidingWindowMLASpec
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, term

ROW_ALIGNMENT = 128
"""_C128A_TOPK_ALIGNMENT."""


def compressed_buffer_terms(ctx: RankContext, compression: Compression) -> Iterator[MemoryTerm]:
    """Index lists of the window (per group), of all latents with ratio 128, and the indexer's block table; a few numbers
    per token besides.
    """
    specs = [run.spec for group in ctx.kv_groups for run in group.layer_specs]
    windows = sum(isinstance(s, SlidingWindowMLASpec) and s.dtype != "float32" for s in specs)
    latents = [s for s in specs if isinstance(s, MLAAttentionSpec)]
    ratios = [s.tokens_per_state for s in latents if s.model_version]
    indexers = [s for s in latents if not s.model_version]
    states = len(specs) - windows - len(latents)
    block_size = max((s.block_size for s in latents), default=1)
    yield term(
        "sparse_attention_indices",
        Component.WORKSPACE,
        "4 * tokens * (windows * 2 * window + dense * 2 * round_up(cdiv(max_model_len, 128), alignment)"
        " + indexers * cdiv(max_model_len, block_size))"
        " + tokens * (13 * windows + 12 * latents + 4 * dense + 28 * indexers + 4 * states)",
        lifetime=Lifetime.AFTER_PROFILE,
        source="models/deepseek_v4/sparse_mla.py, v1/attention/backends/mla/sparse_swa.py, indexer.py: metadata builders",
        note="grows with --max-num-batched-tokens and --max-model-len",
        tokens=ctx.engine.max_num_batched_tokens,
        windows=windows,
        window=compression.sliding_window,
        dense=ratios.count(128),
        latents=len(ratios),
        indexers=len(indexers),
        states=states,
        max_model_len=ctx.engine.max_model_len,
        block_size=block_size,
        alignment=ROW_ALIGNMENT,
    )
