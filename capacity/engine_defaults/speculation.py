"""What a speculative configuration says, as far as the engine's defaults depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.facts import refuse
from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

_DETECTED = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
"""Parts of a draft model's name by which vLLM finds the method (config/speculative.py:812-835, 0.26.0)."""

_NEXTN_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_predict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """`method` is None without speculation; `draft` is the draft model's config.json where it is known."""

    method: str | None = None
    num_tokens: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    draft: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parallel_drafting(self) -> bool:
        """dflash and dspark draft a block at once; EAGLE and draft models when asked to."""
        return bool(self.values.get("parallel_drafting")) or self.method in ("dflash", "dspark")

    @property
    def dynamic(self) -> bool:
        return self.values.get("num_speculative_tokens_per_batch_size") is not None

    def use_eagle(self, release: Release) -> bool:
        """`SpeculativeConfig.use_eagle`, config/speculative.py."""
        methods = {"eagle", "eagle3", "mtp"}
        methods |= {"dflash"} if release.has("dflash_counts_as_eagle") else set()
        methods |= {"dspark"} if release.has("async_with_dspark") else set()
        return self.method in methods

    def mixes_windows(self) -> bool:
        """A dflash draft with both sliding-window and full layers (config/vllm.py:
        _dflash_needs_multi_kv_group).
        """
        kinds = self.draft.get("layer_types") or []
        sliding = sum(kind == "sliding_attention" for kind in kinds)
        return self.method == "dflash" and 0 < sliding < len(kinds)


def resolve_speculation(args: EngineArgs, config: ModelConfig) -> Speculation:
    """`SpeculativeConfig.__post_init__`, config/speculative.py:660-1010 (0.26.0), without loading the draft
    model.

    The method is the one given, else found from the draft's name, else 'draft_model'; every `*_mtp` is 'mtp'.
    Without `num_speculative_tokens` an MTP model's own number of next-token layers counts. Raises InputError
    or RefusedError.
    """
    given = args.other("speculative_config")
    if not given:
        return Speculation()
    if not isinstance(given, Mapping):
        raise InputError("--speculative-config must be a JSON object")
    method, model = given.get("method"), given.get("model")
    if method is None:
        name = str(model or "").lower()
        if name in ("ngram", "[ngram]"):
            method = "ngram"
        else:
            method = next((found for part, found in _DETECTED if part in name), "draft_model")
    method = "mtp" if str(method).endswith("_mtp") else str(method).strip("[]")
    tokens = given.get("num_speculative_tokens")
    if tokens is None and method == "mtp":
        tokens = next((config.get(key) for key in _NEXTN_KEYS if config.get(key)), None)
    if tokens is None and method == "suffix":
        tokens = given.get("suffix_decoding_max_tree_depth", 24)
    if tokens is None:
        raise refuse(
            "A speculative model was provided, but `num_speculative_tokens` was not provided"
            if model is not None
            else "num_speculative_tokens was provided but without speculative model."
        )
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise InputError(
            f"--speculative-config: num_speculative_tokens must be at least 1, not {tokens!r:.60}"
        )
    draft = config.facts.get("draft_config")
    return Speculation(
        method=method,
        num_tokens=tokens,
        values=dict(given),
        draft=draft if isinstance(draft, Mapping) else {},
    )


def check_draft_slots(
    speculation: Speculation,
    args: EngineArgs,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    release: Release,
) -> None:
    """`_set_max_num_scheduled_tokens`, config/vllm.py (0.19.0 to 0.32.0): a batch must have room beside
    its draft slots.
    """
    if speculation.method is None or not release.has("draft_slots_refused"):
        return
    uses_draft_model = speculation.method == "draft_model"
    tokens = speculation.num_tokens
    if release.has("draft_slots_per_batch"):
        slots = tokens - (not uses_draft_model) if speculation.parallel_drafting else int(uses_draft_model)
        if max_num_batched_tokens <= slots:
            raise refuse(
                "VllmConfig does not have enough slots to schedule a token and support the speculative "
                f"decoding settings. Got max_num_batched_tokens={max_num_batched_tokens} and "
                f"scheduled_token_delta={slots}."
            )
        return
    slots = (tokens - 1 if speculation.parallel_drafting else 0) + int(uses_draft_model)
    scheduled = args.other("max_num_scheduled_tokens", max_num_batched_tokens - slots * max_num_seqs)
    if scheduled <= 0:
        raise refuse(
            f"max_num_scheduled_tokens is set to {scheduled} based on the speculative decoding settings, "
            "which does not allow any tokens to be scheduled. Increase max_num_batched_tokens to "
            "accommodate the additional draft token slots, or decrease num_speculative_tokens or "
            "max_num_seqs."
        )
