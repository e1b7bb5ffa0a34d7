"""A rope cache in fp32 that the first forward of an eager run replaces by one in the model's dtype.

Source: `RotaryEmbeddingBase._match_cos_sin_cache_dtype`, layers/rotary_embedding/base.py (0.19.0 to 0.33.0): while a
graph is compiled the buffer stays as it is. gpt-oss asks for fp32 (models/gpt_oss.py: get_rope(dtype=torch.float32)).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from vllm_capacity.activations.live import Phase, less, phase
from vllm_capacity.architecture.modules import Tensor
from vllm_capacity.context import RankContext
from vllm_capacity.ledger import Lifetime
from vllm_capacity.units import DTYPE_BYTES, block


def after_conversion(ctx: RankContext, phases: Iterable[Phase]) -> list[Phase]:
    """Phases of the forward and of what follows, once the cache is converted: the cache in fp32 was loaded before the
    profile run, so what it gives back makes room. The attention phase has the one or the other layer before that.
    """
    freed = given_back(ctx)
    return [p if freed <= 0 or p.name == "attention" else _less(p, freed) for p in phases]


def given_back(ctx: RankContext) -> int:
    """Bytes by which an eager forward shrinks this rank's rope caches; 0 where it converts none.

    MLA's classes read their fp32 cache as it is (layers/rotary_embedding/deepseek_scaling_rope.py: forward_cuda).
    """
    if ctx.engine.compiled or ctx.architecture.use_mla:
        return 0
    caches = [
        prod(placed.module.shape)
        for placed in ctx.architecture.outside
        if isinstance(placed.module, Tensor)
        and placed.module.name.endswith("cos_sin_cache")
        and placed.module.dtype == "float32"
    ]
    fp32, own = DTYPE_BYTES["float32"], DTYPE_BYTES[ctx.engine.dtype]
    return sum(block(size * fp32) - block(size * own) for size in caches)


def _less(before: Phase, freed: int) -> Phase:
    terms = list(before.terms)
    transient = [i for i, t in enumerate(terms) if t.lifetime is Lifetime.PROFILE_TRANSIENT]
    if not transient:
        return before
    at = max(transient, key=lambda i: terms[i].n_bytes)
    taken = min(freed, terms[at].n_bytes)
    terms[at] = less(terms[at], taken, "less what the rope cache gave back")
    return phase(before.name, terms, warm_bytes=before.warm_bytes - taken)
