"""`vllm-capacity gpus`: search the GPU catalogue."""

from __future__ import annotations

import json

import click


@click.command("gpus")
@click.argument("text", required=False)
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON; a line per GPU.")
def command(text: str | None, as_json: bool) -> int:
    """Search the GPU catalogue by part of a name.

    \b
    vllm-capacity gpus h100
    vllm-capacity gpus --json
    """
    from vllm_capacity.inputs.gpus import list_devices
    from vllm_capacity.report.json_report import device_to_dict
    from vllm_capacity.units import GIB

    devices = list_devices(text)
    if not as_json and devices:
        click.echo(f"{'name':<22} {'CUDA GiB':>9} {'nvidia-smi GiB':>15}  {'sm':<5} links")
    for device in devices:
        if as_json:
            click.echo(json.dumps(device_to_dict(device)))
        else:
            derived = " (derived)" if device.derived else ""
            click.echo(
                f"{device.name:<22} {device.cuda_total_bytes / GIB:>9.2f} {device.nvml_total_bytes / GIB:>15.2f}  "
                f"{device.compute_capability[0]}.{device.compute_capability[1]:<3} "
                f"{'NVLink' if device.nvlink else '-'}{derived}"
            )
    if not devices:
        click.echo(
            f"no GPU in the catalogue matches {text!r}; --gpu-memory with --compute-capability describes any",
            err=True,
        )
    return 0 if devices else 1
