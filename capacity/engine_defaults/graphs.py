"""Compilation mode, CUDA graph mode and the batch sizes that are captured."""

from __future__ import annotations

from typing import Any

from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.facts import pass_config, refuse, switch
from vllm_capacity.engine_defaults.speculation import Speculation
from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

COMPILATION_MODES = ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE")
"""CompilationMode by number (config/compilation.py, 0.19.0 to 0.33.0)."""

GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")

_LEVEL_GRAPHS = ("NONE", "PIECEWISE", "FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE")
"""cudagraph_mode of optimisation levels 0 to 3 (config/vllm.py:221-330, 0.26.0)."""

GPT_OSS_GRAPH_CEILING = 1024
"""GptOssForCausalLMConfig, models/config.py (0.19.0 to 0.33.0)."""

_BREAKABLE: tuple[tuple[str, frozenset[str]], ...] = (
    ("breakable_deepseek_v4", frozenset({"DeepseekV4ForCausalLM", "DeepSeekV4MTPModel"})),
    (
        "breakable_minimax_m3",
        frozenset({"MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"}),
    ),
    ("breakable_inkling", frozenset({"InklingForCausalLM", "InklingForConditionalGeneration"})),
    (
        "breakable_kimi",
        frozenset({"KimiK3ForConditionalGeneration", "KimiK3MTPModel", "KimiLinearForCausalLM"}),
    ),
    (
        "breakable_sparse_mla",
        frozenset(
            {
                "DeepseekV32MTPModel",
                "DeepseekV32ForCausalLM",
                "Dots3NoteForCausalLM",
                "Dots3NoteMTPModel",
                "GlmMoeDsaForCausalLM",
                "HYV4ForCausalLM",
                "HYV4MTPModel",
            }
        ),
    ),
    (
        "breakable_0_30",
        frozenset(
            {
                "DeepseekV4ForConditionalGeneration",
                "DeepseekV41ForCausalLM",
                "Glm5NextForCausalLM",
                "Glm5NextForConditionalGeneration",
                "Glm5NextMTPModel",
                "Qwen4ExpForCausalLM",
                "Qwen4ExpForConditionalGeneration",
                "Qwen4ExpMTP",
            }
        ),
    ),
    (
        "breakable_0_33",
        frozenset(
            {
                "AliceAIForCausalLM",
                "BeamForCausalLM",
                "MuseSpark1xForCausalLM",
                "MuseSparkForConditionalGeneration",
                "Step5ForCausalLM",
                "Step5ForConditionalGeneration",
            }
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What the user and the model ask for, before the attention backends are known."""

    mode: str
    graphs: str
    breakable: bool
    """VLLM_USE_BREAKABLE_CUDAGRAPH: piecewise graphs without torch.compile."""
    sizes: tuple[int, ...] | None
    max_size: int | None


# -- what is asked for ---------------------------------------------------------------------------------------


def requested_mode(args: EngineArgs) -> str | None:
    """`compilation_config.mode` as a name; None when not given. InputError for an unknown one."""
    value = args.compilation_config.get("mode")
    if value is None:
        return None
    if isinstance(value, str):
        if value.upper() not in COMPILATION_MODES:
            raise InputError(
                f"--compilation-config: Invalid compilation mode: {value}. Valid modes are: {', '.join(COMPILATION_MODES)}"
            )
        return value.upper()
    if type(value) is int and 0 <= value < len(COMPILATION_MODES):
        return COMPILATION_MODES[value]
    raise InputError(f"--compilation-config: mode must be 0 to 3 or a name, not {value!r:.60}")


def requested_graphs(args: EngineArgs) -> str | None:
    """`compilation_config.cudagraph_mode` as a name; None when not given. InputError for an unknown one."""
    value = args.compilation_config.get("cudagraph_mode")
    if value is None:
        return None
    if isinstance(value, str) and value.upper() in GRAPH_MODES:
        return value.upper()
    if type(value) is int and 0 <= value <= 2:
        return GRAPH_MODES[value]
    raise InputError(
        f"--compilation-config: cudagraph_mode must be one of {', '.join(GRAPH_MODES)}, not {value!r:.60}"
    )


def requested_sizes(args: EngineArgs) -> tuple[tuple[int, ...] | None, int | None]:
    """(capture sizes, largest size) from their flags or from the compilation config; RefusedError where
    both are given.
    """
    values: list[Any] = []
    for name in ("cudagraph_capture_sizes", "max_cudagraph_capture_size"):
        flag, inside = getattr(args, name), args.compilation_config.get(name)
        if flag is not None and inside is not None:
            raise refuse(f"{name} and compilation_config.{name} are mutually exclusive")
        values.append(inside if flag is None else flag)
    sizes, largest = values
    if sizes is not None:
        if not isinstance(sizes, (list, tuple)) or not all(str(s).isdecimal() and int(s) > 0 for s in sizes):
            raise InputError("--cudagraph-capture-sizes must be positive integers")
        sizes = tuple(int(s) for s in sizes)
    if largest is not None and (type(largest) is not int or largest < 0):
        raise InputError(
            f"--max-cudagraph-capture-size must be an integer of at least 0, not {largest!r:.60}"
        )
    return sizes, largest


def resolve_compilation(
    args: EngineArgs,
    config: ModelConfig,
    architecture: Architecture,
    release: Release,
    *,
    pooling: bool,
    moe: bool,
    speculation: Speculation,
    runs_on_v2: bool,
) -> Compilation:
    """Mode and graphs up to `check_and_update_config`.

    `VllmConfig.__post_init__`, config/vllm.py:1160-1420, and `set_splitting_ops_for_v1`,
    config/compilation.py (0.26.0).
    """
    mode, graphs = requested_mode(args), requested_graphs(args)
    sizes, largest = requested_sizes(args)
    names = set(config.architectures)
    if "GptOssForCausalLM" in names and sizes is None and largest is None:
        largest = GPT_OSS_GRAPH_CEILING
    if "LongcatFlashNgramForCausalLM" in names and release.has("longcat_full_graphs"):
        mode, graphs = mode or "NONE", graphs or "FULL"
    if args.enforce_eager:
        mode = graphs = "NONE"
    if args.environment.get("TORCH_COMPILE_DISABLE") == "1" and release.has("torch_compile_disable"):
        mode = "NONE"
    breakable = _breakable(args, names, release)
    if breakable:
        mode = "NONE"
    level = 2 if args.optimization_level is None else args.optimization_level
    if not 0 <= level <= 3:
        raise InputError(f"--optimization-level must be 0, 1, 2 or 3, not {level}")
    mode = mode or ("VLLM_COMPILE" if level > 0 else "NONE")
    graphs = graphs or _LEVEL_GRAPHS[level]
    if (
        speculation.dynamic
        and has_full(graphs)
        and release.has("dynamic_speculation_piecewise")
        and not runs_on_v2
    ):
        graphs = "PIECEWISE"
    compiled = mode == "VLLM_COMPILE"
    graphs = _without_compilation(graphs, compiled or breakable, release)
    if pooling and has_full(graphs):
        graphs = "PIECEWISE"
    elif architecture.is_encoder_decoder and graphs not in ("NONE", "FULL_DECODE_ONLY"):
        graphs = "FULL_DECODE_ONLY"
    graphs = _without_compilation(graphs, compiled or breakable, release)
    if runs_on_v2 and mode == "STOCK_TORCH_COMPILE" and release.has("stock_compile_without_graphs"):
        graphs = "NONE"
    if compiled and args.compilation_config.get("splitting_ops") == []:
        graphs = {"PIECEWISE": "NONE", "FULL_AND_PIECEWISE": "FULL"}.get(graphs, graphs)
    all2all = args.other("all2all_backend")
    if compiled and all2all == "deepep_high_throughput" and moe and args.data_parallel_size > 1:
        graphs = "NONE"
    if all2all == "moonep" and release.has("moonep_without_graphs") and moe and args.data_parallel_size > 1:
        graphs = "NONE"
    return Compilation(mode=mode, graphs=graphs, breakable=breakable, sizes=sizes, max_size=largest)


def _breakable(args: EngineArgs, names: set[str], release: Release) -> bool:
    if not release.has("breakable_graphs"):
        return False
    default = any(names & group for feature, group in _BREAKABLE if release.has(feature))
    return bool(switch(args, "VLLM_USE_BREAKABLE_CUDAGRAPH", default))


def _without_compilation(graphs: str, can_split: bool, release: Release) -> str:
    """Piecewise graphs need split graphs: `_normalize_piecewise_cudagraph_mode`, config/vllm.py (0.30.0)."""
    if can_split or graphs not in ("PIECEWISE", "FULL_AND_PIECEWISE"):
        return graphs
    if graphs == "FULL_AND_PIECEWISE" and release.has("without_piecewise_falls_to_full_decode"):
        return "FULL_DECODE_ONLY"
    return "NONE"


def has_full(graphs: str) -> bool:
    """The mode captures whole batches, attention included."""
    return graphs in ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


# -- capture sizes -------------------------------------------------------------------------------------------


def resolve_capture_sizes(
    args: EngineArgs, compilation: Compilation, device: Device, release: Release, *, tokens: int, seqs: int,
    speculation: Speculation,
) -> tuple[int, ...]:  # fmt: skip
    """`VllmConfig._set_cudagraph_sizes`, config/vllm.py:1739-1850 (0.26.0): token counts, ascending; ()
    without graphs.
    """
    if compilation.graphs == "NONE" or args.enforce_eager:
        return ()
    largest, uniform = compilation.max_size, set[int]()
    if largest is None:
        sm10x = device.vendor == "nvidia" and device.compute_capability[0] == 10
        ceiling = 1024 if sm10x and release.has("graph_ceiling_1024_sm10x") else 512
        query = 1 + speculation.num_tokens
        largest = min(seqs * query * 2, ceiling)
        if query > 1 and release.has("sizes_of_uniform_decode"):
            tiers = [(query, seqs)] if not speculation.dynamic else _tiers(speculation, seqs)
            uniform = {
                n * q for q, most in tiers for n in _request_counts(min(most, ceiling)) if n * q <= largest
            }
        elif query == 1 and seqs <= largest and release.has("size_of_max_num_seqs"):
            uniform = {seqs}
    largest = min(tokens, largest)
    if largest < 1:
        raise refuse("Maximum cudagraph size should be greater than or equal to 1 when using cuda graph.")
    if compilation.sizes is not None:
        if not compilation.sizes:
            raise refuse("cudagraph_capture_sizes should contain at least one element when using cuda graph.")
        sizes = sorted({s for s in compilation.sizes if s <= tokens})
    else:
        sizes = sorted(_default_sizes(args, largest, tokens, release) | {s for s in uniform if s <= tokens})
    tp = args.tensor_parallel_size
    if tp > 1 and pass_config(args).get("enable_sp") and release.has("sequence_parallel_pass"):
        sizes = [s for s in sizes if s % tp == 0]
    last = sizes[-1] if sizes else 0
    if compilation.sizes is not None and compilation.max_size not in (None, last):
        raise refuse(
            f"customized max_cudagraph_capture_size(={compilation.max_size}) should be consistent with the "
            f"max value of cudagraph_capture_sizes(={last})"
        )
    return tuple(sizes)


def _default_sizes(args: EngineArgs, largest: int, tokens: int, release: Release) -> set[int]:
    if args.performance_mode == "interactivity":
        sizes = set(range(1, min(largest, 32) + 1))
    else:
        sizes = {s for s in (1, 2, 4) if s <= largest}
    sizes |= set(range(8, min(largest + 1, 256), 8)) | set(range(256, largest + 1, 16))
    if tokens <= largest and release.has("size_of_token_limit"):
        sizes.add(tokens)
    return sizes


def _request_counts(most: int) -> set[int]:
    """Numbers of decoding requests that get a graph of their own (0.29.0: request_counts)."""
    small = {n for n in (1, 2, 4) if n <= most}
    return small | set(range(8, min(most + 1, 256), 8)) | set(range(256, most + 1, 16)) | {most}


def _tiers(speculation: Speculation, seqs: int) -> list[tuple[int, int]]:
    """(tokens a request, most requests) of a dynamic speculation schedule of [first, last batch size, tokens]
    entries.

    `build_dynamic_sd_schedule_lookup`, v1/spec_decode/dynamic/utils.py (0.29.0): gaps keep the entry before,
    the tail the last one.
    """
    schedule = speculation.values.get("num_speculative_tokens_per_batch_size")
    if not isinstance(schedule, (list, tuple)) or not all(
        isinstance(e, (list, tuple)) and len(e) == 3 and all(type(v) is int and v >= 0 for v in e)
        for e in schedule
    ):
        raise InputError(
            "--speculative-config: num_speculative_tokens_per_batch_size must hold [first, last, tokens] "
            "lists"
        )
    entries = sorted(tuple(e) for e in schedule)
    ends = [first - 1 for first, _, _ in entries[1:]] + [seqs]
    widest: dict[int, int] = {}
    for (_, _, count), end in zip(entries, ends, strict=True):
        if end >= 1:
            widest[min(count, speculation.num_tokens) + 1] = min(end, seqs)
    return list(widest.items())
