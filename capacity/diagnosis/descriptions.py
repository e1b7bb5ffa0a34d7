"""What each cause means in words and figures: component, headline, explanation, bytes missing."""

from __future__ import annotations

from collections.abc import Callable

from vllm_capacity.diagnosis.causes import Cause, RuntimeCause
from vllm_capacity.errors import Reason
from vllm_capacity.ledger import Component
from vllm_capacity.logs.failures import PHASE_WORDS, FailureKind, Phase
from vllm_capacity.logs.record import Failure, StartRecord
from vllm_capacity.units import GIB, MIB, gib

Described = tuple[Component | None, str, str, int | None]


def _number(failure: Failure, name: str) -> float | None:
    value = failure.values.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _free_below(start: StartRecord, failure: Failure) -> Described:
    free, total, requested, share = (
        _number(failure, n) or 0.0
        for n in ("free_gib", "cuda_total_gib", "requested_gib", "gpu_memory_utilization")
    )
    missing = max(round((requested - free) * GIB), 0)
    return (
        None,
        f"{free:g} of {total:g} GiB are free at the start, --gpu-memory-utilization {share:g} asks "
        f"for {requested:g} GiB: "
        f"{gib(missing)} too few",
        f"The share is of the total, and it must be free when vLLM looks. {total - free:.2f} GiB are in use "
        "before vLLM takes "
        "anything: its own CUDA context and communicators, and whatever else runs on this GPU.",
        missing,
    )


def _no_kv(start: StartRecord, failure: Failure) -> Described:
    if failure.kind is FailureKind.OUT_OF_MEMORY:
        return out_of_memory(start, failure)
    parts = budget_parts(start)
    available = start.smallest("available_kv_gib")
    if available is None:
        available = _number(failure, "available_kv_gib")
    requested = start.smallest("requested_gib")
    component = max(parts, key=lambda part: parts[part], default=Component.WEIGHTS)
    if "mm_reserved_gib" in failure.values:
        component = Component.ENCODER
    listed = " + ".join(f"{_WORDS[part]} {value:g}" for part, value in parts.items())
    headline = "Nothing is left for the KV cache"
    if available is not None:
        headline += f": {available:g} GiB"
    if listed and requested is not None:
        headline += f"; {listed} against a requested {requested:g} GiB"
    elif listed:
        headline += f"; {listed} GiB come first"
    utilization = start.smallest("gpu_memory_utilization")
    explanation = (
        "The requested share has to hold weights, the activation peak, non-torch memory and (from 0.20) the "
        "CUDA graph "
        "estimate before a single KV block; a shorter --max-model-len changes none of them."
    )
    weights = parts.get(Component.WEIGHTS)
    if weights is not None and requested is not None and weights > requested:
        explanation = (
            f"The weights alone ({weights:g} GiB) are more than the requested share ({requested:g} GiB). "
            + explanation
        )
        if utilization is not None and utilization < 0.8:
            explanation += (
                f" {utilization:g} is the share of everything vLLM may use, not of the KV cache: "
                "lowering it cannot help."
            )
    return component, headline, explanation, None if available is None else max(round(-available * GIB), 0)


_WORDS = {
    Component.WEIGHTS: "weights",
    Component.ACTIVATION: "activation peak",
    Component.NCCL: "non-torch",
    Component.CUDA_GRAPHS: "graph estimate",
}


def budget_parts(start: StartRecord) -> dict[Component, float]:
    """What the log says stands before the KV cache, in GiB."""
    weights = start.largest("profiled_weights_gib")
    if weights is None:
        weights = start.largest("weights_gib")
    parts = {
        Component.WEIGHTS: weights,
        Component.ACTIVATION: start.largest("activation_peak_gib"),
        Component.NCCL: start.largest("non_torch_gib"),
        Component.CUDA_GRAPHS: start.largest("graph_estimate_gib"),
    }
    return {component: value for component, value in parts.items() if value}


