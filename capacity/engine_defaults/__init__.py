"""What vLLM makes of the user's flags: defaults, derived values and refusals before any memory is looked at.

One module per question (`dtypes`, `lengths`, `layout`, `scheduling`, `speculation`, `runner`, `graphs`), each
citing vLLM's function; `resolve` puts them in vLLM's order. Release differences are asked by name
(`Release.has`).
"""

from __future__ import annotations

from vllm_capacity.engine_defaults.resolve import resolve_engine

__all__ = ["resolve_engine"]
