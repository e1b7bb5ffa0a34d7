"""The Python sources of a vLLM wheel, read by AST and never run."""

from __future__ import annotations

import ast
import hashlib
import re
import zipfile
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
SKIPPED_FIELDS = {"kind", "type_comment", "type_params", "ctx"}


class WheelSource:
    """One release: a `.whl` file, or a folder that holds the unpacked `vllm/` and `vllm-X.dist-info/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip = zipfile.ZipFile(path) if path.is_file() else None
        names = (
            self._zip.namelist() if self._zip else [f"{p.name}/METADATA" for p in path.glob("*.dist-info")]
        )
        metadata = [name for name in names if re.fullmatch(r"vllm-[^/]*\.dist-info/METADATA", name)]
        if not metadata:
            raise SystemExit(f"{path}: no vllm wheel and no unpacked one (no vllm-*.dist-info/METADATA)")
        self.metadata = self.read(metadata[0]) or ""
        version = re.search(r"^Version: (\S+)", self.metadata, re.MULTILINE)
        assert version is not None, f"{path}: METADATA without a version"
        self.version = version.group(1)
        self.tree = cache(self._tree)

    def read(self, name: str) -> str | None:
        """Text of a member by its path from the wheel's root; None if the wheel has no such file."""
        if self._zip is not None:
            return self._zip.read(name).decode() if name in self._zip.NameToInfo else None
        file = self.path / name
        return file.read_text() if file.is_file() else None

    def files(self, folder: str) -> list[str]:
        """Python files directly in vllm/`folder`, as `find` names them, sorted."""
        if self._zip is None:
            return sorted(f"{folder}/{path.name}" for path in (self.path / "vllm" / folder).glob("*.py"))
        pattern = re.compile(rf"vllm/({re.escape(folder)}/[^/]*\.py)")
        return sorted(match[1] for name in self._zip.namelist() if (match := pattern.fullmatch(name)))

    def members(self) -> list[str]:
        """Paths of all files of a `.whl`; empty for an unpacked one."""
        return self._zip.namelist() if self._zip else []

    def requirement(self, package: str) -> str | None:
        """What METADATA asks of `package` ('==2.11.0'), without environment marker; None if not named."""
        found = re.search(rf"^Requires-Dist: {re.escape(package)}\s*([^;\n]*)", self.metadata, re.MULTILINE)
        return found.group(1).strip() if found else None

    def _tree(self, file: str) -> ast.Module | None:
        text = self.read(f"vllm/{file}")
        return None if text is None else without_docstrings(ast.parse(text))

    def find(self, file: str, dotted: str | None = None) -> ast.AST | None:
        """The class, function, assignment or dict entry `dotted` of vllm/`file`; without it, the module."""
        node: ast.AST | None = self.tree(file)
        for name in dotted.split(".") if dotted else ():
            if node is None:
                return None
            node = next((child for key, child in children(node) if key == name), None)
        return node


def children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Named things directly inside `node`, those under `if`, `try` and `with` too, and entries of a dict."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        if isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, value
        return
    for statement in statements(node):
        if isinstance(statement, Named):
            yield statement.name, statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield target.id, statement


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    for field in ("body", "orelse", "finalbody"):
        for statement in getattr(node, field, ()):
            yield statement
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from statements(statement)


def without_docstrings(tree: ast.Module) -> ast.Module:
    """Drops every statement that is only a string: docstrings, and those under fields of config classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | Named):
            kept = [item for item in node.body if not (isinstance(item, ast.Expr) and _is_string(item.value))]
            node.body = kept or [ast.Pass()]
    return tree


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@lru_cache(maxsize=2000)
def text_of(node: ast.AST) -> str:
    """Source of a node with layout, comments and docstrings gone."""
    return ast.unparse(node)


def digest(node: ast.AST | None) -> str:
    """Hash of what a node means: layout, comments, docstrings and the parsing Python make no difference."""
    if node is None:
        return "absent"
    return hashlib.sha256(repr(_canonical(node)).encode()).hexdigest()[:12]


def _canonical(value: object) -> object:
    if isinstance(value, ast.AST):
        fields = [(name, item) for name, item in ast.iter_fields(value) if name not in SKIPPED_FIELDS]
        return type(value).__name__, [
            (name, _canonical(item)) for name, item in fields if item not in (None, [])
        ]
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return repr(value)


def find_wheels(paths: list[Path]) -> list[WheelSource]:
    """Wheels named directly, or one level down in a folder; oldest first."""
    found: list[WheelSource] = []
    for path in paths:
        if path.is_file() or any(path.glob("vllm-*.dist-info")):
            found.append(WheelSource(path))
            continue
        inner = [p for p in sorted(path.iterdir()) if p.name.startswith("vllm") and p.suffix == ".whl"]
        inner += [p for p in sorted(path.iterdir()) if p.is_dir() and any(p.glob("vllm-*.dist-info"))]
        found += [WheelSource(p) for p in inner]
    if not found:
        raise SystemExit(f"no vllm wheels in {', '.join(map(str, paths))}")
    return sorted(found, key=lambda wheel: [int(part) for part in re.findall(r"\d+", wheel.version)[:3]])