def _one_request(start: StartRecord, failure: Failure) -> Described:
    needed, available = _number(failure, "request_gib"), _number(failure, "available_kv_gib")
    if available is None:
        available = start.smallest("available_kv_gib")
    tokens, held = _number(failure, "max_model_len"), _number(failure, "kv_cache_size_tokens")
    who = f"One request of {tokens:,.0f} tokens" if tokens else "One request of max_model_len tokens"
    missing = None
    if needed is not None and available is not None:
        missing = max(round((needed - available) * GIB), 0)
        headline = (
            f"{who} needs {needed:g} GiB of KV cache, {available:g} GiB are there: {gib(missing)} too few"
        )
    elif held is not None:
        headline = f"{who} does not fit: the KV cache holds {held:,.0f} tokens"
    elif needed is not None:
        headline = f"{who} needs {needed:g} GiB of KV cache, more than there is"
    else:
        headline = f"{who} does not fit into the KV cache"
    explanation = (
        "vLLM starts only if one request of the full length fits; all figures are per GPU, never pooled "
        "over GPUs."
    )
    estimate = _number(failure, "estimated_max_model_len")
    if needed and tokens and estimate and available and estimate > 0:
        slope = (needed - available) / max(tokens - estimate, 1)
        fixed = needed - slope * tokens
        if fixed > 0.2 * needed:
            explanation += (
                f" Most of the need does not depend on the length: about {fixed:.2f} GiB per request are "
                "fixed (windows and "
                "states), so the longest length falls much faster than the memory."
            )
    if "max_model_len" not in start.non_default and start.non_default:
        explanation += " The length is the model's own maximum, since no --max-model-len was given."
    return Component.KV_CACHE, headline, explanation, missing


def _mamba(start: StartRecord, failure: Failure) -> Described:
    blocks, sequences = _number(failure, "mamba_blocks"), _number(failure, "max_num_seqs")
    sizes = f"{sequences:,.0f} sequences a batch" if sequences else "The batch's sequences"
    return (
        Component.KV_CACHE,
        f"{sizes} need a state block each, the KV cache has {blocks:,.0f}"
        if blocks
        else f"{sizes} need a state block each",
        "Each decoding sequence of a hybrid model holds one state block, and full CUDA graphs are captured "
        "for all of them.",
        None,
    )


def _invalid_layout(start: StartRecord, failure: Failure) -> Described:
    return (
        None,
        failure.evidence.text[:200],
        "The model cannot be split this way: heads, experts, quantisation blocks or GPUs do not divide.",
        None,
    )


def _unsupported(start: StartRecord, failure: Failure) -> Described:
    return (
        None,
        failure.evidence.text[:200],
        "This release has no implementation of the model's architecture.",
        None,
    )


def _workspace(start: StartRecord, failure: Failure) -> Described:
    needed, current = (
        _number(failure, "workspace_required_mib") or 0.0,
        _number(failure, "workspace_mib") or 0.0,
    )
    caller = failure.values.get("workspace_caller_text", "")
    return (
        Component.WORKSPACE,
        f"A request wanted a workspace of {needed:,.2f} MB, it was locked at {current:,.2f} MB ({caller})",
        "vLLM locks its shared workspace after graph capture. A step that needs more than any warm-up step "
        "did is an error, not "
        "an out-of-memory: no memory setting cures it. The batch that did it was larger than what warm-up "
        "ran.",
        round((needed - current) * MIB),
    )


def _nccl(start: StartRecord, failure: Failure) -> Described:
    share = start.largest("gpu_memory_utilization")
    return (
        Component.NCCL,
        "NCCL could not allocate its buffers",
        "Communicators are made before vLLM's budget starts, so they live in the memory that the requested "
        "share leaves out"
        + (f" ({1 - share:.0%} of the GPU at {share:g})" if share else "")
        + "; other processes on the same GPU take from the same rest.",
        None,
    )


