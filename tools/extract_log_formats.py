"""vLLM's own log formats, read from its wheels by AST: the facts that hold `capacity/logs` to what vLLM
prints.

    python tools/extract_log_formats.py WHEEL_OR_UNPACKED_FOLDER... --write tests/data/logs/formats.json
    python tools/extract_log_formats.py FOLDER --others      # lines about memory that no row of LINES names

A format is kept as a `str.format` template with one numbered field per value, with the expression vLLM
prints there, and with the first and last release whose sources hold it (of those that were read).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wheel_source import WheelSource

LINES: dict[str, str] = {
    # -- who runs what
    "engine_config": r"^Initializing a V1 LLM engine \(v",
    "non_default_args": r"^non-default args: ",
    "api_version": r"vLLM API server version|vLLM .*server version",
    "model_runner_v2": r"^Using V2 Model Runner$",
    "attention_backend": r"^Using \{\}(?: attention)? backend(?! for )(?! \(selected)",
    "flash_attention_version": r"^Using FlashAttention version ",
    "max_model_len": r"^Using max model len ",
    "chunked_prefill": r"^Chunked prefill is enabled with max_num_batched_tokens",
    # -- loading
    "loading_model": r"^Starting to load model ",
    "model_loading": r"^Model loading took ",
    "load_peak": r"^Peak GPU memory after loading weights:",
    "load_oom": r"not enough GPU memory|Failed to load model",
    "checkpoint": r"Checkpoint size: ",
    # -- profiling
    "snapshot": r"torch_peak=\{",
    "requested": r"worker requested memory:",
    "free_requested": r"^Initial free memory: .*Requested memory",
    "free_after_profiling": r"^Free memory after profiling:",
    "profile_result": r"^Memory profiling takes ",
    "available_kv": r"^Available KV cache memory:",
    "kv_reserved": r"^Initial free memory .*reserved .* as specified by kv_cache_memory_bytes",
    "profile_error": r"^Error in memory profiling",
    "encoder_cache": r"^Encoder cache will be initialized with a budget",
    "encoder_skipped": r"^Skipping memory profiling for multimodal encoder",
    "mm_ipc": r"of GPU memory for frontend multimodal decoding",
    "graph_profile": r"^Profiling CUDA graph memory:",
    "graph_estimate": r"^Estimated CUDA graph memory:",
    "graph_samples": r"^Estimated \{\} CUDA graph memory: .*first-capture",
    "encoder_graph_estimate": r"^Estimated encoder CUDA graph memory:",
    "startup_plan": r"^Applying persisted startup plan",
    "graph_equivalent": r"^CUDA graph memory profiling is (?:enabled|disabled)|^In v0.*CUDA graph memory "
    r"profiling",
    # -- KV cache
    "capacity": r"KV cache size: ",
    "concurrency": r"^Maximum concurrency for ",
    "blocks_override": r"^Overriding num_gpu_blocks=",
    "num_gpu_blocks": r"num_gpu_blocks is: ",
    "padding_layers": r"^Add .* padding layers, may waste",
    "block_size": r"^Setting (?:kv cache|attention) block size to ",
    "mamba_padding": r"^Padding mamba page size",
    "auto_fit": r"^Auto-fit max_model_len: (?!attention-free)",
    "hybrid_disabled": r"Turning off hybrid kv cache manager|hybrid KV cache manager .*disabled",
    # -- graphs, summary
    "graph_capture": r"^Graph capturing finished in ",
    "graph_pool": r"^CUDA graph pool memory:",
    "summary": r"^Free memory on device \(",
    # -- refusals and failures
    "refused_free": r"^Free memory on device .*less than desired GPU memory",
    "refused_no_blocks": r"^No available memory for the cache blocks",
    "refused_request": r"^To serve at least one request",
    "refused_mamba": r"exceeds available Mamba cache",
    "graphs_capped_mamba": r"Capping cudagraph capture sizes .*Mamba|Mamba cache blocks \(",
    "refused_mm_ipc": r"^frontend multimodal GPU decoding reserves",
    "refused_shm": r"^Insufficient space in ",
    "oom_sampler": r"out of memory occurred when warming up sampler",
    "oom_pooler": r"out of memory occurred when warming up pooler",
    "workspace_resized": r"^\[WORKSPACE DEBUG\] Resized workspace",
    "workspace_locked": r"^Workspace is locked but allocation",
    "sleep": r"^Sleep mode freed ",
    # -- running
    "kv_usage": r"KV cache usage: ",
    "preemptions": r"^Preemptions: ",
}
"""Name of a line -> pattern on its text, fields as {}."""

MEMORY = re.compile(r"GiB|MiB|\bGB\b|\bMB\b|out of memory|[Pp]reempt|KV cache|cache blocks", re.ASCII)
OTHER_LINES = re.compile(
    r"non-default args|LLM engine|server version|attention backend|max model len|Starting to "
    r"load|FlashAttention version|"
    r"Model Runner|Workspace|max_num_batched_tokens|graph|KV cache|block size"
)
"""A file without any of these or of MEMORY holds none of LINES."""
FOLDERS = (
    "v1",
    "worker",
    "executor",
    "engine",
    "core",
    "utils",
    "config",
    "platforms",
    "entrypoints",
    "compilation",
    "model_executor",
    "device_allocator",
    "lora",
    "multimodal",
    "attention",
    "distributed",
)
METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
_PRINTF = re.compile(r"%(?P<flags>[#0\- +]*)(?P<width>\d*)(?P<precision>\.\d+)?(?P<type>[sdfrgi%])")


@dataclass(frozen=True)
class Format:
    """One format string of one place; `specs` are Python format specs, `values` the printed expressions."""

    template: str
    values: tuple[str, ...]
    level: str
    file: str
    function: str


@dataclass
class Text:
    """A string expression as template pieces."""

    template: str = ""
    values: list[str] = field(default_factory=list)

    def literal(self, text: str) -> None:
        self.template += text.replace("{", "{{").replace("}", "}}")

    def value(self, expression: str, spec: str = "") -> None:
        self.template += "{" + str(len(self.values)) + (":" + spec if spec else "") + "}"
        self.values.append(expression)

    def append(self, other: Text) -> None:
        first = len(self.values)
        self.template += re.sub(r"(?<!\{)\{(\d+)", lambda m: "{" + str(int(m[1]) + first), other.template)
        self.values += other.values


def formats_of(source: WheelSource) -> Iterator[Format]:
    """All strings that a release logs, raises or gives as a memory class's repr."""
    for path, text in python_files(source):
        if not MEMORY.search(text) and not OTHER_LINES.search(text):
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        yield from _of_tree(tree, path)


