"""`vllm-capacity schema`: the JSON Schemas of `--json`."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import click

SCHEMAS = {
    "plan": "report.schema:plan_schema",
    "size": "report.size_schema:size_schema",
    "compare": "report.compare_schema:compare_schema",
    "explain": "report.explain_schema:explain_schema",
    "validate": "validate.schema:comparison_schema",
    "record": "validate.schema:record_schema",
}
"""Name -> "module:function" below the package."""


def published(name: str) -> dict[str, Any]:
    """The schema of that name."""
    module, _, function = SCHEMAS[name].partition(":")
    schema: dict[str, Any] = getattr(import_module(f"vllm_capacity.{module}"), function)()
    return schema


@click.command("schema")
@click.argument("name", type=click.Choice(list(SCHEMAS)), default="plan", required=False)
def command(name: str) -> None:
    """Print the JSON Schema of what a command prints with `--json`.

    \b
    vllm-capacity schema
    vllm-capacity schema size > size.schema.json

    NAME is the command (default: plan), or record: a line of the file that `validate` writes.
    """
    click.echo(json.dumps(published(name), indent=2, sort_keys=True))
