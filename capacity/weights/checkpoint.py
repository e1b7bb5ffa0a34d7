"""An architecture held against the tensors that its checkpoint really stores.

vLLM builds parameters from config.json and copies the checkpoint into them. So headers decide what config.json
cannot: sizes where the two disagree are taken from the headers, and every disagreement is said by name, with what vLLM
does about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from vllm_capacity.architecture.modules import (
    Architecture,
    Experts,
    LayerGroup,
    Linear,
    Module,
    Placed,
    QkvLinear,
    Tensor,
    VocabEmbedding,
)
from vllm_capacity.units import gib
from vllm_capacity.weights.checkpoint_names import PACKED, Kind, NameMap, Target
from vllm_capacity.weights.groups import role_of

if TYPE_CHECKING:
    from vllm_capacity.inputs.safetensors_format import TensorInfo

_OTHER_BITS = ((1, 1), (1, 2), (2, 1), (1, 4), (4, 1))
"""Ratios between 2, 4 and 8 bits: what a module's size is off by where its bits are not the block's."""


@dataclass(slots=True)
class _Module:
    """What the checkpoint stores of one module of one layer."""

    parts: dict[int | None, tuple[tuple[int, ...], bool]] = field(default_factory=dict)
    """Slice -> (logical [outputs, inputs], whether the stored form is packed)."""
    elements: int = 0
    bias: bool = False
    packed: bool = False


def fit_to_headers(
    architecture: Architecture, tensors: Sequence[TensorInfo], block: Mapping[str, Any] | None = None
) -> Architecture:
    """`architecture` with the sizes of the stored tensors; its `notes` name every disagreement.

    `block` is the checkpoint's quantisation block: it says how packed tensors lie.
    """
    names = NameMap(architecture)
    found: dict[tuple[int | None, str], _Module] = {}
    aside: dict[Kind, list[TensorInfo]] = {kind: [] for kind in Kind}
    for tensor in tensors:
        target = names.target(tensor.name)
        aside[target.kind].append(tensor)
        if target.kind is Kind.LOADED:
            _note_tensor(found.setdefault((target.layer, target.module), _Module()), tensor, target, block)
    notes: list[str] = []
    layers = tuple(new for group in architecture.layers for new in _fit_group(group, found, notes))
    outside = tuple(_fit_placed(placed, found, notes) for placed in architecture.outside)
    notes += _heads(architecture, found, tensors, names)
    notes += _aside(architecture, aside)
    notes += _missing(architecture, found)
    return replace(
        architecture, layers=layers, outside=outside, notes=(*architecture.notes, *dict.fromkeys(notes))
    )


def _note_tensor(
    module: _Module, tensor: TensorInfo, target: Target, block: Mapping[str, Any] | None
) -> None:
    if target.parameter == "bias":
        module.bias = True
        return
    shape, packed = logical_shape(tensor, target.parameter, block)
    if shape is None or 0 in shape:
        return
    module.elements += prod(shape)
    module.packed = module.packed or packed
    if len(shape) <= 2:
        before = module.parts.get(target.part, ((), False))[0]
        if not target.parameter and len(before) == len(shape) == 2:  # an embedding in two pieces
            shape = (before[0] + shape[0], shape[1])
        module.parts[target.part] = (shape, packed)


def logical_shape(
    tensor: TensorInfo, parameter: str, block: Mapping[str, Any] | None
) -> tuple[tuple[int, ...] | None, bool]:
    """([outputs, inputs] in elements of the model, whether several of them share a stored element); None for scales.

    AWQ packs the outputs of [inputs, outputs], GPTQ the inputs of the same, compressed-tensors the inputs of
    [outputs, inputs]; 4-bit floats lie two in a byte. Sources: `create_weights` of quantization/auto_awq.py,
    auto_gptq.py, compressed_tensors/schemes/compressed_tensors_wNa16.py, modelopt.py (0.26.0).
    """
    shape = tensor.shape
    if parameter and parameter not in PACKED:
        return None, False
    method = str((block or {}).get("quant_method", "")).lower()
    if parameter == "qweight" and len(shape) == 2:
        factor = 32 // _bits(block)
        awq = "awq" in method or "awq" in str((block or {}).get("packing_format", ""))
        return ((shape[1] * factor, shape[0]) if awq else (shape[1], shape[0] * factor)), True
    if tensor.dtype in ("I32", "U32") and len(shape) == 2:
        return (shape[0], shape[1] * (32 // _bits(block))), True
    if tensor.dtype in ("U8", "F4") and len(shape) >= 2:
        if method == "bitsandbytes" or tensor.dtype == "F4":
            return (None, True) if method == "bitsandbytes" else (shape, False)
        return (*shape[:-1], shape[-1] * 2), True
    return shape, False


def _bits(block: Mapping[str, Any] | None) -> int:
    for key in ("bits", "w_bit"):
        value = (block or {}).get(key)
        if value in (2, 4, 8):
            return int(value)
    groups = (block or {}).get("config_groups")
    if isinstance(groups, Mapping):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping) and weights.get("num_bits") in (2, 4, 8):
                return int(weights["num_bits"])
    return 4


# -- sizes ---------------------------------------------------------------------------------------------------


def _fit_group(
    group: LayerGroup, found: Mapping[tuple[int | None, str], _Module], notes: list[str]
) -> Iterable[LayerGroup]:
    """The group, split where its layers store different sizes."""
    kinds: dict[tuple[Module, ...], list[int]] = {}
    for index in group.indices:
        modules = tuple(_fit(module, found.get((index, module.name)), notes) for module in group.modules)
        kinds.setdefault(modules, []).append(index)
    if len(kinds) == 1 and next(iter(kinds)) == group.modules:
        yield group
        return
    for modules, indices in kinds.items():
        yield replace(group, indices=tuple(indices), modules=modules)


def _fit_placed(placed: Placed, found: Mapping[tuple[int | None, str], _Module], notes: list[str]) -> Placed:
    module = _fit(placed.module, found.get((None, placed.module.name)), notes)
    return placed if module is placed.module else replace(placed, module=module)


def _fit(module: Module, stored: _Module | None, notes: list[str]) -> Module:
    """The module as the checkpoint stores it; `notes` gains a line where config.json says otherwise."""
    if stored is None:
        return module
    if isinstance(module, Linear):
        return _fit_linear(module, stored, notes)
    if isinstance(module, VocabEmbedding):
        shape = stored.parts.get(None, ((), False))[0]
        if len(shape) == 2 and shape[0] != module.rows and not stored.packed:
            notes.append(_differs(module.name, f"{shape[0]:,} rows", f"{module.rows:,}"))
            return replace(module, rows=shape[0])
        return module
    if isinstance(module, QkvLinear):
        heads = module.num_heads * module.head_size
        kv = (module.num_kv_heads * module.head_size, module.num_kv_heads * module.head_size_v)
        for part, size in enumerate((heads, *kv)):
            shape = stored.parts.get(part, ((), False))[0]
            if len(shape) == 2 and shape[0] != size:
                notes.append(
                    _differs(f"{module.name}, slice {part}", f"{shape[0]:,} rows", f"{size:,}", taken=False)
                )
        return module
    if isinstance(module, Experts):
        expected = (
            module.num_experts * module.hidden_size * module.intermediate_size * (3 if module.gated else 2)
        )
        if stored.elements and stored.elements != expected and not stored.packed:
            notes.append(_differs(module.name, f"{stored.elements:,} elements", f"{expected:,}", taken=False))
        return module
    if not module.buffer and stored.elements and stored.elements != prod(module.shape):
        notes.append(
            _differs(module.name, f"{stored.elements:,} elements", f"{prod(module.shape):,}", taken=False)
        )
    return module


def _fit_linear(module: Linear, stored: _Module, notes: list[str]) -> Linear:
    """Outputs per slice and inputs; a fused tensor says only their sum."""
    outputs, inputs = list(module.outputs), module.inputs
    for part, (shape, packed) in stored.parts.items():
        if len(shape) != 2:
            continue
        rows, columns = shape
        if packed and _fits_packed(shape, module, part):
            continue
        if part is None and len(outputs) == 1:
            outputs[0] = rows
        elif part is not None and part < len(outputs):
            outputs[part] = rows
        elif rows != sum(outputs):
            notes.append(_differs(module.name, f"{rows:,} rows", f"{sum(outputs):,}", taken=False))
            continue
        inputs = columns
    if tuple(outputs) == module.outputs and inputs == module.inputs:
        return module
    if not module.outputs or len(stored.parts) not in (1, len(module.outputs)):
        return module
    notes.append(
        _differs(
            module.name, f"[{sum(outputs):,}, {inputs:,}]", f"[{sum(module.outputs):,}, {module.inputs:,}]"
        )
    )
    return replace(module, outputs=tuple(outputs), inputs=inputs)


def _fits_packed(shape: tuple[int, ...], module: Linear, part: int | None) -> bool:
    """True where the sizes agree, if with another number of bits: mixed precision says its bits per module."""
    if part is not None and part >= len(module.outputs):
        return False
    rows, inputs = sum(module.outputs) if part is None else module.outputs[part], module.inputs
    return any(
        (shape[0] * a == rows * b and shape[1] == inputs) or (shape[0] == rows and shape[1] * a == inputs * b)
        for a, b in _OTHER_BITS
    )


def _differs(name: str, stored: str, said: str, *, taken: bool = True) -> str:
    then = (
        "planned as stored; vLLM sizes it by config.json and refuses such a checkpoint"
        if taken
        else "planned as config.json says; vLLM refuses such a checkpoint"
    )
    return (
        f"headers and config disagree: {name} is stored with {stored} where the config says {said} ({then})"
    )


# -- what is more and what is less ---------------------------------------------------------------------------


def _heads(
    architecture: Architecture,
    found: Mapping[tuple[int | None, str], _Module],
    tensors: Sequence[TensorInfo],
    names: NameMap,
) -> Iterable[str]:
    """Tied heads that are stored all the same, and heads that are not stored."""
    head = names.head or "lm_head"
    stored = (None, head) in found
    placed = next((p for p in architecture.outside if p.module.name == head), None)
    if stored and (placed is None or placed.shares_storage_with is not None):
        n_bytes = sum(
            t.n_bytes
            for t in tensors
            if (target := names.target(t.name)).module == head and target.layer is None
        )
        yield (
            f"headers: {head} is stored beside the embedding it is tied to; vLLM skips it, "
            f"{gib(n_bytes)} of the checkpoint never reach the GPU"
            if placed is not None
            else f"headers: {head} is stored, but vLLM's class builds no head; {gib(n_bytes)} are skipped"
        )
    if not stored and placed is not None and placed.shares_storage_with is None and found:
        yield (
            f"headers: {head} is not stored though the config does not tie it to the embedding; vLLM allocates it all "
            "the same (a text generator then fails to load, a pooling model drops it)"
        )


def _aside(architecture: Architecture, aside: Mapping[Kind, list[TensorInfo]]) -> Iterable[str]:
    mtp = aside[Kind.MTP]
    if mtp:
        yield (
            f"headers: {gib(_bytes(mtp))} in {len(mtp):,} tensors belong to multi-token-prediction layers, which vLLM loads "
            "only with --speculative-config"
        )
    tower = aside[Kind.TOWER]
    own = _encoder_elements(architecture)
    if tower and not own:
        yield (
            f"headers: {gib(_bytes(tower))} in {len(tower):,} tensors belong to an encoder of images or sound that "
            f"{architecture.name} does not build; they are not loaded"
        )
    elif tower:
        stored = sum(t.n_elements for t in tower)
        if stored != own:
            yield (
                f"headers: the encoder is stored with {stored:,} elements where the config gives {own:,} "
                "(planned as config.json says)"
            )
    elif own and any(aside.values()):
        yield "headers: no encoder is stored, though the model's class builds one; vLLM allocates it all the same"
    unknown = aside[Kind.UNKNOWN]
    if unknown:
        yield (
            f"headers: {len(unknown):,} tensors ({gib(_bytes(unknown))}) fit no module of {architecture.name}, "
            f"{unknown[0].name} for one; they are left out of the plan"
        )


def _missing(architecture: Architecture, found: Mapping[tuple[int | None, str], _Module]) -> Iterable[str]:
    """Modules of the layers that no stored tensor fills: vLLM allocates them whether they are filled or not."""
    missing = [
        f"layers.{index}.{module.name}"
        for group in architecture.layers
        for index in group.indices
        for module in group.modules
        if (index, module.name) not in found and not (isinstance(module, Tensor) and module.buffer)
    ]
    if missing:
        yield (
            f"headers: {len(missing):,} of the model's modules are not stored, {missing[0]} for one; vLLM allocates "
            "them all the same"
        )


def _bytes(tensors: Iterable[TensorInfo]) -> int:
    return sum(tensor.n_bytes for tensor in tensors)


def _encoder_elements(architecture: Architecture) -> int:
    from vllm_capacity.weights.totals import parameter_total

    placed = tuple(p for p in architecture.outside if role_of(p.module.name) == "encoder")
    return parameter_total(replace(architecture, layers=(), outside=placed)) if placed else 0
