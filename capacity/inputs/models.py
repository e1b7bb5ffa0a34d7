"""`--model`: a folder or config.json, else an id of the bundled catalogue, else the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.catalogue import find_entry, load_entry, suggestions
from vllm_capacity.inputs.config_json import apply_overrides, normalise, read_config
from vllm_capacity.inputs.model_config import ModelConfig

WITHOUT_CONFIG = frozenset({"ngram", "ngram_gpu", "suffix", "extract_hidden_states"})
"""Values of a speculative config's `model` that name a method (config/speculative.py: __post_init__)."""

_REPOSITORY = re.compile(r"^[A-Za-z0-9](?:[\w.-]*[\w])?(?:/[A-Za-z0-9_](?:[\w.-]*[\w])?)?$", re.ASCII)
_LOOKS_LIKE_PATH = re.compile(r"^(?:[./~\\]|[A-Za-z]:[\\/])|\.json$")


def load_model(
    spec: str,
    *,
    revision: str | None = None,
    hf_overrides: Mapping[str, Any] | None = None,
    offline: bool = False,
    local: bool = True,
) -> ModelConfig:
    """The config of `spec`; `ModelConfig.source` says in words who answered.

    A path wins over the catalogue, which wins over the Hub; with a `revision` the Hub is asked, as the
    catalogue knows no revisions. `offline` forbids the network; without `local` a path is never looked at.
    Raises InputError with one line that says what to do.
    """
    if not spec.strip():
        raise InputError(
            "--model is empty; give a folder, a config.json or a Hugging Face id such as Qwen/Qwen3-8B"
        )
    path = _local_path(spec) if local else None
    if path is not None:
        return read_config(path, hf_overrides)
    entry = find_entry(spec)
    if entry is not None and revision is None:
        return load_entry(entry, hf_overrides)
    return _load_from_hub(spec, revision, hf_overrides, offline)


def with_draft(
    config: ModelConfig, args: EngineArgs, *, offline: bool = False, bundled_only: bool = False
) -> ModelConfig:
    """`config` with the config.json of the model that `--speculative-config` names among its facts (`draft_config`).

    `bundled_only` looks into the catalogue alone. A name that says nothing here (a folder of another machine, a private
    repository) leaves it out, which the plan notes.
    """
    given = args.other("speculative_config")
    name = given.get("model") if isinstance(given, Mapping) else None
    if not isinstance(name, str) or name.strip("[]") in WITHOUT_CONFIG:
        return config
    entry = find_entry(name)
    if entry is None and bundled_only:
        return config
    try:
        draft = load_entry(entry) if entry is not None else load_model(name, offline=offline)
    except InputError:
        return config
    return replace(config, facts={**config.facts, "draft_config": _as_read(draft)})


def _as_read(config: ModelConfig) -> Mapping[str, Any]:
    block = config.quantization
    return config.root if block is None else {**config.root, "quantization_config": block}


def _local_path(spec: str) -> Path | None:
    try:
        path = Path(spec).expanduser()
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):
        raise InputError(f"--model {spec!r:.80} is not a path that this system can read") from None
    if exists:
        return path
    if _LOOKS_LIKE_PATH.search(spec):
        raise InputError(
            f"{spec} does not exist; give a folder with a config.json, the file, or a Hugging Face id"
        )
    return None


def _load_from_hub(
    spec: str, revision: str | None, hf_overrides: Mapping[str, Any] | None, offline: bool
) -> ModelConfig:
    hint = _hint(spec)
    if len(spec) > 96 or "--" in spec or ".." in spec or not _REPOSITORY.match(spec):
        raise InputError(f"{spec!r:.100} is neither a path nor a Hugging Face id (owner/name){hint}")
    from vllm_capacity.inputs.hub import fetch_config

    fetched = fetch_config(spec, revision=revision, offline=offline, hint=hint)
    return normalise(
        spec,
        apply_overrides(fetched.config, hf_overrides or {}),
        source=fetched.source,
        quantization=fetched.quantization,
        facts={"commit": fetched.commit} if fetched.commit else {},
    )


def _hint(spec: str) -> str:
    close = suggestions(spec)
    return f"; did you mean {', '.join(close)}?" if close else ""
