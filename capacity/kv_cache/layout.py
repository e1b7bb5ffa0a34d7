"""The physical KV cache layout of a model (0.29.0 on): it decides how blocks of different pages are packed.

Source: `get_supported_kv_cache_layouts`, `resolve_kv_cache_layout` (vllm/v1/attention/backends/utils.py,
0.33.0). A layout's letters are its physical order of layers L, blocks B, heads H, tokens N and content C.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_capacity.attention_backends import AttentionBackend
from vllm_capacity.engine import EngineConfig
from vllm_capacity.errors import Reason, RefusedError
from vllm_capacity.kv_cache.specs import AttentionSpec, KVCacheSpec
from vllm_capacity.releases.release import Release

LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
PREFERENCE = ("LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC")
ALIASES = {"NHD": "LBNHC", "HND": "LBHNC"}


def resolve_layout(
    specs: Sequence[KVCacheSpec], backends: Sequence[AttentionBackend], engine: EngineConfig, release: Release
) -> str:
    """The layout in use; VLLM_KV_CACHE_LAYOUT wins where every backend can read it. Raises RefusedError
    otherwise.
    """
    if not release.has("packed_kv_groups"):
        return PREFERENCE[0]
    candidates = _supported(backends)
    shapes = {
        (spec.num_heads, spec.num_states, spec.page_size_bytes)
        if isinstance(spec, AttentionSpec)
        else (1, 1, spec.page_size_bytes)
        for spec in specs
    }
    if len(shapes) > 1:
        candidates = [layout for layout in candidates if set(layout[:2]) == {"L", "B"}]
    requested = engine.environment.get("VLLM_KV_CACHE_LAYOUT")
    if requested is not None:
        layout = ALIASES.get(requested.upper(), requested.upper())
        if layout not in candidates:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE,
                f"VLLM_KV_CACHE_LAYOUT={requested} does not satisfy every supported set; "
                f"valid layouts: {candidates}.",
            )
        return layout
    if not candidates:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            "Specs with mixed HNC shapes need a block-compact layout, but none is in every supported set.",
        )
    return candidates[0]


def _supported(backends: Sequence[AttentionBackend]) -> list[str]:
    declared = [backend.layouts for backend in backends if backend.layouts is not None] or [PREFERENCE]
    if all(layouts == declared[0] for layouts in declared):
        return list(declared[0])
    shared = set(declared[0]).intersection(*declared[1:])
    first = [layouts[0] for layouts in declared]
    return sorted((layout for layout in LAYOUTS if layout in shared), key=first.count, reverse=True)
