"""Options that several commands take, in the same words everywhere."""

from __future__ import annotations

import click
from vllm_capacity.cli import candidates

model = click.option("--model", metavar="MODEL", shell_complete=candidates.models,
                     help="A folder, a config.json, a catalogue id, or a Hugging Face id.")  # fmt: skip
revision = click.option("--revision", metavar="REV", help="Branch, tag or commit on the Hub.")
offline = click.option("--offline", is_flag=True, help="Never ask the Hub.")
gpu = click.option("--gpu", metavar="NAME", shell_complete=candidates.gpus,
                   help="A GPU of the catalogue (`gpus`). Default: the local one, else H100-80GB.")  # fmt: skip
gpu_memory = click.option("--gpu-memory", metavar="SIZE",
                          help="Total memory of a GPU that is not in the catalogue, as CUDA reports it.")  # fmt: skip
compute_capability = click.option("--compute-capability", metavar="X.Y",
                                  help="Its compute capability, with --gpu-memory.")  # fmt: skip
free_memory = click.option("--free-memory", metavar="SIZE",
                           help="Free at start-up, where others use the GPU too.")  # fmt: skip
used_memory = click.option("--used-memory", metavar="SIZE", help="Used by others at start-up.")
vllm_version = click.option("--vllm-version", metavar="X.Y.Z", shell_complete=candidates.releases,
                            help="Default: the installed vLLM's, else the newest known.")  # fmt: skip
usage = click.option("--usage", type=click.Choice(["server", "offline"]), default=None,
                     help="vllm serve (default) or the LLM class.")  # fmt: skip
environment = click.option("--env", "environment", multiple=True, metavar="NAME=VALUE",
                           help="An environment variable of the server.")  # fmt: skip
calibration = click.option("--calibration", metavar="FILE|none", shell_complete=candidates.files,
                           help="Correction factors to use instead of the built-in ones.")  # fmt: skip
allow_unmodelled = click.option("--allow-unmodelled", is_flag=True,
                                help="Accept flags whose memory is not modelled; widens the interval.")  # fmt: skip
