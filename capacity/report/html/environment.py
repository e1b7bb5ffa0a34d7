"""Jinja2 with autoescape, and the filters that write numbers.

Every figure becomes `<data value="...">`: people read GiB, programs (and tests) the value itself. Imported when a page is
made and at no other time.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from vllm_capacity._version import __version__
from vllm_capacity.units import GIB, MIB

TEMPLATES = Path(__file__).parent / "templates"
HATCHES = {"//": "h-up", "\\\\": "h-down", "xx": "h-cross", "..": "h-dots", "++": "h-grid"}
"""matplotlib's hatch codes -> ids of the patterns in parts.html.j2."""


@cache
def environment() -> Environment:
    """Shared by all pages; templates are compiled once."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"gib": gib, "delta": delta, "count": count, "exact": exact, "value": value,
                     "percent": percent, "kilowatts": kilowatts}  # fmt: skip
    made.globals |= {"tool_version": __version__, "HATCHES": HATCHES}
    return made


def _data(raw: float, text: str) -> Markup:
    return Markup('<data value="{}">{}</data>').format(raw, text)


def gib(n_bytes: int, digits: int = 2) -> Markup:
    """GiB, or MiB where it is little."""
    if 0 < abs(n_bytes) < GIB / 10:
        return _data(n_bytes, f"{n_bytes / MIB:,.1f} MiB" if abs(n_bytes) >= MIB / 10 else f"{n_bytes:,} B")
    return _data(n_bytes, f"{n_bytes / GIB:,.{digits}f} GiB".replace("-", "−") if n_bytes else "0")


def delta(n_bytes: int) -> Markup:
    """A signed change in GiB."""
    return _data(n_bytes, f"{n_bytes / GIB:+,.2f} GiB".replace("-", "−"))


def count(number: int | float, digits: int = 0, sign: bool = False) -> Markup:
    """A number with thousands separators."""
    text = f"{number:{'+' if sign else ''},.{digits}f}"
    return _data(number, text.replace("-", "−"))


def exact(n_bytes: int) -> Markup:
    """All digits."""
    return _data(n_bytes, f"{n_bytes:,} B")


def percent(share: float) -> Markup:
    """A signed share."""
    return _data(share, f"{share:+.0%}".replace("-", "−"))


def kilowatts(watts: int) -> Markup:
    return _data(watts, f"{watts / 1000:.1f}")


def value(raw: Any) -> Markup:
    """A setting as vLLM writes it."""
    return _data(raw, f"{raw:g}") if isinstance(raw, float) else Markup("{}").format(raw)
