"""Draws docs/pictures/imports.svg: which package imports which, layer by layer, read from the source by AST.

`LAYERS` is the rule: a package imports its own layer and those before it, never a later one. Imports inside functions and
under TYPE_CHECKING count like any other. tests/docs/test_imports.py holds the tree to it and the picture to the tree;
`python tools/write_docs.py` draws it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from svg import Svg

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "vllm_capacity"

LAYERS: dict[str, tuple[str, ...]] = {
    "values": (
        "frozen", "units", "errors", "_version", "vocabulary", "whole_files", "parallel", "device", "engine", "ledger",
    ),
    "releases": ("releases",),
    "inputs": ("inputs",),
    "model": ("architecture",),
    "engine": (
        "latent_rules", "attention_query", "attention_rules", "attention_backends", "engine_defaults", "kv_cache",
    ),
    "rank": ("context", "calibration"),
    "terms": ("weights", "activations", "overheads"),
    "budget": ("budget",),
    "plan": ("answer", "host", "advice", "verdict", "planner"),
    "request": ("request", "api"),
    "uses": ("context_curve", "reproduce", "sizing", "emit", "logs", "diagnosis"),
    "report": ("report",),
    "validate": ("validate",),
    "shell": ("cli", "web"),
}  # fmt: skip
"""Layer -> its packages and modules, first to last."""

OUTSIDE = ("", "validate.__main__")
"""The package itself, which gives out names lazily, and an entry point: both stand above all layers."""


@cache
def modules() -> dict[str, Path]:
    """Every module of both trees: dotted name below the package -> file."""
    found = {}
    for folder, prefix in (("capacity", ()), ("validate", ("validate",))):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = (*prefix, *path.relative_to(ROOT / folder).with_suffix("").parts)
            found[".".join(parts).removesuffix("__init__").removesuffix(".")] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, *, types: bool = True) -> Iterator[str]:
    """Modules of this package that a file imports, below the package's name, wherever the import stands.

    `types=False` leaves out what is imported under TYPE_CHECKING.
    """
    tree = tree_of(path)
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if not types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped |= set(ast.walk(node))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            head, _, rest = name.partition(".")
            if head == PACKAGE:
                yield rest if rest in modules() else rest.rpartition(".")[0]


@cache
def imports_of(path: Path) -> frozenset[str]:
    return frozenset(imported(path))


def unit(module: str) -> str:
    """The package or top-level module that a module belongs to."""
    return module.partition(".")[0]


def edges() -> dict[tuple[str, str], int]:
    """(importing unit, imported unit) -> number of modules that import it."""
    counts: dict[tuple[str, str], int] = {}
    for name, path in modules().items():
        if name in OUTSIDE:
            continue
        for other in {unit(target) for target in imports_of(path)} - {unit(name), ""}:
            counts[unit(name), other] = counts.get((unit(name), other), 0) + 1
    return counts


def layer_of() -> dict[str, int]:
    return {name: index for index, names in enumerate(LAYERS.values()) for name in names}


def units() -> list[str]:
    """Those that exist, in layer order. Raises LookupError for one that is in no layer."""
    present = {unit(name) for name in modules() if name not in OUTSIDE}
    if unplaced := present - layer_of().keys():
        raise LookupError(f"in no layer of tools/import_picture.py: {', '.join(sorted(unplaced))}")
    return [name for names in LAYERS.values() for name in names if name in present]


CELL, LEFT, TOP = 20, 190, 150
BANDS = ("#eef3f8", "#ffffff")


def picture() -> str:
    """A matrix: a row imports the columns that are marked. Marks right of the diagonal stay within one layer's block."""
    names, layers, counts = units(), layer_of(), edges()
    size = len(names) * CELL
    svg = Svg(LEFT + size + 20, TOP + size + 44, "Which package imports which")
    for index, name in enumerate(names):
        x, y = LEFT + index * CELL, TOP + index * CELL
        svg.rect(LEFT, y, size, CELL, BANDS[layers[name] % 2])
        svg.text(LEFT - 8, y + 14, name, anchor="end")
        svg.text(x + 14, TOP - 8, name, rotate=-60)
    for label, members in LAYERS.items():
        inside = [names.index(name) for name in members if name in names]
        if not inside:
            continue
        start, span = inside[0] * CELL, len(inside) * CELL
        svg.rect(LEFT + start, TOP + start, span, span, "#cfdcea")
        svg.text(12, TOP + start + 14, label, colour="#5b7083", weight="bold")
    for index in range(len(names) + 1):
        at = index * CELL
        svg.line(LEFT, TOP + at, LEFT + size, TOP + at, "#dde3ea")
        svg.line(LEFT + at, TOP, LEFT + at, TOP + size, "#dde3ea")
    for (importer, target), _ in sorted(counts.items()):
        row, column = names.index(importer), names.index(target)
        svg.rect(LEFT + column * CELL + 4, TOP + row * CELL + 4, CELL - 8, CELL - 8, "#1f5a93", radius=2)
    svg.text(
        LEFT,
        TOP + size + 26,
        "A row imports the columns that are marked. Shaded blocks are layers: nothing is marked to their right.",
    )
    return svg.document()
