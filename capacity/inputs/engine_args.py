"""vLLM's flags as values: typed, checked and put into `EngineArgs`; errors are one line that names the flag.

What a flag takes is what vLLM's parser takes (`capacity/inputs/flags`, read from each release's
arg_utils.py); text and Python values are both accepted. Bounds are those of vLLM's own config classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.flags import Flag, check_keys, flags_for
from vllm_capacity.releases import newest_release
from vllm_capacity.releases.release import Release
from vllm_capacity.units import parse_human_int

MAX_JSON_CHARACTERS = 1 << 20
MAX_JSON_DEPTH = 64
MAX_INTEGER = 1 << 62

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")

_OWN = frozenset({"usage", "environment", "others", "allow_unmodelled"})
"""Entries that are no flags of vLLM: what is planned for, and with what leniency."""

_FIELDS = {f.name: f for f in fields(EngineArgs)}

_AT_LEAST_ONE = frozenset(
    {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
        "max_num_batched_tokens",
        "max_num_seqs",
        "block_size",
        "num_gpu_blocks_override",
        "kv_cache_memory_bytes",
    }
)
"""config/parallel.py, config/scheduler.py, config/cache.py: Field(ge=1) or (gt=0); 0 blocks or bytes serve
nothing.
"""

_AT_LEAST_ZERO = frozenset({"max_cudagraph_capture_size"})


def parse_engine_args(values: Mapping[str, Any], *, release: Release | None = None) -> EngineArgs:
    """`EngineArgs` of flags given by their long names in snake case, as text or Python values.

    Beside the flags: `usage` ('server' or 'offline'), `environment` (names to text), `allow_unmodelled`
    (flags that may change memory in a way that is not modelled are an error without it). None means "not
    given". Raises InputError.
    """
    return merge_engine_args(None, values, release=release)


def merge_engine_args(
    base: EngineArgs | None, values: Mapping[str, Any], *, release: Release | None = None
) -> EngineArgs:
    """`base` (a pasted line) overridden by `values`; environments are merged, the later one wins. Raises
    InputError.
    """
    release = release or newest_release()
    known = flags_for(release)
    allow = bool(values.get("allow_unmodelled"))
    direct: dict[str, Any] = {} if base is None else {n: getattr(base, n) for n in _FIELDS}
    others = dict(direct.pop("others", {}))
    environment = dict(direct.pop("environment", {}))
    for name, given in values.items():
        if given is None or name in _OWN:
            continue
        flag = known.get(name)
        if flag is None:
            raise InputError(_unknown(name, release))
        value = coerce(flag, given)
        if value is None:
            continue
        if isinstance(value, Mapping):
            check_keys(name, value, release, allow_unmodelled=allow)
        if name in _FIELDS:
            direct[name] = value
        elif name not in ("config", "model"):
            others[name] = value
    _merge_speculation(others)
    if allow:
        others["allow_unmodelled"] = True
    else:
        _refuse_unmodelled(direct, others, release)
    environment.update(_environment(values.get("environment")))
    usage = values.get("usage") or direct.pop("usage", "server")
    direct.pop("usage", None)
    if usage not in ("server", "offline"):
        raise InputError(f"--usage must be server (vllm serve) or offline (the LLM class), not {usage!r:.40}")
    _check_bounds(direct)
    return EngineArgs(**direct, usage=usage, environment=environment, others=others)


_SPECULATION = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}


def _merge_speculation(others: dict[str, Any]) -> None:
    """`--spec-*` are keys of `--speculative-config`.

    `create_speculative_config`, engine/arg_utils.py (0.26.0): one key twice is an error.
    """
    given = {key: others.pop(name) for name, key in _SPECULATION.items() if name in others}
    if not given:
        return
    config = others.get("speculative_config") or {}
    for name, key in _SPECULATION.items():
        if key in given and key in config:
            raise InputError(
                f"--{name.replace('_', '-')} and --speculative-config['{key}'] are mutually exclusive"
            )
    others["speculative_config"] = {**config, **given}


def coerce(flag: Flag, value: Any) -> Any:
    """The value that vLLM's parser makes of `value`; None for its spellings of "not given". Raises
    InputError.
    """
    option = flag.aliases[0]
    special = _SPECIAL.get(flag.name)
    if special is not None:
        return special(option, value)
    if flag.kind not in ("bool", "store_true", "str") and isinstance(value, str) and value in ("", "None"):
        return None
    if flag.kind == "list":
        items = list(value) if isinstance(value, (list, tuple, set)) else [value]
        return tuple(_scalar(option, flag.item, item) for item in items)
    if flag.kind == "append":
        return tuple(str(v) for v in (value if isinstance(value, (list, tuple)) else [value]))
    if flag.lower and isinstance(value, str):
        value = value.lower().replace("-", "_")
    result = _scalar(option, flag.kind, value)
    if flag.choices and result not in flag.choices:
        if result == "None":
            return None
        raise InputError(f"{option}: {result!r} is none of {', '.join(str(c) for c in flag.choices)}")
    return result


# -- one value -----------------------------------------------------------------------------------------------


def _scalar(option: str, kind: str, value: Any) -> Any:
    reader = _READERS.get(kind)
    if reader is None:
        raise InputError(f"{option}: values of kind {kind!r} are not read")
    return reader(option, value)


def _bool(option: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise InputError(f"{option} is on or off and takes no value, not {value!r:.40}")


def _int(option: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise InputError(f"{option} must be an integer, not {value!r:.40}")
    try:
        number = int(value)
    except ValueError:
        raise InputError(f"{option} must be an integer, not {value!r:.40}") from None
    if abs(number) > MAX_INTEGER:
        raise InputError(f"{option} is {str(number)[:20]}..., which is more than any memory holds")
    return number


def _human_int(option: str, value: Any) -> int:
    if isinstance(value, str) and value.strip().lstrip("-").replace("_", "").isdecimal():
        return _int(option, value)
    if isinstance(value, str):
        try:
            return _int(option, parse_human_int(value))
        except ValueError as error:
            raise InputError(f"{option}: {error}") from None
    return _int(option, value)


def _human_int_or_auto(option: str, value: Any) -> int:
    if isinstance(value, str) and value.strip().lower() in ("auto", "-1"):
        return -1
    return _human_int(option, value)


def _float(option: str, value: Any) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = float("nan")
        if number == number and abs(number) != float("inf"):
            return number
    raise InputError(f"{option} must be a number, not {value!r:.40}")


def _str(option: str, value: Any) -> str:
    if isinstance(value, (Mapping, list, tuple)):
        raise InputError(f"{option} must be text, not {type(value).__name__}")
    return str(value)


def _bool_or_str(option: str, value: Any) -> bool | str:
    return value if isinstance(value, bool) else _str(option, value)


def _json(option: str, value: Any) -> Any:
    """JSON text (with vLLM's 80m, 32K numbers outside strings) or the value itself."""
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except ValueError as error:
        raise InputError(f"{option} must be JSON: {error}") from None


def _json_object(option: str, value: Any) -> Any:
    result = _json(option, value)
    if not isinstance(result, Mapping):
        raise InputError(f"{option} must be a JSON object, not {str(value)!r:.60}")
    return result


def _json_or_str(option: str, value: Any) -> Any:
    """`union_dict_and_str`, engine/arg_utils.py: JSON where it looks like an object, else text."""
    if isinstance(value, str) and not value.strip().startswith("{"):
        return value
    return _json(option, value)


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "bool": _bool,
    "store_true": _bool,
    "bool_or_str": _bool_or_str,
    "int": _int,
    "human_int": _human_int,
    "human_int_or_auto": _human_int_or_auto,
    "float": _float,
    "str": _str,
    "json": _json,
    "config": _json_object,
    "json_or_str": _json_or_str,
}


