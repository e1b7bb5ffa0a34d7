"""Data flows one way: a lower layer imports no upper one, no module imports itself in a circle, heavy things stay out."""

from __future__ import annotations

import ast
import re
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import import_picture  # noqa: E402


def test_every_package_has_a_layer_and_every_layer_exists() -> None:
    present = {
        import_picture.unit(name) for name in import_picture.modules() if name not in import_picture.OUTSIDE
    }
    assert present == import_picture.layer_of().keys(), "tools/import_picture.py: LAYERS"


def test_no_lower_layer_imports_an_upper_one() -> None:
    """Wherever the import stands: at the top, inside a function, or for types only."""
    layer = import_picture.layer_of()
    upward = [f"{low} imports {high}" for low, high in import_picture.edges() if layer[low] < layer[high]]
    assert not upward


def test_no_module_imports_itself_in_a_circle() -> None:
    """Imports for types only left out: they are not there at run time."""
    graph = {
        name: {target for target in import_picture.imported(path, types=False) if target not in {name, ""}}
        for name, path in import_picture.modules().items()
        if name
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_an_upward_import_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "units.py"
    path.write_text(
        "def late():\n    from vllm_capacity.planner import make_plan\n    import vllm_capacity.cli.plan\n"
    )
    assert sorted(import_picture.imported(path)) == ["cli.plan", "planner"]


def test_only_the_budget_puts_terms_into_accounts() -> None:
    """Nobody else asks `account_of` but the dry-run, which makes a budget of terms of its own."""
    asking = [
        name
        for name, path in import_picture.modules().items()
        for node in ast.walk(import_picture.tree_of(path))
        if isinstance(node, ast.ImportFrom) and any(alias.name == "account_of" for alias in node.names)
    ]
    assert set(asking) == {"validate.dry_run.as_plan", "validate.dry_run.terms"}


def test_the_page_says_where_every_package_is() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    missing = [
        name for name in import_picture.units() if not any(f"{name}{end}" in page for end in ("/", ".py"))
    ]
    assert not missing, "docs/architecture.md: Where things are"


def test_the_page_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"`((?:capacity|validate|tools|tests)/[\w/.]+)`", page)
    assert names
    assert not [name for name in names if not (ROOT / name).exists()]
