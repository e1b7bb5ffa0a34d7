"""docs/json-schema.md: the keys of every `--json` in tables, made from the published schemas (`vllm-capacity schema`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

from vllm_capacity.cli.schema import SCHEMAS as PUBLISHED
from vllm_capacity.cli.schema import published

INTRODUCTION = """\
# JSON

What `--json` prints, and what the [HTTP API](web.md) answers. Each form has a JSON Schema (draft 2020-12): `vllm-capacity schema
NAME` prints it; what the test suite sees printed is held to it. Numbers carry their unit there, as `unit`.

| command | schema |
|---|---|
{files}

- Bytes are integers, per GPU, never summed over GPUs. Keys in `_gib` and `_mib`, of `explain` alone, quote a log as it stands.
- A key means the same wherever it stands; [Words](glossary.md) has those that several commands share.
- `schema_version` changes when a key goes away or changes its meaning. New keys may appear at any time.
- `plan` with several tensor-parallel sizes prints `{{"plans": [...]}}`.
- A layout that vLLM refuses has `ranks: []` and null for `kv_cache`, `host` and `calibration`; `verdict.message` says why.

```sh
vllm-capacity plan --model Qwen/Qwen3-8B --gpu L40S --json > plan.json
python3 -c "import json; print(json.load(open('plan.json'))['kv_cache']['size_tokens'])"
```

This page is written by `tools/write_docs.py`.
"""


def schema_text(name: str) -> str:
    """As the command prints it."""
    return json.dumps(published(name), indent=2, sort_keys=True) + "\n"


SCHEMAS: dict[str, Callable[[], str]] = {name: partial(schema_text, name) for name in PUBLISHED}


def _type(of: str, field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(of, name)})"
    if "anyOf" in field:
        return " or ".join(_type(of, option) for option in field["anyOf"])
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(of, field['items'])}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"object: name to {_type(of, field['additionalProperties'])}"
    return str(field.get("type", "any"))


def _anchor(of: str, name: str) -> str:
    return name.lower() if name in _enumerations() else f"{of}-{name.lower()}"


def _object(of: str, name: str, definition: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {of}: {name}"
    yield ""
    text = " ".join(str(definition.get("description", "")).split())
    if text:
        yield from (text, "")
    yield "| key | type | unit | meaning |"
    yield "|---|---|---|---|"
    for key, field in definition["properties"].items():
        meaning = str(field.get("description", "")).replace("|", "\\|")
        yield f"| `{key}` | {_type(of, field)} | {field.get('unit', '')} | {meaning} |"
    yield ""


def _objects(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Objects of a schema by name, as a reader meets them: from the outside in."""
    definitions, found = schema["$defs"], {}
    root = schema.get("$ref", "").rpartition("/")[2]
    if "properties" in schema:
        found["the whole"] = schema
    waiting = (
        [root] if root else list(_references(schema if "properties" in schema else {**schema, "$defs": {}}))
    )
    while waiting:
        name = waiting.pop(0)
        if name not in found and "properties" in definitions[name]:
            found[name] = definitions[name]
            waiting = [*_references(definitions[name]), *waiting]
    return found


def _references(node: Any) -> Iterator[str]:
    """Names that a schema refers to, without its own definitions."""
    if isinstance(node, Mapping):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        for key, child in node.items():
            if key != "$defs":
                yield from _references(child)
    elif isinstance(node, list):
        for child in node:
            yield from _references(child)


@cache
def _enumerations() -> dict[str, Mapping[str, Any]]:
    return {
        name: definition
        for schema in PUBLISHED
        for name, definition in published(schema)["$defs"].items()
        if "enum" in definition
    }


def page() -> str:
    files = "\n".join(
        f"| `{name} --json` | [{name}.schema.json]({name}.schema.json) |"
        if name != "record"
        else f"| a line of the file that `validate` writes | [{name}.schema.json]({name}.schema.json) |"
        for name in PUBLISHED
    )
    lines = [INTRODUCTION.format(files=files)]
    for name in PUBLISHED:
        lines += [f"## {name}", ""]
        for title, definition in _objects(published(name)).items():
            lines += _object(name, title, definition)
    lines += ["## Values", ""]
    for name, definition in sorted(_enumerations().items()):
        text = " ".join(str(definition.get("description", "")).split())
        lines += [
            f"### {name}",
            "",
            *([text, ""] if text else []),
            ", ".join(f"`{v}`" for v in definition["enum"]),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"
