"""`vllm-capacity explain`: from a vLLM log to the cause and the smallest remedy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click
from vllm_capacity.cli import candidates, common_options
from vllm_capacity.errors import InputError

if TYPE_CHECKING:
    from vllm_capacity.logs.record import LogRecord


@click.command("explain")
@click.argument("log", required=False, metavar="[LOG]", shell_complete=candidates.files)
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=candidates.models,
    help=f"{common_options.MODEL} Default: what the log names.",
)
@click.option("--gpu", metavar="NAME", shell_complete=candidates.gpus,
              help=f"{common_options.GPU} Default: what the log shows.")  # fmt: skip
@click.option("--vllm-version", metavar="X.Y.Z", shell_complete=candidates.releases,
              help=f"{common_options.VLLM_VERSION} Default: what the log names.")  # fmt: skip
@common_options.offline
@click.option(
    "--records",
    "record_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"{common_options.RECORDS} The log's run becomes one.",
)
@common_options.as_json
def command(
    log: str | None,
    model: str | None,
    gpu: str | None,
    vllm_version: str | None,
    offline: bool,
    record_file: Path | None,
    as_json: bool,
) -> int:
    """Say where the memory of a run went, why it failed, and the smallest change that fixes it.

    \b
    vllm-capacity explain server.log
    kubectl logs deploy/vllm | vllm-capacity explain

    LOG is a file (plain or .gz) or - for standard input: output of `vllm serve` or of a script, as docker, kubectl or a
    terminal recorded it. Exit code 0: nothing is wrong, 1: a problem was found, 2: bad input, or no vLLM log.
    """
    from vllm_capacity.diagnosis.diagnose import diagnose_with_run
    from vllm_capacity.diagnosis.rebuild import Given

    record = _read(log)
    given = Given(model=model, gpu=gpu, vllm_version=vllm_version, offline=offline)
    diagnosis, rebuilt = diagnose_with_run(record, given)
    if record_file is not None:
        from vllm_capacity.validate.explain_record import run_record
        from vllm_capacity.validate.record import append_record

        append_record(record_file, run_record(diagnosis, rebuilt))
    if as_json:
        import json

        from vllm_capacity.report.explain_text import diagnosis_to_dict

        click.echo(json.dumps(diagnosis_to_dict(record, diagnosis)))
    else:
        from vllm_capacity.report.explain_text import explain_lines

        for line in explain_lines(record, diagnosis):
            click.echo(line)
    return diagnosis.exit_code


def _read(log: str | None) -> LogRecord:
    from vllm_capacity.logs.reader import read_log

    if log in (None, "-"):
        stream: BinaryIO = sys.stdin.buffer
        if log is None and stream.isatty():
            raise InputError(
                "no log: name a file, or pipe one in (`kubectl logs ... | vllm-capacity explain`)"
            )
        return read_log(stream)
    try:
        with open(str(log), "rb") as file:
            return read_log(file)
    except OSError as error:
        raise InputError(f"{log}: cannot be read ({error.strerror or error})") from None