def _host(start: StartRecord, failure: Failure) -> Described:
    offload = start.non_default.get("cpu_offload_gb")
    return (
        Component.OFFLOAD if offload else None,
        "The host ran out of memory, not the GPU",
        (
            f"--cpu-offload-gb {offload} pins that much per GPU, and loading holds the tensors a second "
            "time. "
            if offload
            else ""
        )
        + "The process was killed or could not allocate pinned or ordinary memory.",
        None,
    )


def _shared(start: StartRecord, failure: Failure) -> Described:
    need, free = _number(failure, "required_mib"), _number(failure, "free_mib")
    if need is not None and free is not None:
        headline = f"/dev/shm has {free:,.0f} MiB free, {need:,.0f} MiB are needed"
        return (
            None,
            headline,
            "Ranks exchange messages through shared memory; containers get 64 MiB by default.",
            round((need - free) * MIB),
        )
    return (
        None,
        "Shared memory (/dev/shm) is too small",
        "Ranks exchange messages through shared memory; containers get 64 MiB by default.",
        None,
    )


def _changed(start: StartRecord, failure: Failure) -> Described:
    before, now = _number(failure, "free_gib") or 0.0, _number(failure, "free_now_gib") or 0.0
    return (
        None,
        f"Free memory grew from {before:g} to {now:g} GiB while vLLM profiled",
        f"Another process gave back {now - before:.2f} GiB in between, so the profile's difference means "
        "nothing and vLLM stops.",
        None,
    )


_COMPONENT_OF_PHASE: dict[Phase, Component] = {
    Phase.INIT: Component.NCCL,
    Phase.LOAD: Component.WEIGHTS,
    Phase.REPACK: Component.WEIGHTS,
    Phase.PROFILE: Component.ACTIVATION,
    Phase.GRAPH_ESTIMATE: Component.CUDA_GRAPHS,
    Phase.MINIMAL_KV: Component.KV_CACHE,
    Phase.KV_ALLOCATION: Component.KV_CACHE,
    Phase.GRAPH_CAPTURE: Component.CUDA_GRAPHS,
    Phase.KERNEL_WARMUP: Component.WORKSPACE,
    Phase.SAMPLER_WARMUP: Component.ACTIVATION,
    Phase.REQUEST: Component.ACTIVATION,
}

_REQUEST_FRAMES: tuple[tuple[str, Component, str], ...] = (
    ("_get_prompt_logprobs_dict", Component.ACTIVATION, "prompt_logprobs"),
    ("compute_logprobs", Component.ACTIVATION, "logprobs"),
    ("gather_logprobs", Component.ACTIVATION, "logprobs"),
    ("add_lora_linear", Component.LORA, "a LoRA adapter"),
    ("add_shrink", Component.LORA, "a LoRA adapter"),
    ("_execute_mm_encoder", Component.ENCODER, "a multimodal input"),
    ("embed_multimodal", Component.ENCODER, "a multimodal input"),
    ("get_multimodal_embeddings", Component.ENCODER, "a multimodal input"),
    ("apply_top_k_top_p", Component.ACTIVATION, "sampling"),
)

_WHY: dict[Phase, str] = {
    Phase.LOAD: "The weights of this rank do not fit, whatever --gpu-memory-utilization or --max-model-len "
    "say.",
    Phase.REPACK: "The weights fit, but converting them needs both forms of a layer at once.",
    Phase.PROFILE: "Nothing of the KV cache exists yet: the peak is weights plus one batch of "
    "--max-num-batched-tokens tokens.",
    Phase.GRAPH_ESTIMATE: "Graphs are captured once to estimate them, before the KV cache is sized: "
    "--gpu-memory-utilization and "
    "--max-model-len change nothing here.",
    Phase.MINIMAL_KV: "A small KV cache is made to profile graphs, before the real one is sized: one block "
    "per sequence, and "
    "blocks of hybrid models are large. --gpu-memory-utilization and --max-model-len change nothing here.",
    Phase.KV_ALLOCATION: "The KV cache was sized from the profile; by now less is free than then.",
    Phase.GRAPH_CAPTURE: "The KV cache is allocated by now; graphs come out of what the requested share "
    "left over.",
    Phase.SAMPLER_WARMUP: "KV cache and graphs exist by now: the warm-up of --max-num-seqs rows of logits "
    "has to fit into what the "
    "requested share left over.",
    Phase.KERNEL_WARMUP: "KV cache and graphs exist by now: kernels are tuned and warmed up in what the "
    "requested share left over.",
}


