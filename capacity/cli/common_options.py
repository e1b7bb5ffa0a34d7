"""Options that several commands take, in the same words everywhere: the first sentence of a help text is the same, what a
command adds to it comes after."""

from __future__ import annotations

import click
from vllm_capacity.cli import candidates

MODEL = "A folder, a config.json, a catalogue id, or a Hugging Face id."
GPU = "A GPU of the catalogue (`gpus`)."
VLLM_VERSION = "vLLM release to plan for."
CALIBRATION = "Correction factors to use instead of the built-in ones."
CONCURRENCY = "Requests of --max-model-len tokens at once."
PROMPT_TOKENS = "Mean prompt length, in tokens."
OUTPUT_TOKENS = "Mean output length, in tokens."
GPUS_PER_NODE = "GPUs of one box."
PYTHON = "Python of an environment that has vLLM."
RECORDS = "File that records are appended to."
JSON = "Everything, as JSON; `schema` has its form."

model = click.option("--model", metavar="MODEL", shell_complete=candidates.models, help=MODEL)
revision = click.option("--revision", metavar="REV", help="Branch, tag or commit on the Hub.")
offline = click.option("--offline", is_flag=True, help="Never ask the Hub.")
gpu = click.option("--gpu", metavar="NAME", shell_complete=candidates.gpus,
                   help=f"{GPU} Default: the local one, else H100-80GB.")  # fmt: skip
gpu_memory = click.option(
    "--gpu-memory", metavar="SIZE",
    help="Total memory of a GPU that is not in the catalogue, as CUDA reports it: 24GiB, or a number of bytes.",
)  # fmt: skip
compute_capability = click.option("--compute-capability", metavar="X.Y",
                                  help="Its compute capability, with --gpu-memory.")  # fmt: skip
free_memory = click.option("--free-memory", metavar="SIZE",
                           help="Free at start-up, where others use the GPU too: 60GiB, or a number of bytes.")  # fmt: skip
used_memory = click.option("--used-memory", metavar="SIZE",
                           help="Used by others at start-up: 20GiB, or a number of bytes.")  # fmt: skip
vllm_version = click.option("--vllm-version", metavar="X.Y.Z", shell_complete=candidates.releases,
                            help=f"{VLLM_VERSION} Default: the installed one, else the newest known.")  # fmt: skip
usage = click.option("--usage", type=click.Choice(["server", "offline"]), default=None,
                     help="vllm serve (default) or the LLM class.")  # fmt: skip
environment = click.option("--env", "environment", multiple=True, metavar="NAME=VALUE",
                           help="An environment variable of the server.")  # fmt: skip
calibration = click.option("--calibration", metavar="FILE|none", shell_complete=candidates.files,
                           help=CALIBRATION)  # fmt: skip
allow_unmodelled = click.option("--allow-unmodelled", is_flag=True,
                                help="Accept flags whose memory is not modelled; widens the interval.")  # fmt: skip
as_json = click.option("--json", "as_json", is_flag=True, help=JSON)
