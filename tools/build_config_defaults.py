"""Writes `capacity/inputs/config_defaults.json`: what a config class fills in where config.json is silent.

Needs `transformers` (no torch): run it in an environment of its own. vLLM's own config classes are read from
an unpacked wheel by AST, never imported.

    python tools/build_config_defaults.py --vllm PATH/TO/site-packages/vllm

Only constants are taken; what a class computes from other keys (`head_dim`, `layer_types`) is the business of
the model families. One line per model type, so that a reader parses one line.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

from config_keys import irrelevant

OUTPUT = Path(__file__).parent.parent / "capacity" / "inputs" / "config_defaults.json"
BASE = {"architectures", "dtype", "torch_dtype", "_rope_parameters", "model_type"}


def constant(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= 16 and all(constant(v) for v in value)
    return isinstance(value, (bool, int, float, str)) and value == value and abs(hash(value)) is not None


def transformers_classes() -> dict[str, dict[str, Any]]:
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    table: dict[str, dict[str, Any]] = {}
    for model_type in sorted(CONFIG_MAPPING_NAMES):
        cls = CONFIG_MAPPING[model_type]
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            default = field.default
            if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if field.name not in BASE and not irrelevant(field.name) and constant(default):
                values[field.name] = default
        model = MODEL_MAPPING_NAMES.get(model_type)
        parts = {
            name: sub.model_type
            for name, sub in (getattr(cls, "sub_configs", None) or {}).items()
            if getattr(sub, "model_type", "")
        }
        synonyms = {k: v for k, v in cls.attribute_map.items() if not irrelevant(k) and isinstance(v, str)}
        table[model_type] = entry(
            values, synonyms, parts, model[0] if isinstance(model, (list, tuple)) else model
        )
    return table


def entry(
    values: dict[str, Any], synonyms: dict[str, str], parts: dict[str, str], architecture: str | None
) -> dict[str, Any]:
    result: dict[str, Any] = {"values": values}
    if synonyms:
        result["synonyms"] = synonyms
    if parts:
        result["parts"] = parts
    if architecture:
        result["architecture"] = architecture
    return result


def vllm_classes(vllm: Path) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Model types that vLLM gives a class of its own (`_CONFIG_REGISTRY`), and those of parts of such
    classes.

    The latter count only where transformers does not know the type (vLLM's RWConfig calls itself falcon, but
    reads only RefinedWeb).
    """
    registry: dict[str, str] = {}
    tree = ast.parse((vllm / "transformers_utils" / "config.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "_CONFIG_REGISTRY":
            assert isinstance(node.value, ast.Call)
            for keyword in node.value.keywords:
                if keyword.arg is None:
                    registry.update(ast.literal_eval(keyword.value))
                else:
                    registry[keyword.arg] = ast.literal_eval(keyword.value)
    classes: dict[str, ast.ClassDef] = {}
    for path in sorted((vllm / "transformers_utils" / "configs").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = node
    table = {}
    for model_type, name in registry.items():
        if name in classes:
            table[model_type] = read_class(classes[name], classes)
    parts = {}
    for node in classes.values():
        own = class_constant(node, "model_type")
        if isinstance(own, str) and own and own not in table:
            parts[own] = read_class(node, classes)
    return table, parts


def class_constant(node: ast.ClassDef, name: str) -> Any:
    for statement in node.body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            value = statement.value  # type: ignore[union-attr]
            try:
                return ast.literal_eval(value) if value is not None else None
            except ValueError:
                return None
    return None


def read_class(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            args = statement.args
            named = [*args.posonlyargs, *args.args]
            pairs = [
                *zip(named[len(named) - len(args.defaults) :], args.defaults, strict=True),
                *((a, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None),
            ]
            for arg, default in pairs:
                try:
                    value = ast.literal_eval(default)
                except ValueError:
                    continue
                if arg.arg not in BASE and not irrelevant(arg.arg) and constant(value):
                    values[arg.arg] = value
    synonyms = class_constant(node, "attribute_map") or {}
    parts = {}
    for statement in node.body:
        if (
            isinstance(statement, (ast.Assign, ast.AnnAssign))
            and isinstance(statement.value, ast.Dict)
            and any(
                isinstance(t, ast.Name) and t.id == "sub_configs"
                for t in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
            )
        ):
            for key, value in zip(statement.value.keys, statement.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Name) and value.id in classes:
                    part = class_constant(classes[value.id], "model_type")
                    if part:
                        parts[key.value] = part
    return entry(values, {k: v for k, v in synonyms.items() if not irrelevant(k)}, parts, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=Path, required=True)
    options = parser.parse_args()
    import transformers

    table = transformers_classes()
    registered, parts = vllm_classes(options.vllm)
    table = {**parts, **table}
    for model_type, own in registered.items():
        if model_type in table:
            own.setdefault("architecture", table[model_type].get("architecture"))
            if not own["architecture"]:
                del own["architecture"]
        table[model_type] = own
    version = (
        next(options.vllm.parent.glob("vllm-*.dist-info"))
        .name.removeprefix("vllm-")
        .removesuffix(".dist-info")
    )
    note = (
        f"transformers {transformers.__version__} and vLLM {version}; made by tools/build_config_defaults.py"
    )
    lines = [f"{json.dumps('source')}: {json.dumps(note)}"]
    lines += [
        f"{json.dumps(key)}: {json.dumps(table[key], separators=(',', ':'), sort_keys=True)}"
        for key in sorted(table)
        if has_text(key, table)
    ]
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(len(lines) - 1, "model types,", OUTPUT.stat().st_size, "bytes")


def has_text(model_type: str, table: dict[str, dict[str, Any]]) -> bool:
    """Types without a vocabulary of their own or in one of their parts run no language model."""
    own = table[model_type]
    names = {*own["values"], *own.get("synonyms", {})}
    return bool(own.get("parts")) or "vocab_size" in names or "hidden_size" in names


if __name__ == "__main__":
    main()
