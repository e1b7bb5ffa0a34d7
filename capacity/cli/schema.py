"""`vllm-capacity schema`: the JSON Schemas of `--json`."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command("schema")
@click.argument("name", type=click.Choice(["plan", "size", "explain"]), default="plan", required=False)
def command(name: str) -> None:
    """Print the JSON Schema of `plan --json`, or of `size --json` or `explain --json`.

    \b
    vllm-capacity schema
    vllm-capacity schema size > size.schema.json
    """
    click.echo(json.dumps(_schema(name), indent=2, sort_keys=True))


def _schema(name: str) -> dict[str, Any]:
    if name == "size":
        from vllm_capacity.report.size_schema import size_schema

        return size_schema()
    if name == "explain":
        from vllm_capacity.report.explain_schema import explain_schema

        return explain_schema()
    from vllm_capacity.report.schema import plan_schema

    return plan_schema()
