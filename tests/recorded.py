"""Recorded runs as test cases: facts from tests/data/runs, contexts built from them, and a table of
predictions.

`python tests/recorded.py` prints predicted, measured and error per run and quantity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hand_built import HAND_BUILT
from vllm_capacity.architecture.modules import Architecture
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.context import RankContext
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs, EngineConfig
from vllm_capacity.errors import CapacityError, InputError
from vllm_capacity.inputs.config_json import normalise
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.inputs.models import load_model
from vllm_capacity.parallel import ParallelConfig, stage_bounds
from vllm_capacity.releases import get_release
from vllm_capacity.releases.release import Release
from vllm_capacity.units import GIB

RUNS = Path(__file__).parent / "data" / "runs"

H100 = Device(
    name="NVIDIA H100 80GB HBM3",
    cuda_total_bytes=85029158912,
    nvml_total_bytes=85520809984,
    compute_capability=(9, 0),
    num_sms=132,
    nvlink=True,
)
H200 = Device(
    name="NVIDIA H200",
    cuda_total_bytes=150109880320,
    nvml_total_bytes=150754820096,
    compute_capability=(9, 0),
    num_sms=132,
    nvlink=True,
)
DEVICES = {"H100": H100, "H200": H200}


@dataclass(frozen=True)
class Run:
    """One recorded start-up."""

    name: str
    facts: dict[str, Any]

    @property
    def measured(self) -> dict[str, Any]:
        return self.facts["measured"]

    @property
    def args(self) -> dict[str, Any]:
        return self.facts["args"]

    @property
    def tp(self) -> int:
        return self.args.get("tensor_parallel_size", 1)

    @property
    def pp(self) -> int:
        return self.args.get("pipeline_parallel_size", 1)

    def config(self) -> ModelConfig:
        """The model's config, with the quantisation block of the run's checkpoint."""
        return _config(self.name)

    def context(self, pp_rank: int = 0, **engine_changes: Any) -> RankContext:
        """The rank's context; `engine_changes` replace fields of the engine config."""
        config = self.config()
        release = get_release(self.facts["release"])
        architecture = _architecture(config, release)
        engine = replace(_engine(self, config, architecture), **engine_changes)
        first, last = stage_bounds(architecture.num_hidden_layers, engine.parallel)[pp_rank]
        layers = tuple(
            (group, count)
            for group in architecture.layers
            if (count := sum(first <= i < last for i in group.indices))
        )
        return RankContext(
            config=config,
            architecture=architecture,
            engine=engine,
            release=release,
            device=DEVICES[self.facts["device"]],
            tp_rank=0,
            pp_rank=pp_rank,
            layers=layers,
        )


@cache
def runs() -> tuple[Run, ...]:
    """All recorded runs, in file order."""
    found = [
        json.loads(line) for path in sorted(RUNS.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]
    return tuple(Run(facts["name"], facts) for facts in found)


def run_named(name: str) -> Run:
    return next(run for run in runs() if run.name == name)


@cache
def _config(name: str) -> ModelConfig:
    facts = run_named(name).facts
    if "config" in facts:
        return normalise(facts["model"], facts["config"], source=facts.get("url", "recorded run"))
    config = load_model(facts["config_of"], hf_overrides=facts.get("config_changes"), offline=True)
    block = facts.get("quantization")
    return replace(config, quantization=block) if block else config


def _architecture(config: ModelConfig, release: Release) -> Architecture:
    try:
        return build_architecture(config, release)
    except InputError:
        if config.name not in HAND_BUILT:
            raise
        return HAND_BUILT[config.name]


def _engine(run: Run, config: ModelConfig, architecture: Architecture) -> EngineConfig:
    """Engine config as the run had it, without going through vLLM's defaults."""
    args, facts = run.args, run.facts
    eager = bool(args.get("enforce_eager"))
    dtype = args.get("dtype") or architecture.dtype
    quantization = args.get("quantization") or (config.quantization or {}).get("quant_method")
    kv_cache_dtype = args.get("kv_cache_dtype", "auto")
    sizes = (args.get("compilation_config") or {}).get("cudagraph_capture_sizes") or facts.get(
        "capture_sizes"
    )
    sizes = () if eager else tuple(sizes or default_sizes(args["max_num_seqs"]))
    tp, pp = run.tp, run.pp
    return EngineConfig(
        parallel=ParallelConfig(tp=tp, pp=pp),
        usage=facts["usage"],
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        kv_dtype=dtype if kv_cache_dtype == "auto" else "uint8",
        max_model_len=args["max_model_len"],
        max_model_len_auto=False,
        gpu_memory_utilization=args["gpu_memory_utilization"],
        kv_cache_memory_bytes=None,
        max_num_batched_tokens=args["max_num_batched_tokens"],
        max_num_seqs=args["max_num_seqs"],
        block_size=facts.get("block_size", 16),
        enforce_eager=eager,
        cudagraph_mode="NONE" if eager else "FULL_AND_PIECEWISE",
        cudagraph_capture_sizes=sizes,
        compiled=not eager,
        attention_backends=("FLASH_ATTN_MLA" if architecture.use_mla else "FLASH_ATTN",),
        model_runner=facts["runner"],
        async_scheduling=True,
        enable_prefix_caching=False,
        enable_chunked_prefill=True,
        hybrid_kv_cache_manager_disabled=False,
        num_gpu_blocks_override=None,
        max_in_flight_tokens=2 * args["max_num_batched_tokens"],
        mamba_cache_mode="none",
        quantization=quantization,
        num_speculative_tokens=0,
        args=EngineArgs(
            tensor_parallel_size=tp, pipeline_parallel_size=pp, environment=facts.get("environment", {})
        ),
    )


def default_sizes(sequences: int) -> tuple[int, ...]:
    """Default capture sizes (config/vllm.py, 0.26.0) for at most `sequences` sequences."""
    most = min(2 * sequences, 512)
    return (1, 2, 4, *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16))


