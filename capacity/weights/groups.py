"""Parameter groups: equal tensors of one rank counted together, and the role that a tensor's name gives
it.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from vllm_capacity.frozen import dataclass
from vllm_capacity.units import DTYPE_BYTES

ROLES = (
    "embedding", "attention", "state_space", "mlp", "experts", "shared_experts", "router", "norms", "lm_head",
    "encoder", "rope_cache", "attention_scales", "quantisation_scales", "expert_map", "other",
)  # fmt: skip
"""In the order of the ledger."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """`count` equal tensors [shape] of one rank.

    `n_bytes` is the sum over all of them; `logical` the model parameters that they stand for, together (0 for
    buffers and scales). `buffer` marks what is no parameter.
    """

    role: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    n_bytes: int
    buffer: bool = False
    logical: int = 0
    scaled: bool = False
    """A rope cache whose cosines and sines are multiplied by a factor as it is built."""

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one of them."""
        return self.n_bytes // self.count

    @property
    def numel(self) -> int:
        """Elements of all of them as stored."""
        return prod(self.shape) * self.count


def tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of one tensor; a scalar has shape ()."""
    return prod(shape) * DTYPE_BYTES[dtype]


@lru_cache(maxsize=4096)
def role_of(name: str) -> str:
    """The role of a module by its path inside a layer or the model, for example 'mlp.gate' -> 'router'."""
    parts = name.split(".")
    head, last = parts[0], parts[-2] if parts[-1] in ("weight", "bias") and len(parts) > 1 else parts[-1]
    if head in ("visual", "vision_tower", "vision_model", "audio_tower", "encoder", "multi_modal_projector"):
        return "encoder"
    if "cos_sin_cache" in name or "rotary" in name:
        return "rope_cache"
    if ".attn._" in name or name.startswith("attn._"):
        return "attention_scales"
    if last.startswith("lm_head") or last in ("score", "classifier", "embed_out"):
        return "lm_head"
    if "embed" in last or last in ("wte", "wpe") or "embeddings" in parts:
        return "embedding"
    if "_expert_map" in last:
        return "expert_map"
    if "shared_expert" in name or "shared_mlp" in name:
        return "shared_experts"
    if (
        last in ("gate", "router")
        or "e_score_correction_bias" in name
        or ".router" in name
        or ".gate." in name
    ):
        return "router"
    if "experts" in parts:
        return "experts"
    if "norm" in last or last.startswith("ln_"):
        return "norms"
    if head in ("mamba", "linear_attn", "mixer", "conv", "ssm") or "mamba" in parts:
        return "state_space"
    if "attn" in head or "attention" in head:
        return "attention"
    if head in ("mlp", "feed_forward", "ffn", "block_sparse_moe", "moe"):
        return "mlp"
    return "other"
