"""What vLLM builds for a draft model: its architecture, less what it shares with the target.

Source: v1/worker/gpu/spec_decode/eagle/utils.py: load_eagle_model; v1/spec_decode/llm_base_proposer.py:
_maybe_share_embeddings, _maybe_share_lm_head; v1/spec_decode/draft_model.py (0.26.0 and 0.33.0).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from vllm_capacity.architecture import common
from vllm_capacity.architecture.eagle import eagle_head, flattened, is_llama_head
from vllm_capacity.architecture.modules import Architecture, Placed, Tensor
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.lengths import derived_max_model_len
from vllm_capacity.engine_defaults.speculation import Speculation
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

ROPES_THAT_ONLY_SIZE_A_CACHE = frozenset({"default", "linear", "llama3", "ntk", "proportional"})
"""`_CACHE_ONLY_ROPE_TYPES`, config/speculative.py (0.33.0)."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model's config and what is built of it."""

    config: ModelConfig
    architecture: Architecture


def draft_of(
    speculation: Speculation,
    args: EngineArgs,
    config: ModelConfig,
    target: Architecture,
    release: Release,
    *,
    max_model_len: int,
) -> Draft | None:
    """The draft model with a config.json of its own; None without one and for heads of other kinds than Llama's.

    A head whose checkpoint has an LM head keeps it; dummy weights read no checkpoint, so that the target's serves both.
    """
    if not speculation.draft or speculation.method not in ("eagle", "eagle3", "draft_model"):
        return None
    if speculation.method != "draft_model" and not is_llama_head(_config(config)):
        return None
    return _draft(
        config, target, speculation.method, release, args.other("load_format") != "dummy",
        args.pipeline_parallel_size > 1, max_model_len,
    )  # fmt: skip


def draft_length(speculation: Speculation, config: ModelConfig, release: Release) -> int | None:
    """`max_model_len` of a draft that model runner V2 limits the target's to; None where it does not.

    `_limit_max_model_len_to_draft`, config/vllm.py (0.33.0).
    """
    given = speculation.values.get("max_model_len")
    if not speculation.draft:
        return None
    draft = _config(config)
    if _shares_positions(str(speculation.method), draft):
        return None
    derived = derived_max_model_len(EngineArgs(), draft, release, pooling=False)
    return min(int(given), derived) if isinstance(given, int) else derived


@lru_cache(maxsize=64)
def _config(config: ModelConfig) -> ModelConfig:
    given = config.facts["draft_config"]
    return normalise("the draft model", flattened(given), source="--speculative-config")


def _shares_positions(method: str, draft: ModelConfig) -> bool:
    """`SpeculativeConfig.draft_shares_target_positions`, config/speculative.py (0.33.0)."""
    kind = common.rope_parameters(draft).get("rope_type", "default")
    return method != "draft_model" and kind in ROPES_THAT_ONLY_SIZE_A_CACHE


def _with_positions(draft: ModelConfig, method: str, length: int) -> ModelConfig:
    """Every draft but an independent model gets a rope cache of the target's length
    (`_maybe_override_draft_max_position_embeddings`, config/speculative.py, 0.33.0).
    """
    positions = draft.get("max_position_embeddings")
    if not _shares_positions(method, draft) or not isinstance(positions, int) or positions >= length:
        return draft
    return replace(draft, text={**draft.text, "max_position_embeddings": length})


@lru_cache(maxsize=64)
def _draft(
    config: ModelConfig, target: Architecture, method: str, release: Release, loaded: bool, staged: bool,
    max_model_len: int,
) -> Draft:  # fmt: skip
    draft = _config(config)
    if method in ("eagle", "eagle3") and release.has("draft_positions_raised"):
        draft = _with_positions(draft, method, max_model_len)
    if method in ("eagle", "eagle3"):
        wider = loaded and draft.hidden_size != target.hidden_size
        built = eagle_head(
            draft, eagle3=method == "eagle3", own_embedding=staged or wider, own_head=loaded,
            unmapped=target.vocab_size if release.has("eagle3_map_if_smaller") else 0,
        )  # fmt: skip
    else:
        built = build_architecture(draft, release)
    return Draft(draft, replace(built, outside=_without_shared_rope(built, draft, target, config)))


def _without_shared_rope(
    built: Architecture, draft: ModelConfig, target: Architecture, config: ModelConfig
) -> tuple[Placed, ...]:
    """Layers with the same rope settings share one cache, those of a draft too (`_ROPE_DICT`,
    layers/rotary_embedding/__init__.py).
    """
    if common.rope_parameters(draft) != common.rope_parameters(config):
        return built.outside
    there = {placed.module.shape for placed in target.outside if _is_rope(placed)}  # type: ignore[union-attr]
    return tuple(
        placed
        for placed in built.outside
        if not (_is_rope(placed) and placed.module.shape in there)  # type: ignore[union-attr]
    )


def _is_rope(placed: Placed) -> bool:
    return isinstance(placed.module, Tensor) and placed.module.name.endswith("cos_sin_cache")
