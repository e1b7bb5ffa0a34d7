"""What plans say in words: verdicts, reasons, components, layouts."""

from __future__ import annotations

from vllm_capacity.answer import Plan, RefusedPlan, Status
from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Component
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.units import GIB, MIB

HEADLINES = {
    Status.STARTS: "It starts",
    Status.DOES_NOT_START: "It does not start",
    Status.TOO_CLOSE: "Too close to call",
}
SYMBOLS = {Status.STARTS: "✓", Status.DOES_NOT_START: "✗", Status.TOO_CLOSE: "≈"}

REASONS = {
    Reason.FREE_BELOW_REQUESTED: "less memory is free at start-up than vLLM asks for",
    Reason.LOAD_PEAK: "the weights do not fit while they are loaded",
    Reason.NO_KV_MEMORY: "nothing is left for the KV cache",
    Reason.ONE_REQUEST_DOES_NOT_FIT: "the KV cache does not hold one request of the longest length",
    Reason.MINIMAL_KV_PROFILING: "the small KV cache of its graph profiling does not fit",
    Reason.GRAPH_CAPTURE: "memory runs out while CUDA graphs are captured",
    Reason.SAMPLER_WARMUP: "memory runs out when the sampler is warmed up",
    Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS: "fewer state blocks fit than --max-num-seqs needs",
    Reason.INVALID_LAYOUT: "the model cannot be split this way",
    Reason.UNSUPPORTED_BY_RELEASE: "this release of vLLM does not run it",
}

MEANINGS = {
    Component.WEIGHTS: "the model's parameters as loaded, with what PyTorch rounds up",
    Component.KV_CACHE: "keys, values and states of running requests",
    Component.ACTIVATION: "working memory of one step at its peak",
    Component.WORKSPACE: "scratch buffers that kernels keep",
    Component.FLASHINFER: "FlashInfer's workspace",
    Component.NCCL: "communication between GPUs",
    Component.CUSTOM_ALL_REDUCE: "vLLM's own all-reduce, symmetric memory",
    Component.CUDA_GRAPHS: "captured CUDA graphs",
    Component.RUNNER_BUFFERS: "batch inputs, block tables, sampler state",
    Component.CUDA_CONTEXT: "the driver's context and loaded kernels",
    Component.LORA: "adapters",
    Component.ENCODER: "cache of encoded images and audio",
    Component.SPECULATIVE: "draft model and its state",
    Component.OFFLOAD: "buffers for what is kept in host memory",
    Component.UNEXPLAINED: "what recorded runs show beyond every known term",
}


def gpus(plan: Plan | RefusedPlan) -> str:
    """'2 × H100-80GB'."""
    count = plan.tp if isinstance(plan, RefusedPlan) else plan.engine.parallel.num_gpus
    return f"{count} × {plan.device.name}"


def layout(parallel: ParallelConfig) -> str:
    """'tensor parallel 2, pipeline parallel 4'; 'one GPU' where nothing is split."""
    sizes = [
        (parallel.tp, "tensor parallel"),
        (parallel.pp, "pipeline parallel"),
        (parallel.dp, "data parallel"),
        (parallel.dcp, "decode context parallel"),
        (parallel.pcp, "prefill context parallel"),
    ]
    parts = [f"{name} {size}" for size, name in sizes if size > 1]
    return ", ".join([*parts, *(["expert parallel"] if parallel.expert_parallel else [])]) or "one GPU"


def short_layout(plan: Plan | RefusedPlan) -> str:
    """'tp 2', 'tp 2 pp 4': enough to tell the plans of one page apart."""
    if isinstance(plan, RefusedPlan):
        return f"tp {plan.tp}"
    parallel = plan.engine.parallel
    others = [("pp", parallel.pp), ("dp", parallel.dp), ("dcp", parallel.dcp)]
    return " ".join([f"tp {parallel.tp}", *(f"{name} {size}" for name, size in others if size > 1)])


def sentence(plan: Plan | RefusedPlan) -> str:
    """The verdict and what it means, in one or two sentences."""
    verdict = plan.verdict
    what = f"{plan.config.name} on {gpus(plan)}"
    vllm = f"vLLM {plan.release.version}"
    reason = REASONS[verdict.reason] if verdict.reason else ""
    if verdict.status is Status.DOES_NOT_START or isinstance(plan, RefusedPlan):
        return f"{vllm} does not start {what}: {reason}."
    if verdict.status is Status.TOO_CLOSE and verdict.reason is None:
        return f"{vllm} is not promised to start {what}: nothing like it was ever measured."
    kv = plan.kv_cache
    if verdict.status is Status.TOO_CLOSE:
        return (
            f"{vllm} may or may not start {what}: what is estimated here lies on both sides of a limit. "
            f"If it fails, then because {reason}."
        )
    if not kv.stages:
        return f"{vllm} starts {what}. This model keeps no KV cache."
    engines = plan.engine.parallel.dp
    if engines > 1:
        return (
            f"{vllm} starts {what}: {engines:,} engines, each with a KV cache of {kv.size_tokens:,} tokens, "
            f"{kv.max_concurrency:,.1f} requests of {kv.max_model_len:,} tokens at once."
        )
    return (
        f"{vllm} starts {what} and keeps a KV cache of {kv.size_tokens:,} tokens: {kv.max_concurrency:,.1f} requests of "
        f"{kv.max_model_len:,} tokens at once."
    )


def concurrency_sentence(plan: Plan) -> str:
    """The answer to --concurrency; empty where it was not asked."""
    asked = plan.verdict.concurrency
    if asked is None:
        return ""
    fits = "fit at once" if asked.fits else "do not fit at once"
    least = (
        f"the least --gpu-memory-utilization that does it is {asked.min_gpu_memory_utilization:.4f}"
        if asked.min_gpu_memory_utilization is not None
        else "no legal --gpu-memory-utilization does it"
    )
    return f"{asked.asked:,} requests of {plan.kv_cache.max_model_len:,} tokens {fits}; {least}."


def between(low: int, high: int) -> str:
    """Two ends of an interval in the larger one's unit; 'exact' where they are one."""
    if low == high:
        return "exact"
    if high >= GIB / 10:
        return f"{low / GIB:,.2f} to {high / GIB:,.2f} GiB"
    return f"{low / MIB:,.1f} to {high / MIB:,.1f} MiB"