def python_files(source: WheelSource) -> Iterator[tuple[str, str]]:
    """(path below vllm/, text) of the Python files of FOLDERS and of vllm/ itself."""
    if source.path.is_dir():
        root = source.path / "vllm"
        for file in sorted(root.rglob("*.py")):
            name = file.relative_to(root).as_posix()
            if "/" not in name or name.split("/")[0] in FOLDERS:
                yield name, file.read_text(encoding="utf-8", errors="replace")
        return
    for member in sorted(source.members()):
        name = member.removeprefix("vllm/")
        if member.startswith("vllm/") and member.endswith(".py") and name.split("/")[0] in FOLDERS:
            yield name, source.read(member) or ""


def _of_tree(tree: ast.Module, path: str) -> Iterator[Format]:
    for scope, name in _scopes(tree):
        assigned = {
            target.id: node.value
            for node in _own_nodes(scope)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in _own_nodes(scope):
            for level, expression, arguments in _emitted(node, name):
                text = _text(expression, assigned, arguments)
                if text is not None:
                    yield Format(text.template, tuple(text.values), level, path, name)


def _scopes(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[ast.AST, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                if not isinstance(child, ast.ClassDef):
                    yield child, name
                yield from walk(child, name)
            else:
                yield from walk(child, prefix)

    yield tree, ""
    yield from walk(tree, "")


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        yield child
        yield from _own_nodes(child)


def _emitted(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.expr, list[ast.expr] | None]]:
    """(level, the string, printf arguments) of a logging call, a raise, a repr or a part of a line."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        method = node.func.attr.removesuffix("_once")
        if (
            method in METHODS
            and isinstance(node.func.value, ast.Name)
            and "log" in node.func.value.id.lower()
        ):
            yield method, node.args[0], list(node.args[1:])
        elif isinstance(node.func.value, ast.Name) and node.func.value.id == "log_parts":
            parts = node.args[0].elts if isinstance(node.args[0], ast.List) else [node.args[0]]
            for part in parts:
                yield "part", part, None
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        if node.func.id in ("log_fn", "_report_kv_cache_config", "log_once"):
            yield "info", node.args[0], list(node.args[1:])
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        yield "raise", node.exc.args[0], None
    elif isinstance(node, ast.Assert) and node.msg is not None:
        yield "raise", node.msg, None
    elif isinstance(node, ast.Return) and node.value is not None and scope.endswith(("__repr__", "__str__")):
        yield "repr", node.value, None


def _text(
    node: ast.expr, assigned: dict[str, ast.expr], arguments: list[ast.expr] | None, depth: int = 0
) -> Text | None:
    if depth > 8:
        return None
    if isinstance(node, ast.Name):
        value = assigned.get(node.id)
        return None if value is None else _text(value, assigned, arguments, depth + 1)
    text = Text()
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if arguments:
            return _printf(node.value, arguments, assigned)
        if arguments is None and "%" in node.value and _PRINTF.search(node.value):
            return _printf(node.value, [], {})  # a part of a line: its arguments stand elsewhere
        text.literal(node.value)
        return text
    if isinstance(node, ast.JoinedStr):
        for piece in node.values:
            if isinstance(piece, ast.Constant):
                text.literal(str(piece.value))
            elif isinstance(piece, ast.FormattedValue):
                inner = assigned.get(piece.value.id) if isinstance(piece.value, ast.Name) else None
                nested = _text(inner, assigned, None, depth + 1) if isinstance(inner, ast.JoinedStr) else None
                if nested is not None:
                    text.append(nested)
                    continue
                spec = _text(piece.format_spec, assigned, None, depth + 1) if piece.format_spec else None
                text.value(ast.unparse(piece.value), spec.template if spec and not spec.values else "")
        return text
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left = _text(node.left, assigned, arguments, depth + 1)
        right = _text(node.right, assigned, arguments, depth + 1)
        if left is None or right is None:
            return None
        left.append(right)
        return left
    return None


def _printf(template: str, arguments: list[ast.expr], assigned: dict[str, ast.expr]) -> Text:
    text, position, taken = Text(), 0, 0
    for match in _PRINTF.finditer(template):
        text.literal(template[position : match.start()])
        position = match.end()
        if match["type"] == "%":
            text.literal("%")
            continue
        kind = {"i": "d", "r": "", "s": ""}.get(match["type"], match["type"])
        argument = arguments[taken] if taken < len(arguments) else None
        taken += 1
        if isinstance(argument, ast.Name) and isinstance(assigned.get(argument.id), ast.JoinedStr):
            argument = assigned[argument.id]
        if isinstance(argument, ast.JoinedStr) and (nested := _text(argument, assigned, None)) is not None:
            text.append(nested)
            continue
        expression = ast.unparse(argument) if argument is not None else "?"
        text.value(
            expression, (match["flags"] + match["width"] + (match["precision"] or "") + kind) if kind else ""
        )
    text.literal(template[position:])
    return text


def name_of(template: str) -> str | None:
    """The row of LINES that a template belongs to."""
    plain = re.sub(r"(?<!\{)\{\d+[^}]*\}", "{}", template)
    return next((name for name, pattern in LINES.items() if re.search(pattern, plain)), None)


def collect(sources: list[WheelSource]) -> dict[str, Any]:
    """All formats of LINES with the releases that have them, oldest release first."""
    releases = [source.version for source in sources]
    rows: dict[str, dict[tuple[str, str, tuple[str, ...]], dict[str, Any]]] = {name: {} for name in LINES}
    for source in sources:
        for item in formats_of(source):
            name = name_of(item.template)
            if name is None:
                continue
            row = rows[name].setdefault(
                (item.template, item.level, item.values if item.level != "part" else ()),
                {
                    "level": item.level,
                    "file": item.file,
                    "function": item.function,
                    "template": item.template,
                    "values": list(item.values),
                    "releases": [],
                },
            )
            if source.version not in row["releases"]:
                row["releases"].append(source.version)
    return {
        "origin": "format strings in the sources of the vLLM wheels on PyPI, read by "
        "tools/extract_log_formats.py",
        "releases": releases,
        "lines": {name: list(found.values()) for name, found in rows.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--others", action="store_true", help="print lines about memory that no row names")
    options = parser.parse_args()
    sources = sorted(
        (WheelSource(path) for path in options.wheels),
        key=lambda s: [int(part) for part in re.findall(r"\d+", s.version)],
    )
    if options.others:
        seen = set()
        for source in sources:
            for item in formats_of(source):
                if (
                    name_of(item.template) is None
                    and MEMORY.search(item.template)
                    and item.template not in seen
                ):
                    seen.add(item.template)
                    print(
                        f"{source.version} {item.level:8} {item.file}:{item.function}: {item.template!r:.240}"
                    )
        return 0
    facts = collect(sources)
    missing = [name for name, rows in facts["lines"].items() if not rows]
    if missing:
        print(f"no format found for: {', '.join(missing)}", file=sys.stderr)
    text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