def ranks(run: Run) -> Iterator[tuple[int, str, dict[str, float]]]:
    """Per pipeline stage with figures: stage, label, measured figures in GiB."""
    measured = run.measured
    if "ranks" in measured:
        rank = measured["ranks"][0]
        yield (
            0,
            run.name,
            {
                "activation": rank["peak_activation"] / GIB,
                "non_torch": rank["non_torch"] / GIB,
                "graph_estimate": rank["cudagraph_estimate"] / GIB,
                "available_kv": rank["available_kv"] / GIB,
                "weights": rank["model_memory_usage"] / GIB,
                "before_snapshot": (rank["init_total"] - rank["init_free"]) / GIB,
            },
        )
        return
    flat = {
        "activation": measured.get("activation_peak_gib"),
        "non_torch": measured.get("non_torch_gib"),
        "graph_estimate": measured.get("cudagraph_estimated_gib"),
        "available_kv": measured.get("available_kv_gib"),
        "weights": measured.get("weights_gib"),
        "graphs": measured.get("cudagraph_pool_actual_gib"),
        "before_snapshot": 79.19 - measured["free_at_start_gib"] if "free_at_start_gib" in measured else None,
    }
    stages = measured.get("per_rank") or {}
    yield 0, run.name, {k: v for k, v in flat.items() if v is not None}
    for stage in range(1, run.pp):
        figures = stages.get(f"PP{stage}")
        if figures:
            yield (
                stage,
                f"{run.name} PP{stage}",
                {k: figures[k] for k in ("weights", "activation") if k in figures},
            )


def predictions(run: Run, stage: int) -> dict[str, float]:
    """Predicted figures of a stage in GiB, under the names that `ranks` uses."""
    from vllm_capacity.activations.peak import activation_peak
    from vllm_capacity.budget import Account, rank_budget
    from vllm_capacity.overheads import graph_estimate, overhead_terms
    from vllm_capacity.weights.rank import weight_terms

    ctx = run.context(stage)
    peak = activation_peak(ctx)
    terms = [*overhead_terms(ctx), *peak.terms]
    estimate = graph_estimate(ctx)
    weighs = bool(ctx.architecture.outside)
    try:
        terms += weight_terms(ctx) if weighs else ()
    except InputError:  # quantisation that is not modelled yet
        weighs = False
    budget = rank_budget(
        terms,
        ctx.release,
        cuda_total_bytes=ctx.device.cuda_total_bytes,
        used_by_others_bytes=0,
        utilization=ctx.engine.gpu_memory_utilization,
        kv_cache_memory_bytes=None,
        graph_estimate=estimate,
        graph_estimate_enabled=ctx.release.has("graph_estimate_subtracted"),
    )
    found = {
        "activation": peak.n_bytes,
        "non_torch": budget.totals[Account.NON_TORCH],
        "graph_estimate": budget.graph_estimate_bytes,
        "graphs": budget.totals[Account.CUDA_GRAPHS],
        "before_snapshot": ctx.device.cuda_total_bytes - budget.free_bytes,
    }
    if weighs:
        found |= {"weights": budget.totals[Account.WEIGHTS], "available_kv": budget.available_kv_bytes}
    return {name: n_bytes / GIB for name, n_bytes in found.items()}


def table() -> Iterator[tuple[str, str, float, float]]:
    """(run, quantity, predicted GiB, measured GiB) for every figure that has a prediction."""
    for run in runs():
        try:
            run.context()
        except CapacityError as error:
            print(f"{run.name}: {error}")
            continue
        for stage, label, figures in ranks(run):
            for quantity, predicted in predictions(run, stage).items():
                if quantity in figures:
                    yield label, quantity, predicted, figures[quantity]


def main() -> None:
    for label, quantity, predicted, measured in table():
        error = predicted - measured
        print(
            f"{label:60.60} {quantity:16} {predicted:9.4f} {measured:9.4f} {error:+8.4f} "
            f"{error / measured if measured else 0:+8.2%}"
        )


if __name__ == "__main__":
    main()
