"""`--weights`: what the checkpoint's safetensors headers add to a config, and where they come from.

`headers` reads them (a local folder, or ranges from the Hub), `config` leaves them alone, `auto` reads them where
that costs no network: the model is a local folder with safetensors files, or the Hub's cache holds the checkpoint or
its headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_capacity.errors import InputError
from vllm_capacity.inputs.hub_cache import cached_commit, model_folder
from vllm_capacity.inputs.model_config import ModelConfig

if TYPE_CHECKING:
    from vllm_capacity.inputs.safetensors_format import TensorInfo
    from vllm_capacity.inputs.safetensors_headers import CheckpointHeaders, Progress

MODES = ("auto", "headers", "config")

_UNQUANTISED = frozenset({"F16", "BF16", "F32"})
_TORCH_NAMES: Mapping[str, str] = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


def load_headers(
    spec: str,
    mode: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    local: bool = True,
) -> tuple[CheckpointHeaders | None, tuple[str, ...]]:
    """(headers or None, warnings) for `--weights mode` of model `spec`.

    Raises InputError where `headers` cannot be read; `auto` then warns and goes on with the config. Without
    `local` a folder of that name is never looked at.
    """
    if mode not in MODES:
        raise InputError(f"--weights must be one of {', '.join(MODES)}, not {mode!r:.40}")
    if mode == "config":
        return None, ()
    folder = _local_folder(spec) if local else None
    if mode == "auto" and folder is None:
        folder = cached_snapshot(spec, revision)
    if folder is not None and (mode == "headers" or _has_safetensors(folder)):
        from vllm_capacity.inputs.safetensors_headers import read_local

        try:
            return read_local(folder), ()
        except InputError as error:
            if mode == "headers":
                raise
            return None, (f"--weights auto: {error}; planned from the config",)
    if mode == "auto":
        return _kept_headers(spec, revision), ()
    from vllm_capacity.inputs.safetensors_headers import read_hub

    return read_hub(spec, revision=revision, offline=offline, progress=progress), ()


def _local_folder(spec: str) -> Path | None:
    try:
        path = Path(spec).expanduser()
        return (path if path.is_dir() else path.parent) if path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _has_safetensors(folder: Path) -> bool:
    try:
        return next(folder.glob("*.safetensors"), None) is not None
    except OSError:
        return False


def cached_snapshot(spec: str, revision: str | None) -> Path | None:
    """The folder in which huggingface_hub keeps this model's files, if it has a safetensors file.

    Found without importing the library.
    """
    commit = cached_commit(spec, revision)
    if commit is None:
        return None
    folder = model_folder(spec) / "snapshots" / commit
    return folder if _has_safetensors(folder) else None


def _kept_headers(spec: str, revision: str | None) -> CheckpointHeaders | None:
    """Headers that an earlier `--weights headers` of this commit left in our own cache."""
    commit = cached_commit(spec, revision)
    if commit is None:
        return None
    from vllm_capacity.inputs.safetensors_headers import load_cached

    return load_cached(spec, commit)


# -- what vLLM itself takes from the checkpoint --------------------------------------------------------------


def with_headers(config: ModelConfig, headers: CheckpointHeaders) -> ModelConfig:
    """`config` with the facts that vLLM reads off the checkpoint, and the tensors for the planner.

    - the dtype where config.json has none (`get_torch_dtype`, transformers_utils/model_arch_config_convertor.py:167-207);
    - which modules are quantised where an AWQ or GPTQ block does not say (`maybe_update_config`,
      quantization/auto_awq.py:393-411, auto_gptq.py:278-304; 0.26.0);
    - the bytes on disk.
    """
    facts = {
        **config.facts,
        "tensors": headers.tensors,
        "dtype_of_tensors": common_dtype(tensor.dtype for tensor in headers.tensors),
        "checkpoint_bytes": headers.n_bytes,
        "checkpoint_bytes_source": headers.source,
    }
    return replace(
        config,
        facts=facts,
        quantization=_quantised_set(config.quantization, headers.tensors),
        source=f"{config.source}; tensors: {headers.source}",
    )


def common_dtype(dtypes: Iterable[str]) -> str:
    """`common_broadcastable_dtype`, utils/torch_utils.py:215-263 (0.26.0), of safetensors dtypes: floats win over
    integers; of float16 and bfloat16 together neither holds the other and the first of vLLM's set wins: float16 here.
    """
    found = {_TORCH_NAMES[dtype] for dtype in dtypes if dtype in _TORCH_NAMES}
    for name in ("float32", "float16", "bfloat16"):
        if name in found:
            return name
    return "float32"


def _quantised_set(
    block: Mapping[str, Any] | None, tensors: Iterable[TensorInfo]
) -> Mapping[str, Any] | None:
    method = str((block or {}).get("quant_method", "")).lower()
    if block is None or method not in ("awq", "gptq", "awq_marlin", "gptq_marlin"):
        return block
    key = "modules_to_not_convert" if method.startswith("awq") else "modules_in_block_to_quantize"
    if block.get(key):
        return block
    layers: set[str] = set()
    quantised: set[str] = set()
    for tensor in tensors:
        layer = tensor.name.rpartition(".")[0] or tensor.name
        layers.add(layer)
        if tensor.dtype not in _UNQUANTISED:
            quantised.add(layer)
    names = layers - quantised if method.startswith("awq") else quantised
    return {**block, key: sorted(names)}