def _optimization_level(option: str, value: Any) -> int:
    text = str(value).strip().upper().removeprefix("O")
    if isinstance(value, bool) or text not in ("0", "1", "2", "3"):
        raise InputError(f"{option} must be 0, 1, 2 or 3, not {value!r:.40}")
    return int(text)


def _compilation_config(option: str, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"mode": value}
    return _json_object(option, value)


def _speculative_config(option: str, value: Any) -> Any:
    return None if value in ("", "None") else _json_object(option, value)


def _quantization(option: str, value: Any) -> str | None:
    text = _str(option, value)
    return None if text in ("", "None") else text


_SPECIAL: dict[str, Callable[[str, Any], Any]] = {
    "optimization_level": _optimization_level,
    "compilation_config": _compilation_config,
    "speculative_config": _speculative_config,
    "hf_overrides": _json_object,
    "quantization": _quantization,
    "attention_backend": _quantization,
    "dtype": _str,
    "kv_cache_dtype": _str,
}
"""Flags whose values are checked where the release's rules are known, or that are read in a way of their
own.
"""


def read_json(text: str) -> Any:
    """JSON of a command line. ValueError for anything else, for NaN and for what is too large or too deep.

    Bare numbers may carry vLLM's suffixes (`_expand_json_human_readable_numbers`,
    engine/arg_utils.py:265-285, 0.26.0).
    """
    import re

    if len(text) > MAX_JSON_CHARACTERS:
        raise ValueError(f"it has more than {MAX_JSON_CHARACTERS:,} characters")
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", lambda m: str(parse_human_int(m[0])), parts[i])

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not a number")

    try:
        value = json.loads("".join(parts), parse_constant=constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno} of {text!r:.60}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _depth_exceeds(value, MAX_JSON_DEPTH):
        raise ValueError(f"it is nested more than {MAX_JSON_DEPTH} levels deep")
    return value


