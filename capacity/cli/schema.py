"""`vllm-capacity schema`: the JSON Schema of `plan --json`."""

from __future__ import annotations

import json

import click


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of `plan --json`.

    \b
    vllm-capacity schema
    vllm-capacity schema > plan.schema.json
    """
    from vllm_capacity.report.schema import plan_schema

    click.echo(json.dumps(plan_schema(), indent=2, sort_keys=True))
