"""Write capacity/inputs/flags/generated.json: every flag of `vllm serve` of every release, read off the
wheels.

    python tools/generate_flags.py WHEELS...          write the table
    python tools/generate_flags.py --check WHEELS...  only say if the table is the wheels', and what is
    unclassified

Flags come from EngineArgs and AsyncEngineArgs (engine/arg_utils.py), the front end's arguments and
make_arg_parser (entrypoints/.../cli_args.py); their kinds from the annotations of the config classes, by the
rules of `_compute_kwargs`.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wheel_source import WheelSource, children, find_wheels, text_of

TABLE = Path(__file__).parent.parent / "capacity" / "inputs" / "flags" / "generated.json"
ARG_UTILS = "engine/arg_utils.py"
CLI_ARGS = tuple(f"entrypoints/{folder}/cli_args.py" for folder in ("openai", "launchers", "common"))

ALIAS_FILES = """
    renderers/chat_utils.py renderers/__init__.py entrypoints/chat_utils.py
    model_executor/layers/quantization/__init__.py v1/attention/backends/registry.py
    tool_parsers/tool_strict_level.py entrypoints/anthropic/protocol.py
    entrypoints/openai/models/protocol.py model_executor/model_loader/__init__.py utils/__init__.py
    sampling_params.py logprobs.py transformers_utils/config.py tokenizers/registry.py
    model_executor/layers/mamba/mamba_utils.py v1/attention/backend.py
    v1/core/sched/request_queue.py renderers/params.py platforms/interface.py
    multimodal/processing/inputs.py v1/attention/selector.py
