"""The few SVG elements that the pictures of the docs are made of. Coordinates are rounded, so that text compares."""

from __future__ import annotations

from html import escape

FONT = "system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
INK = "#1d2b36"


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Svg:
    """One picture on a light ground of its own, so that it reads in a dark page too."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.body: list[str] = []

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, *, radius: float = 0, stroke: str = "",
        title: str = "",
    ) -> None:  # fmt: skip
        rounding = f' rx="{number(radius)}"' if radius else ""
        border = f' stroke="{stroke}"' if stroke else ""
        shape = (
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
            f'{rounding} fill="{fill}"{border}'
        )
        self.body.append(f"{shape}><title>{escape(title)}</title></rect>" if title else f"{shape}/>")

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str, *, width: float = 1, dash: str = ""
    ) -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.body.append(
            f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" stroke="{stroke}" '
            f'stroke-width="{number(width)}"{dashes}/>'
        )

    def path(self, points: list[tuple[float, float]], stroke: str, *, width: float = 2) -> None:
        joined = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.body.append(
            f'<polyline points="{joined}" fill="none" stroke="{stroke}" stroke-width="{number(width)}"/>'
        )

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "start", size: float = 12, colour: str = INK,
        weight: str = "", rotate: float = 0,
    ) -> None:  # fmt: skip
        more = f' text-anchor="{anchor}"' if anchor != "start" else ""
        more += f' font-weight="{weight}"' if weight else ""
        more += f' transform="rotate({number(rotate)} {number(x)} {number(y)})"' if rotate else ""
        self.body.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}" fill="{colour}"{more}>{escape(words)}</text>'
        )

    def document(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(self.width)} {number(self.height)}" '
            f'width="{number(self.width)}" height="{number(self.height)}" role="img" font-family="{FONT}">'
        )
        ground = f'<rect width="{number(self.width)}" height="{number(self.height)}" rx="6" fill="#fbfcfd"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", ground, *self.body, "</svg>"]) + "\n"
