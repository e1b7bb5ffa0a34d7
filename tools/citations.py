"""Which functions of vLLM our sources cite: found by reading both, so that no list has to be kept by hand.

A module cites a file of vLLM by its path ("v1/worker/utils.py", the beginning may be left out), and a function, class or
constant of that file by its name anywhere in the module. A file none of whose names occurs is cited as a whole.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from wheel_source import Named, WheelSource, statements

ROOT = Path(__file__).resolve().parent.parent
TREES = ("capacity", "validate")
PATH = re.compile(r"(?<![\w/.])(?:vllm/)?((?:\w+/)+\w+\.py)\b")
IDENTIFIER = re.compile(r"\w{4,}")
ARCHITECTURE = re.compile(
    r"models/.*: \w+(ForCausalLM|ForConditionalGeneration|ForSequenceClassification|Model)$"
)
"""A model's class stands for all the layers that its file builds."""


def cited_paths(text: str) -> set[str]:
    """Paths of Python files that a module names, without `vllm/`."""
    return set(PATH.findall(text))


def sources() -> dict[str, str]:
    """Module -> its text, for everything that may cite vLLM."""
    paths = (path for tree in TREES for path in sorted((ROOT / tree).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def resolve(path: str, files: Iterable[str]) -> str | None:
    """The file of vLLM that a path stands for; None where it is none, or where several end so."""
    found = [file for file in files if file == path or file.endswith(f"/{path}")]
    return path if path in found else found[0] if len(found) == 1 else None


def python_files(wheel: WheelSource) -> list[str]:
    """Every Python file of a wheel, without `vllm/`."""
    if wheel.members():
        names = wheel.members()
    else:
        names = [path.relative_to(wheel.path).as_posix() for path in (wheel.path / "vllm").rglob("*.py")]
    return sorted(
        name.removeprefix("vllm/") for name in names if name.startswith("vllm/") and name.endswith(".py")
    )


def telling(name: str) -> bool:
    """Whether a name says where it comes from: `forward` or `config` may mean anything."""
    return len(name) >= 5 and ("_" in name.strip("_") or any(c.isupper() for c in name))


def definitions(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """(name, names of its methods) of what a module defines at its top level."""
    for statement in statements(tree):
        if isinstance(statement, Named):
            inner = [s.name for s in statements(statement) if isinstance(s, Named)]
            yield statement.name, inner if isinstance(statement, ast.ClassDef) else []
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from ((target.id, []) for target in targets if isinstance(target, ast.Name))


def cited_names(tree: ast.AST, words: set[str]) -> set[str]:
    """What of a module is named: methods where they are named, else the whole class; "" where nothing is."""
    found: set[str] = set()
    for name, methods in definitions(tree):
        if methods:
            named = {f"{name}.{method}" for method in methods if method in words and telling(method)}
            if name in words and "__init__" in words and "__init__" in methods:
                named.add(f"{name}.__init__")
            found |= named if named else {name} & words
        elif name in words and telling(name):
            found.add(name)
    return found or {""}


def citations(
    wheel: WheelSource, modules: Mapping[str, str] | None = None
) -> dict[tuple[str, str], set[str]]:
    """(file of vLLM, name in it or "") -> the modules of ours that cite it."""
    files = python_files(wheel)
    by_file: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, text in (sources() if modules is None else modules).items():
        words = set(IDENTIFIER.findall(text))
        for path in cited_paths(text):
            file = resolve(path, files)
            tree = wheel.tree(file) if file else None
            if file and tree is not None:
                for name in cited_names(tree, words):
                    by_file[file][name].add(module)
    found: dict[tuple[str, str], set[str]] = {}
    for file, names in by_file.items():
        if not any(names) or any(ARCHITECTURE.search(f"{file}: {name}") for name in names):
            found[file, ""] = set().union(*names.values())
        else:
            found |= {(file, name): citing for name, citing in names.items() if name}
    return found
