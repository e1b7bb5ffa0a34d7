"""The house stays clean: no long module without a reason, nothing that nobody uses, nothing twice."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 500
LONG: dict[str, str] = {
    "capacity/logs/formats.py": "one table: every line about memory that vLLM prints, by release",
}
"""Modules of more than LONGEST lines, each with its reason."""

UNUSED: dict[str, str] = {
    "__getattr__": "asked by Python itself",
    "list_commands": "asked by click",
    "format_commands": "asked by click",
    "evaluate": "what a term's formula gives, for those who check it; `term` does the same without the call",
}
"""Names that nothing in the package, the tools or the templates says, each with its reason."""

SIDES = ("capacity", "validate")


@cache
def sources() -> dict[str, str]:
    """Path -> text of what is installed."""
    return {
        file.relative_to(ROOT).as_posix(): file.read_text()
        for side in SIDES
        for file in sorted((ROOT / side).rglob("*.py"))
    }


def on_our_side() -> Iterator[tuple[str, str]]:
    """Without the code that runs inside of vLLM, which vLLM calls by names of its own."""
    return ((name, text) for name, text in sources().items() if "engine_side/" not in name)


def test_no_module_is_long_without_a_reason() -> None:
    long = {name: text.count("\n") for name, text in sources().items() if text.count("\n") > LONGEST}
    assert {name: lines for name, lines in long.items() if name not in LONG} == {}
    assert [name for name in LONG if name not in long] == [], "these need no reason any more"


@cache
def words() -> Counter[str]:
    """How often each name is said in the package, its tools and its templates (not in tests)."""
    said: Counter[str] = Counter()
    others = [p for top in ("tools", "benchmarks", "docs") for p in sorted((ROOT / top).rglob("*.py"))]
    templates = [p for p in sorted((ROOT / "capacity").rglob("*")) if p.suffix in (".j2", ".html", ".js")]
    for text in (*sources().values(), *(p.read_text() for p in (*others, *templates))):
        said.update(re.findall(r"\w+", text))
    for page in sorted((ROOT / "docs").glob("*.md")):
        said.update(re.findall(r"\w+", page.read_text()))
    return said


def test_every_function_and_class_is_used() -> None:
    """A definition is one mention; decorated ones (commands, routes, validators) are called by their decorator's owner."""
    dead = []
    for name, text in on_our_side():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            called_by_others = any(not _is_plain(d) for d in node.decorator_list) or re.fullmatch(
                r"__\w+__", node.name
            )
            if words()[node.name] <= 1 and not called_by_others and node.name not in UNUSED:
                dead.append(f"{name}:{node.lineno} {node.name}")
    assert dead == []


def _is_plain(decorator: ast.expr) -> bool:
    """Decorators that leave it to somebody else to use the name."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    last = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
    return last in ("property", "cached_property", "cache", "lru_cache", "staticmethod", "classmethod", "dataclass",
                    "contextmanager", "override")  # fmt: skip


def _body(node: ast.FunctionDef) -> str:
    """The statements without the docstring, however they are formatted."""
    statements = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return "\n".join(ast.unparse(statement) for statement in statements)


def test_no_logic_stands_twice() -> None:
    """Two functions of five lines or more that do the same in the same words: one of them can go."""
    seen: dict[str, str] = {}
    twice = []
    for name, text in on_our_side():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                body = _body(node)
                if body.count("\n") < 4:
                    continue
                where = f"{name}:{node.lineno} {node.name}"
                if body in seen:
                    twice.append((seen[body], where))
                seen.setdefault(body, where)
    assert twice == []