""".split()  # noqa: SIM905 (a list of paths reads better in lines)
"""Modules outside config/ whose type aliases annotations name."""


@dataclass(slots=True)
class Names:
    """Classes and type aliases that annotations of this wheel may name."""

    wheel: WheelSource
    files: tuple[str, ...]
    found: dict[str, ast.AST | None] = field(default_factory=dict)

    def get(self, name: str) -> ast.AST | None:
        if name not in self.found:
            hits = [node for file in self.files if (node := self.wheel.find(file, name)) is not None]
            # Some modules only stand in for a class of another one (`ModelConfig = Any`).
            classes = [node for node in hits if isinstance(node, ast.ClassDef)]
            self.found[name] = next(iter(classes + hits), None)
        return self.found[name]


def config_names(wheel: WheelSource) -> Names:
    files = wheel.files("config")
    files += [*CLI_ARGS, ARG_UTILS, *ALIAS_FILES]
    return Names(wheel, tuple(file for file in files if wheel.tree(file) is not None))


def parts(annotation: ast.AST | None, names: Names, seen: frozenset[str] = frozenset()) -> Iterator[ast.AST]:
    """Members of a union, with Annotated, Optional, quoted names and aliases taken apart."""
    if annotation is None:
        return
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        yield from parts(annotation.left, names, seen)
        yield from parts(annotation.right, names, seen)
    elif isinstance(annotation, ast.Subscript) and text_of(annotation.value) in (
        "Union",
        "Optional",
        "Annotated",
    ):
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        kind = text_of(annotation.value)
        for member in inner[:1] if kind == "Annotated" else inner:
            yield from parts(member, names, seen)
        if kind == "Optional":
            yield ast.Constant(None)
    elif isinstance(annotation, ast.Subscript) and text_of(annotation.value) in (
        "SkipValidation",
        "InitVar",
        "ClassVar",
    ):
        yield from parts(annotation.slice, names, seen)
    elif isinstance(annotation, ast.Name) and annotation.id not in seen:
        target = names.get(annotation.id)
        alias = target.value if isinstance(target, ast.Assign | ast.AnnAssign) else None
        if alias is not None:
            yield from parts(alias, names, seen | {annotation.id})
        else:
            yield annotation
    else:
        yield annotation


def literal_values(node: ast.Subscript, names: Names) -> Iterator[Any]:
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for member in inner:
        if isinstance(member, ast.Constant):
            yield member.value
        elif isinstance(member, ast.Subscript):
            yield from literal_values(member, names)
        else:
            for part in parts(member, names):
                if isinstance(part, ast.Subscript):
                    yield from literal_values(part, names)


def is_dataclass(node: ast.AST | None) -> bool:
    decorators = node.decorator_list if isinstance(node, ast.ClassDef) else []
    return any(text_of(item).split("(")[0] in ("config", "dataclass") for item in decorators)


def is_dict_subclass(node: ast.AST | None) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        text_of(base).split("[")[0] == "dict" for base in node.bases
    )


def kind_of(name: str, annotation: ast.AST | None, names: Names, human: tuple[str, ...]) -> dict[str, Any]:
    """What argparse is told of a config field: `_compute_kwargs` of engine/arg_utils.py, on annotations."""
    members = list(parts(annotation, names))
    heads = {text_of(m.value) if isinstance(m, ast.Subscript) else text_of(m) for m in members}
    literals = [m for m in members if isinstance(m, ast.Subscript) and text_of(m.value) == "Literal"]
    if any(is_dataclass(names.get(head)) for head in heads):
        return {"kind": "config"}
    if heads == {"bool", "str", "None"}:
        return {"kind": "bool_or_str"}
    if "bool" in heads:
        return {"kind": "bool"}
    if literals:
        choices = [value for node in literals for value in literal_values(node, names)]
        kind = "int" if all(isinstance(value, int) for value in choices) else "str"
        return {"kind": kind} if "str" in heads else {"kind": kind, "choices": sorted(choices)}
    for member in members:
        if isinstance(member, ast.Subscript) and text_of(member.value) in (
            "tuple",
            "list",
            "set",
            "Sequence",
        ):
            return {"kind": "list", "item": "int" if text_of(member.slice).startswith("int") else "str"}
    if "int" in heads:
        if name == "max_model_len":
            return {"kind": "human_int_or_auto"}
        return {"kind": "human_int" if name in human else "int"}
    if "float" in heads:
        return {"kind": "float"}
    dicts = {"dict"} | {head for head in heads if is_dict_subclass(names.get(head))}
    if heads & dicts:
        others = heads - dicts - {"None"}
        return {"kind": "json_or_str" if others else "json"}
    return {"kind": "str"}


def class_field(names: Names, owner: str, name: str) -> ast.AST | None:
    """Annotation of a field of a config class, also of those it derives from."""
    node = names.get(owner)
    if not isinstance(node, ast.ClassDef):
        return None
    for key, child in children(node):
        if key == name and isinstance(child, ast.AnnAssign):
            return child.annotation
    for base in node.bases:
        if isinstance(base, ast.Name) and (found := class_field(names, base.id, name)) is not None:
            return found
    return None


def all_fields(names: Names, owner: str) -> dict[str, ast.AST]:
    node = names.get(owner)
    assert isinstance(node, ast.ClassDef), owner
    fields: dict[str, ast.AST] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and isinstance(names.get(base.id), ast.ClassDef):
            fields |= all_fields(names, base.id)
    fields |= {key: child.annotation for key, child in children(node) if isinstance(child, ast.AnnAssign)}
    return fields


def human_ints(wheel: WheelSource) -> tuple[str, ...]:
    """Names in `human_readable_int_args` of this wheel."""
    for function in ("_compute_kwargs", "get_kwargs"):
        node = wheel.find(ARG_UTILS, function)
        for child in ast.walk(node) if node is not None else ():
            if isinstance(child, ast.Set | ast.Tuple) and "'max_num_batched_tokens'" in text_of(child):
                return tuple(str(item.value) for item in child.elts if isinstance(item, ast.Constant))
    raise SystemExit(f"{wheel.version}: no human_readable_int_args in {ARG_UTILS}")


def override(value: ast.AST) -> dict[str, Any] | None:
    """What an assignment to kwargs["type"] makes of a flag."""
    text = text_of(value)
    if "json.loads" in text:
        return {"kind": "json"}
    if text.startswith("lambda"):
        return {"lower": True} if ".lower()" in text else {}
    return {"kind": {"int": "int", "float": "float"}.get(text, "str")}


class FunctionFlags(ast.NodeVisitor):
    """Follows one add_cli_args function: which config class each `*_kwargs` holds, and each add_argument."""

    def __init__(self, names: Names, human: tuple[str, ...]) -> None:
        self.names, self.human = names, human
        self.owners: dict[str, str] = {}
        self.fields: dict[str, tuple[str, str]] = {}
        self.overrides: dict[tuple[str, str], dict[str, Any]] = {}
        self.single: set[tuple[str, str] | None] = set()
        self.flags: list[dict[str, Any]] = []

    def visit_Assign(self, node: ast.Assign) -> None:
        target, value = node.targets[0], node.value
        if (
            isinstance(target, ast.Name)
            and isinstance(value, ast.Call)
            and text_of(value.func) == "get_kwargs"
        ):
            self.owners[target.id] = text_of(value.args[0])
        elif isinstance(target, ast.Name) and (place := self._place(value)) is not None:
            self.fields[target.id] = place
        elif (
            isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Constant)
            and target.slice.value == "type"
        ):
            place = self._place(target.value)
            if place is not None and (made := override(value)) is not None:
                self.overrides[place] = made
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and text_of(target.slice) == "'nargs'":
                self.single.add(self._place(target.value))

    def kind(self, place: tuple[str, str], annotation: ast.AST) -> dict[str, Any]:
        """Kind of a field after what the function changed in its kwargs; a list stays one with its nargs."""
        kind = kind_of(place[1], annotation, self.names, self.human)
        if kind["kind"] == "list" and place not in self.single:
            return kind
        kind.pop("item", None)
        return kind | self.overrides.get(place, {})

    def _place(self, node: ast.AST) -> tuple[str, str] | None:
        """(config class, field) of `cache_kwargs["block_size"]` or of a variable that holds it."""
        if isinstance(node, ast.Name):
            return self.fields.get(node.id)
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and isinstance(node.slice, ast.Constant)
        ):
            owner = self.owners.get(node.value.id)
            return None if owner is None else (owner, str(node.slice.value))
        return None

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            options = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
            if options and options[0].startswith("-"):
                self.flags.append({"options": options, **self._kwargs(node)})
        self.generic_visit(node)

    def _kwargs(self, node: ast.Call) -> dict[str, Any]:
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                for value in keyword.value.values if isinstance(keyword.value, ast.Dict) else [keyword.value]:
                    if value is not None and (place := self._place(value)) is not None:
                        annotation = class_field(self.names, *place)
                        if annotation is None:
                            raise SystemExit(f"{self.names.wheel.version}: no field {'.'.join(place)}")
                        kwargs |= self.kind(place, annotation)
            elif keyword.arg == "action":
                action = text_of(keyword.value).strip("'")
                actions = {
                    "argparse.BooleanOptionalAction": "bool",
                    "append": "append",
                    "store_true": "store_true",
                }
                kwargs["kind"] = actions.get(action, "str")
            elif keyword.arg == "type":
                kwargs |= override(keyword.value) or {}
            elif keyword.arg == "nargs":
                nargs = text_of(keyword.value).strip("'")
                kwargs["kind"] = {"+": "list", "*": "list", "?": "bool_or_str"}.get(
                    nargs, kwargs.get("kind", "str")
                )
            elif keyword.arg == "choices" and isinstance(keyword.value, ast.List):
                kwargs["choices"] = sorted(
                    item.value for item in keyword.value.elts if isinstance(item, ast.Constant)
                )
        kwargs.setdefault("kind", "str")
        return kwargs


def flags_of(wheel: WheelSource) -> dict[str, dict[str, Any]]:
    """name -> {options, kind, choices?, lower?, group} of one release."""
    names, human = config_names(wheel), human_ints(wheel)
    flags: dict[str, dict[str, Any]] = {}

    def read(file: str, dotted: str, group: str) -> None:
        node = wheel.find(file, dotted)
        if node is None:
            raise SystemExit(f"{wheel.version}: no {dotted} in {file}")
        visitor = FunctionFlags(names, human)
        visitor.visit(node)
        for flag in visitor.flags:
            long = next((option for option in flag["options"] if option.startswith("--")), flag["options"][0])
            name = long.lstrip("-").replace("-", "_").split(".")[0]
            flags[name] = {**flag, "group": group}

    cli_args = next(file for file in CLI_ARGS if wheel.tree(file) is not None)
    overrides = FunctionFlags(names, human)
    for owner in ("BaseFrontendArgs", "FrontendArgs"):
        for function in ("_customize_cli_kwargs", "add_cli_args"):
            if (node := wheel.find(cli_args, f"{owner}.{function}")) is not None:
                overrides.owners["frontend_kwargs"] = "FrontendArgs"
                overrides.visit(node)
    for name, annotation in all_fields(names, "FrontendArgs").items():
        kind = overrides.kind(("FrontendArgs", name), annotation)
        flags[name] = {"options": [f"--{name.replace('_', '-')}"], **kind, "group": "frontend"}
    if "middleware" in flags:
        flags["middleware"] = {"options": ["--middleware"], "kind": "append", "group": "frontend"}
    read(cli_args, "make_arg_parser", "frontend")
    read(ARG_UTILS, "EngineArgs.add_cli_args", "engine")
    read(ARG_UTILS, "AsyncEngineArgs.add_cli_args", "engine")
    return flags


CONFIGS = {
    "compilation_config": "CompilationConfig",
    "compilation_config.pass_config": "PassConfig",
    "attention_config": "AttentionConfig",
}
"""Configs whose keys are classified one by one, each under the flag that takes its JSON."""


def keys_of(wheel: WheelSource) -> dict[str, str]:
    """'compilation_config.mode' and the like -> kind, of one release, without fields that no user can set."""
    names, human = config_names(wheel), human_ints(wheel)
    keys: dict[str, str] = {}
    for place, owner in CONFIGS.items():
        node = names.get(owner)
        assert isinstance(node, ast.ClassDef), f"{wheel.version}: no {owner}"
        for name, child in children(node):
            if isinstance(child, ast.AnnAssign) and not name.startswith("_"):
                text = text_of(child)
                if "init=False" not in text and not text.startswith(f"{name}: ClassVar"):
                    keys[f"{place}.{name}"] = kind_of(name, child.annotation, names, human)["kind"]
    return keys


def key_table(wheels: list[WheelSource]) -> dict[str, list[list[str]]]:
    """Key -> runs [first release, last release, kind]."""
    rows: dict[str, list[list[str]]] = {}
    for index, wheel in enumerate(wheels):
        for key, kind in keys_of(wheel).items():
            runs = rows.setdefault(key, [])
            if runs and runs[-1][1] == wheels[index - 1].version and runs[-1][2] == kind:
                runs[-1][1] = wheel.version
            else:
                runs.append([wheel.version, wheel.version, kind])
    return dict(sorted(rows.items()))


def table(wheels: list[WheelSource]) -> dict[str, list[dict[str, Any]]]:
    """name -> runs of releases with the same entry, each {since, until, options, kind, ...}."""
    runs: dict[str, list[dict[str, Any]]] = {}
    versions = [wheel.version for wheel in wheels]
    for index, wheel in enumerate(wheels):
        for name, flag in flags_of(wheel).items():
            history = runs.setdefault(name, [])
            last = history[-1] if history else None
            same = last is not None and {"since": last["since"], "until": last["until"], **flag} == last
            if last is not None and same and last["until"] == versions[index - 1]:
                last["until"] = wheel.version
            else:
                history.append({"since": wheel.version, "until": wheel.version, **flag})
    return dict(sorted(runs.items()))


def unclassified(rows: Mapping[str, Any], keys: Mapping[str, Any]) -> list[str]:
    from vllm_capacity.inputs.flags.effects import EFFECTS, KEY_EFFECTS

    return [
        line
        for found, effects in ((rows, EFFECTS), (keys, KEY_EFFECTS))
        for line in (
            *(f"unclassified: {name}" for name in found if name not in effects),
            *(f"classified, but of no release: {name}" for name in effects if name not in found),
        )
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    wheels = find_wheels(options.wheels)
    rows, keys = table(wheels), key_table(wheels)
    body: dict[str, Any] = {"releases": [wheel.version for wheel in wheels], "flags": rows, "keys": keys}
    sections = [f'"releases": {json.dumps(body["releases"])}']
    for title in ("flags", "keys"):
        lines = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(history)}" for name, history in body[title].items()
        )
        sections.append(f'"{title}": {{\n{lines}\n}}')
    text = "{" + ",\n".join(sections) + "}\n"
    problems = unclassified(rows, keys)
    if options.check:
        if json.loads(TABLE.read_text()) != body:
            problems.append(f"{TABLE.name} is not what the wheels say; run tools/generate_flags.py")
    else:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text(text)
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{len(rows)} flags and {len(keys)} config keys of {len(wheels)} releases")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