def _depth_exceeds(value: Any, limit: int) -> bool:
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


# -- all together --------------------------------------------------------------------------------------------


def _refuse_unmodelled(direct: Mapping[str, Any], others: Mapping[str, Any], release: Release) -> None:
    """InputError for the first flag or JSON key whose effect on memory would be left out of the plan."""
    known = flags_for(release)
    for name, value in {**direct, **others}.items():
        flag = known.get(name)
        if flag is None or value is None or value is False:
            continue
        if flag.effect == "unmodelled":
            raise InputError(
                f"{flag.aliases[0]} may change memory in a way that is not modelled ({flag.reason}); leave "
                "it out, or pass --allow-unmodelled to plan without it"
            )
        if isinstance(value, Mapping):
            check_keys(name, value, release)


def _environment(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError("environment must map names to values")
    return {str(name): str(text) for name, text in value.items()}


def _check_bounds(direct: Mapping[str, Any]) -> None:
    for name, value in direct.items():
        option = "--" + name.replace("_", "-")
        if name in _AT_LEAST_ONE and value is not None and value < 1:
            raise InputError(f"{option} must be at least 1, not {value}")
        if name in _AT_LEAST_ZERO and value is not None and value < 0:
            raise InputError(f"{option} must be at least 0, not {value}")
    length = direct.get("max_model_len")
    if length is not None and length != -1 and length < 1:
        raise InputError(f"--max-model-len must be at least 1, or auto, not {length}")
    utilization = direct.get("gpu_memory_utilization")
    if utilization is not None and not 0 < utilization <= 1:
        raise InputError(f"--gpu-memory-utilization must be above 0 and at most 1, not {utilization:g}")
    mode = direct.get("performance_mode")
    if mode is not None and mode not in ("balanced", "interactivity", "throughput"):
        raise InputError(
            f"--performance-mode must be balanced, interactivity or throughput, not {mode!r:.40}"
        )


def _unknown(name: str, release: Release) -> str:
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(name, [*flags_for(release), *_OWN], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name} is not an engine argument of vLLM {release.version}{hint}"
