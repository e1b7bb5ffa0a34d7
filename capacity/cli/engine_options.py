"""vLLM's engine flags as options of a command: the same names, short forms and values as vLLM's own parser.

Values stay text here; `inputs/engine_args.py` checks them. Flags that are not listed are passed on to the same parser that
reads pasted command lines, so every flag vLLM knows is understood or refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from vllm_capacity.cli.candidates import flag_values

F = TypeVar("F", bound=Callable[..., Any])

SIZES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("--tensor-parallel-size", "-tp", "--tp"),
        "N",
        "GPUs that each layer is split over; `plan` gives a column for each of 1,2,4.",
    ),
    (("--pipeline-parallel-size", "-pp", "--pp"), "N", "Pipeline stages."),
    (
        ("--data-parallel-size", "-dp", "--dp"),
        "N",
        "Engines side by side; experts are spread over all of them.",
    ),
    (
        ("--decode-context-parallel-size", "-dcp", "--dcp"),
        "N",
        "Ranks that share one sequence's KV cache in decode.",
    ),
    (
        ("--max-model-len",),
        "N",
        "Longest request, in tokens; 32k = 32,000, 32K = 32,768, or auto for what fits.",
    ),
    (("--gpu-memory-utilization",), "U", "Share of the GPU's total memory that vLLM may use, 0 to 1."),
    (
        ("--kv-cache-memory-bytes",),
        "SIZE",
        "KV cache per GPU, in place of the share: 20GiB, or a number of bytes.",
    ),
    (("--max-num-batched-tokens",), "N", "Tokens of one batch."),
    (("--max-num-seqs",), "N", "Sequences of one batch."),
    (("--kv-cache-dtype",), "DTYPE", "auto, bfloat16, fp8, ..."),
    (("--dtype",), "DTYPE", "auto, bfloat16, float16, ..."),
    (("--quantization", "-q"), "METHOD", "Quantise while loading, or name the checkpoint's method."),
    (("--block-size",), "N", "Tokens of one KV cache block."),
    (("--attention-backend",), "NAME", "For example FLASH_ATTN, FLASHINFER, TRITON_ATTN."),
    (("--num-gpu-blocks-override",), "N", "Use this many blocks whatever fits."),
    (("--hf-overrides",), "JSON", "Overrides of the model's config.json."),
    (("--compilation-config", "-cc"), "JSON", "As vLLM takes it."),
)
"""(names, metavar, help) of flags that take a value."""

SWITCHES: tuple[tuple[str, str], ...] = (
    ("--enable-expert-parallel/--no-enable-expert-parallel", "Split experts by expert over the ranks."),
    ("--enforce-eager/--no-enforce-eager", "No torch.compile and no CUDA graphs."),
    (
        "--disable-hybrid-kv-cache-manager/--no-disable-hybrid-kv-cache-manager",
        "Allocate every layer in full.",
    ),
    ("--enable-prefix-caching/--no-enable-prefix-caching", "Default: vLLM's."),
    ("--enable-chunked-prefill/--no-enable-chunked-prefill", "Default: vLLM's."),
    ("--async-scheduling/--no-async-scheduling", "Default: vLLM's."),
)
_SHORT = {"--enable-expert-parallel": ("-ep", "--ep")}


def engine_options(function: F) -> F:
    """Adds every option above; the values arrive under vLLM's own names, None where not given."""
    for names, help_text in reversed(SWITCHES):
        positive = names.split("/")[0]
        declarations = [names.replace("/", "/"), *_SHORT.get(positive, ())]
        function = click.option(*declarations, positive[2:].replace("-", "_"), default=None, help=help_text)(
            function
        )
    for flags, metavar, help_text in reversed(SIZES):
        parameter = flags[0][2:].replace("-", "_")
        function = click.option(*flags, parameter, metavar=metavar, default=None, help=help_text,
                                shell_complete=flag_values)(function)  # fmt: skip
    return function


NAMES = tuple(flags[0][2:].replace("-", "_") for flags, _, _ in SIZES) + tuple(
    names.split("/")[0][2:].replace("-", "_") for names, _ in SWITCHES
)
"""Parameter names, as `engine_options` passes them."""
