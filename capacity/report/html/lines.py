"""Lines over context length on two logarithmic axes, in per cent of the width and pixels of the height."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vllm_capacity.answer import Status
from vllm_capacity.frozen import dataclass
from vllm_capacity.report.palette import LINE_COLOURS

LEFT, RIGHT = 9.0, 97.0
TOP, BOTTOM = 30.0, 246.0

MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-4 -4h8v8h-8z",
    "M0 -5.2L5 4h-10z",
    "M0 -5.6L5 0L0 5.6L-5 0z",
    "M0 5.2L5 -4h-10z",
    "M-1.6 -5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
)
"""Circle, square, triangle, diamond, triangle upside down, cross."""
DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4", "4 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: (context length, requests at once, whether it starts)."""

    name: str
    points: tuple[tuple[int, float, Status], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A point as drawn; `shape` is a path around the origin, or empty for one that does not start."""

    x: float
    y: float
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series as drawn."""

    name: str
    colour: str
    dash: str
    marker: str
    polyline: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A reference: horizontal at `y`, or vertical at `x`."""

    text: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]


def tokens_short(length: int) -> str:
    """Context lengths as people write them: 32K, 1M; in full where that is not whole."""
    if length >= 1 << 20 and length % (1 << 20) == 0:
        return f"{length >> 20}M"
    return f"{length >> 10}K" if length % 1024 == 0 else f"{length:,}"


def line_chart(
    series: Sequence[Series],
    *,
    across: Sequence[tuple[float, str]] = (),
    upright: Sequence[tuple[int, str]] = (),
) -> Chart | None:
    """A chart of all points above zero; None where there are none. `across` and `upright` are references (value, text)."""
    drawn = [point for one in series for point in one.points if point[1] > 0]
    if not drawn:
        return None
    x_low, x_high = min(p[0] for p in drawn), max(p[0] for p in drawn)
    values = [p[1] for p in drawn]
    low, high = _round_below(min(values)), _round_above(max(values))
    if low == high:
        low, high = low / 2, high * 2

    def x_of(length: float) -> float:
        if x_low == x_high:
            return (LEFT + RIGHT) / 2
        share = math.log(length / x_low) / math.log(x_high / x_low)
        return round(LEFT + share * (RIGHT - LEFT), 3)

    def y_of(value: float) -> float:
        share = math.log(value / low) / math.log(high / low)
        return round(BOTTOM - share * (BOTTOM - TOP), 2)

    lines = tuple(_line(number, one, x_of, y_of) for number, one in enumerate(series))
    return Chart(
        lines=lines,
        x_ticks=tuple(Tick(at=x_of(length), text=tokens_short(length)) for length in _lengths(drawn)),
        y_ticks=tuple(Tick(at=y_of(value), text=f"{value:,g}") for value in _ticks(low, high)),
        marks=(
            *(Mark(text=text, y=y_of(value)) for value, text in across if low <= value <= high),
            *(Mark(text=text, x=x_of(length)) for length, text in upright if x_low <= length <= x_high),
        ),
    )


_STEPS = tuple(digit * 10.0**power for power in range(-6, 10) for digit in (1, 2, 5))


def _round_below(value: float) -> float:
    return max((step for step in _STEPS if step <= value * (1 + 1e-9)), default=_STEPS[0])


def _round_above(value: float) -> float:
    return min((step for step in _STEPS if step >= value * (1 - 1e-9)), default=_STEPS[-1])


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten; over two of them or less also 2 and 5 times these."""
    inside = [step for step in _STEPS if low * (1 - 1e-9) <= step <= high * (1 + 1e-9)]
    if high / low <= 100:
        return inside
    return [step for step in inside if math.isclose(10 ** round(math.log10(step)), step)]


def _lengths(drawn: Sequence[tuple[int, float, Status]]) -> list[int]:
    """Powers of two where there are some: other lengths would stand on top of them."""
    lengths = sorted({p[0] for p in drawn})
    powers = [length for length in lengths if length & (length - 1) == 0]
    return powers if len(powers) > 1 else lengths


def _line(number: int, one: Series, x_of, y_of) -> Line:  # type: ignore[no-untyped-def]
    points = [(x_of(length), y_of(value), status) for length, value, status in one.points if value > 0]
    return Line(
        name=one.name,
        colour=LINE_COLOURS[number % len(LINE_COLOURS)],
        dash=DASHES[number % len(DASHES)],
        marker=MARKERS[number % len(MARKERS)],
        polyline=" ".join(f"{x:g},{y:g}" for x, y, _ in points),
        dots=tuple(Dot(x=x, y=y, status=status) for x, y, status in points),
    )
