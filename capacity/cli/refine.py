"""The command `refine`: correction factors for the empirical terms from recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from vllm_capacity.errors import InputError


@click.command("refine")
@click.argument("records", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", metavar="FILE", type=click.Path(path_type=Path),
              help="File to write. Default: the user's calibration file.")  # fmt: skip
@click.option("--minimum-runs", type=click.IntRange(min=2), metavar="N", default=3, show_default=True,
              help="Runs that an entry needs.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the file instead of writing it.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON; all that was fitted.")
def command(
    records: tuple[Path, ...], output: Path | None, minimum_runs: int, dry_run: bool, as_json: bool
) -> int:
    """Fit correction factors from the RECORDS that `validate` wrote.

    \b
    vllm-capacity refine records.jsonl
    vllm-capacity refine records.jsonl more-records.jsonl --dry-run

    Only what no source code tells is fitted (CUDA context, NCCL, communication buffers, kernel modules),
    keyed by what causes it. Reports the error on each model with the factors fitted without it, and refuses
    with too few runs.
    """
    import json
    from dataclasses import asdict

    from vllm_capacity.calibration import load_calibration, user_file
    from vllm_capacity.validate import refine
    from vllm_capacity.validate.record import RunRecord, read_records, write_file

    runs: list[RunRecord] = [record for path in records for record in read_records(path)]
    if not runs:
        raise InputError("no records in these files")
    found = refine.refine(runs, refine.predict_again, load_calibration("none"), minimum_runs=minimum_runs)
    text = refine.to_yaml(found)
    if as_json:
        data: dict[str, Any] = asdict(found)
        click.echo(json.dumps(data, indent=2, default=str))
    elif dry_run:
        click.echo(text, nl=False)
    else:
        click.echo("\n".join(refine.summary(found)))
    if not dry_run:
        target = output or user_file()
        write_file(target, text)
        click.echo(f"wrote {target}", err=True)
    return 0
