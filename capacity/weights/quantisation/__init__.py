"""Quantisation methods: one module each, one row here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.weights.quantisation.base import QuantContext, QuantisationMethod

Factory = Callable[[QuantContext], QuantisationMethod]

METHODS: Mapping[str, str] = {
    "fp8": "fp8:fp8",
    "mxfp4": "mxfp4:Mxfp4",
    "gpt_oss_mxfp4": "mxfp4:Mxfp4",
}
"""vLLM's method names -> 'module:factory' below this package, imported when asked for."""

REMOVED: Mapping[str, str] = {
    "bitsandbytes": "bitsandbytes",
}
"""Methods that some releases no longer have: name -> the feature that says so."""


def quantisation_method(name: str | None, context: QuantContext) -> QuantisationMethod:
    """The method that vLLM would use for `name` (None: unquantised).

    Raises InputError for methods that are not modelled, RefusedError for those the release does not have.
    """
    if name is None:
        from vllm_capacity.weights.quantisation.unquantised import Unquantised

        return Unquantised(context)
    feature = REMOVED.get(name)
    if feature is not None and not context.release.has(feature):
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"Unknown quantization method: {name} (not in vLLM {context.release.version})",
        )
    path = METHODS.get(name)
    if path is None:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(
            f"{context.model}: quantisation method {name!r} is not modelled{hint}; known:"
            f" {', '.join(sorted(METHODS))}."
            " `vllm-capacity dry-run` asks an installed vLLM instead"
        )
    module, factory = path.split(":")
    found: Any = getattr(import_module(f"{__name__}.{module}"), factory)
    return cast(Factory, found)(context)


def checkpoint_method(block: Mapping[str, Any] | None) -> str | None:
    """The method's name in a checkpoint's quantisation block; some ModelOpt files say only `quant_algo`."""
    if not block:
        return None
    method = block.get("quant_method") or block.get("quant_algo")
    if method is None and isinstance(block.get("quantization"), Mapping):
        method = "modelopt"
    return None if method is None else str(method).lower()