def out_of_memory(start: StartRecord, failure: Failure) -> Described:
    tried, free, total = (
        _number(failure, name) for name in ("tried_bytes", "free_at_failure_bytes", "cuda_total_bytes")
    )
    component = _COMPONENT_OF_PHASE.get(failure.phase)
    index = _number(failure, "device_index")
    headline = (
        f"{'GPU' if index is None else f'GPU {index:.0f}'} ran out of memory {PHASE_WORDS[failure.phase]}"
    )
    details = []
    if tried is not None:
        details.append(f"{_size(tried)} wanted")
    if free is not None:
        details.append(f"{_size(free)} free")
    if details:
        headline += ": " + ", ".join(details) + (f" of {gib(total)}" if total else "")
    explanation = _WHY.get(failure.phase, "")
    if failure.phase is Phase.REQUEST:
        component, explanation = _request(start, failure)
    others = _number(failure, "other_processes_bytes")
    if others:
        explanation += f" Other processes hold {gib(others)} of this GPU."
    unused = _number(failure, "reserved_unallocated_bytes")
    if unused and tried and unused > tried:
        explanation += (
            f" PyTorch holds {_size(unused)} that it cannot hand out in one piece: fragmentation, which "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True avoids."
        )
    missing = None if tried is None or free is None else max(round(tried - free), 0)
    return component, headline, explanation.strip(), missing


def _request(start: StartRecord, failure: Failure) -> tuple[Component, str]:
    frames = set(failure.frames)
    for name, component, words in _REQUEST_FRAMES:
        if name in frames:
            return component, f"The allocation was for {words}, which the profile run does not cover."
    if start.non_default.get("enable_lora"):
        return (
            Component.LORA,
            "Adapters were active: their activations at full batch are not part of the profile run.",
        )
    when = (
        "It happened on the first requests: the first real batch uses kernels and buffers that the profile "
        "run did not."
        if start.running.lines <= 2
        else "The KV cache does not grow with traffic (it is allocated once); what grew is activations of a "
        "larger or different "
        "batch, or memory of another process."
    )
    return Component.ACTIVATION, when


def _size(n_bytes: float) -> str:
    return f"{n_bytes / MIB:,.2f} MiB" if n_bytes < GIB else gib(n_bytes)


def _engine_failed(start: StartRecord, failure: Failure) -> Described:
    return (
        None,
        f"The engine failed {PHASE_WORDS[start.phase]}, and no line of the log ties it to memory",
        "The first traceback of a worker, above this line, says why; if it is cut off, give the log from "
        "its beginning.",
        None,
    )


DESCRIBE: dict[Cause, Callable[[StartRecord, Failure], Described]] = {
    Reason.FREE_BELOW_REQUESTED: _free_below,
    Reason.NO_KV_MEMORY: _no_kv,
    Reason.ONE_REQUEST_DOES_NOT_FIT: _one_request,
    Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS: _mamba,
    Reason.INVALID_LAYOUT: _invalid_layout,
    Reason.UNSUPPORTED_BY_RELEASE: _unsupported,
    RuntimeCause.WORKSPACE_LOCKED: _workspace,
    RuntimeCause.NCCL_OUT_OF_MEMORY: _nccl,
    RuntimeCause.HOST_MEMORY: _host,
    RuntimeCause.SHARED_MEMORY: _shared,
    RuntimeCause.MEMORY_CHANGED: _changed,
    RuntimeCause.ENGINE_FAILED: _engine_failed,
}
