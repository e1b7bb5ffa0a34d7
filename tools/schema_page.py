"""docs/json-schema.md: the keys of `plan --json` in tables, made from the published schema (`vllm-capacity schema`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from vllm_capacity.report.explain_schema import explain_schema
from vllm_capacity.report.schema import plan_schema
from vllm_capacity.report.size_schema import size_schema

ORDER = (
    "PlanReport", "Model", "Gpu", "Rank", "Term", "KvCache", "Group", "Verdict", "Suggestion", "SuggestionEffect",
    "Concurrency", "Host", "CalibrationUsed", "PlansReport",
)  # fmt: skip
"""Objects as a reader meets them, from the outside in; enumerations follow."""

INTRODUCTION = """\
# The JSON of a plan

`vllm-capacity plan --json` prints one object per plan. Its JSON Schema (draft 2020-12) is
[plan.schema.json](plan.schema.json), the same as `vllm-capacity schema` prints; every `--json` of the test suite is held to it.

- Bytes are integers, per GPU, never summed over GPUs.
- `schema_version` changes when a key goes away or changes its meaning. New keys may appear at any time.
- One call with several tensor-parallel sizes prints `{"plans": [...]}`.
- A layout that vLLM refuses has `ranks: []` and null for `kv_cache`, `host` and `calibration`; `verdict.message` says why.

```sh
vllm-capacity plan --model Qwen/Qwen3-8B --gpu L40S --json > plan.json
python3 -c "import json; print(json.load(open('plan.json'))['kv_cache']['tokens'])"
```

`vllm-capacity schema size` and `schema explain` are the schemas of `size --json` ([file](size.schema.json); [Reading a
row](sizing.md#reading-a-row) says what its keys mean) and of `explain --json` ([file](explain.schema.json)).

This page is written by `tools/write_docs.py`.
"""


def schema_text(make: Callable[[], dict[str, Any]]) -> str:
    """As the command prints it."""
    return json.dumps(make(), indent=2, sort_keys=True) + "\n"


SCHEMAS: dict[str, Callable[[], str]] = {
    "plan": partial(schema_text, plan_schema),
    "size": partial(schema_text, size_schema),
    "explain": partial(schema_text, explain_schema),
}


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_type(option) for option in field["anyOf"])
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"object: name to {_type(field['additionalProperties'])}"
    return str(field.get("type", "any"))


def _object(name: str, definition: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    yield "| key | type | meaning |"
    yield "|---|---|---|"
    for key, field in definition["properties"].items():
        meaning = str(field.get("description", "")).replace("|", "\\|")
        yield f"| `{key}` | {_type(field)} | {meaning} |"
    yield ""


def _enumeration(name: str, definition: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    text = " ".join(str(definition.get("description", "")).split())
    if text:
        yield text
        yield ""
    yield ", ".join(f"`{value}`" for value in definition["enum"])
    yield ""


def page() -> str:
    definitions = plan_schema()["$defs"]
    lines = [INTRODUCTION]
    for name in ORDER:
        lines += _object(name, definitions[name])
    for name in sorted(definitions.keys() - set(ORDER)):
        lines += _enumeration(name, definitions[name])
    return "\n".join(lines).rstrip() + "\n"
