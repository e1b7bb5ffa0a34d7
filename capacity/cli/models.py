"""`vllm-capacity models`: search the bundled catalogue."""

from __future__ import annotations

import json

import click


@click.command("models")
@click.argument("text", required=False)
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON; a line per model.")
def command(text: str | None, as_json: bool) -> int:
    """Search the bundled model catalogue by part of a name.

    \b
    vllm-capacity models qwen3
    vllm-capacity models llama --json
    """
    from vllm_capacity.inputs.catalogue import find_entry, model_ids

    names = model_ids(text)
    for name in names:
        entry = find_entry(name)
        if entry is None:
            continue
        architectures = entry.config.get("architectures") or ["?"]
        if as_json:
            click.echo(json.dumps({"id": name, "architecture": architectures[0], **entry.facts}))
        else:
            parameters = entry.facts.get("parameters")
            size = f"{parameters:>18,}" if isinstance(parameters, int) else f"{'?':>18}"
            click.echo(f"{name:<58} {size}  {architectures[0]}")
    if not names:
        click.echo(
            f"no model in the catalogue matches {text!r}; --model also takes a config.json or a Hub id",
            err=True,
        )
    return 0 if names else 1
