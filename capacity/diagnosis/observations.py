"""What a log shows beside the failure: memory left unused, figures that mislead, other users of the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vllm_capacity.diagnosis.causes import Observation
from vllm_capacity.diagnosis.findings import came_up, survived_failures
from vllm_capacity.diagnosis.rebuild import Rebuilt, logged_free_gib
from vllm_capacity.kv_cache.specs import MLAAttentionSpec, UniformTypeKVCacheSpecs
from vllm_capacity.logs.record import Evidence, StartRecord
from vllm_capacity.units import GIB, gib

CONTEXT_GIB = 2.5
"""More than this in use before vLLM looks is not its own context and communicators (measured: 0.5 to 2.3
GiB)."""
GRAPH_GAP_GIB = 1.0
LEFTOVER_GIB = 1.5


def observations(
    start: StartRecord, earlier: Sequence[StartRecord], rebuilt: Rebuilt | None
) -> tuple[Observation, ...]:
    """In the order of vLLM's start."""
    found: list[Observation] = []
    for look in _LOOKS:
        found += look(start, rebuilt)
    found += _upgrade(start, earlier)
    return tuple(found)


def _lines(start: StartRecord, *fields: str) -> tuple[Evidence, ...]:
    unique = {
        start.evidence[field].line: start.evidence[field] for field in fields if field in start.evidence
    }
    return tuple(unique[line] for line in sorted(unique))


def _shared_gpu(start: StartRecord, rebuilt: Rebuilt | None) -> Iterator[Observation]:
    free, total = logged_free_gib(start), start.largest("cuda_total_gib")
    if total is None:
        total = next(
            (float(f.values["cuda_total_gib"]) for f in start.failures if "cuda_total_gib" in f.values), None
        )
    if free is None or total is None:
        return
    others = rebuilt.used_by_others_bytes / GIB if rebuilt else max(total - free - CONTEXT_GIB, 0.0)
    if others > 0.5:
        yield Observation(
            "shared GPU",
            f"{free:g} of {total:g} GiB were free at the start: other processes hold about {others:.2f} "
            "GiB. Each engine's share is "
            "of the total, and CUDA context, communicators and part of the graphs come on top of it, so "
            "shares of two engines must "
            "sum to clearly less than 1.",
            _lines(start, "free_gib"),
        )


def _loader(start: StartRecord, rebuilt: Rebuilt | None) -> Iterator[Observation]:
    consumed, weights = start.largest("consumed_gib"), start.largest("weights_gib")
    if consumed is not None and weights is not None and consumed - weights > LEFTOVER_GIB:
        yield Observation(
            "loader leftovers",
            f"After profiling {consumed:g} GiB are consumed, {consumed - weights:.2f} GiB more than "
            f"the {weights:g} GiB of weights: "
            "runner buffers and kernels are a part of it; the rest are buffers the loader left, "
            "fragmentation or, on GPUs that share "
            "memory with the host, page cache.",
            _lines(start, "consumed_gib", "weights_gib"),
        )


def _offload(start: StartRecord, rebuilt: Rebuilt | None) -> Iterator[Observation]:
    offload = start.non_default.get("cpu_offload_gb")
    if isinstance(offload, (int, float)) and offload:
        yield Observation(
            "CPU offload",
            f"--cpu-offload-gb {offload:g} moves weights only: one request of the full length must still "
            "fit into KV cache on the GPU.",
            _lines(start, "non_default"),
        )


def _encoder(start: StartRecord, rebuilt: Rebuilt | None) -> Iterator[Observation]:
    tokens, items = start.count("encoder_tokens"), start.count("encoder_items")
    if tokens is None:
        return
    modality = start.text("encoder_modality") or "multimodal"
    yield Observation(
        "multimodal profiling",
        f"The activation peak was measured with {items or 0} {modality} item(s) of the largest size and an "
        f"encoder budget of {tokens:,} "
        f"tokens. Real inputs are often smaller: --limit-mm-per-prompt '{{\"{modality}\": 0}}' leaves a "
        "modality out, "
        "--mm-processor-kwargs can cap its size, --language-model-only drops the encoder.",
        _lines(start, "encoder_tokens"),
    )


def _graph_estimate(start: StartRecord, rebuilt: Rebuilt | None) -> Iterator[Observation]:
    estimate = start.largest("graph_estimate_gib")
    actual = start.largest("graph_actual_gib")
    if actual is None:
        actual = start.largest("graph_capture_gib")
    if estimate is None or actual is None:
        return
    subtracted = (
        rebuilt.release.has("graph_estimate_subtracted")
        if rebuilt
        else start.smallest("equivalent_gpu_memory_utilization") is not None
    )
    if estimate - actual > GRAPH_GAP_GIB and subtracted:
        utilization, total = start.largest("gpu_memory_utilization"), start.largest("cuda_total_gib")
        share = ""
        if utilization and total:
            larger = utilization + (estimate - actual) / total
            share = f" or raise --gpu-memory-utilization from {utilization:g} to {larger:.3f}"
        yield Observation(
            "graph estimate",
            f"CUDA graphs were estimated at {estimate:g} GiB and took {actual:g}: {estimate - actual:.2f} "
            "GiB of KV cache were held back. "
            f"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 gives them to the KV cache{share}; the {actual:g} "
            "GiB stay needed.",
            _lines(start, "graph_estimate_gib", "graph_actual_gib", "graph_capture_gib"),
        )
    elif actual - estimate > GRAPH_GAP_GIB:
        yield Observation(
            "graph estimate",
            f"CUDA graphs were estimated at {estimate:g} GiB but took {actual:g}: {actual - estimate:.2f} "
            "GiB came out of memory "
            "outside the requested share.",
            _lines(start, "graph_estimate_gib", "graph_actual_gib"),
        )


def _tokens(start: StartRecord, rebuilt: Rebuilt | None) -> Iterator[Observation]:
    tokens, concurrency, length = (
        start.count("kv_cache_size_tokens"),
        start.smallest("max_concurrency"),
        start.count("concurrency_max_model_len"),
    )
    if not (tokens and concurrency and length):
        return
    product = concurrency * length
    if abs(tokens - product) > 0.02 * product + 0.01 * length:
        yield Observation(
            "tokens and concurrency disagree",
            f"{tokens:,} tokens, but {concurrency:g} x {length:,} = {product:,.0f}. For models with several "
            "kinds of layers, releases up to "
            "0.20.0 print blocks / groups x block size, which undercounts; the concurrency is right.",
            _lines(start, "kv_cache_size_tokens", "max_concurrency"),
        )


def _padding(start: StartRecord, rebuilt: Rebuilt | None) -> Iterator[Observation]:
    waste = start.largest("padding_waste_percent")
    if waste is not None and waste > 20:
        yield Observation(
            "padding layers",
            f"Uneven layer groups waste up to {waste:g} % of the KV cache.",
            _lines(start, "padding_waste_percent"),
        )


def _hybrid(start: StartRecord, rebuilt: Rebuilt | None) -> Iterator[Observation]:
    if start.text("hybrid_disabled"):
        yield Observation(
            "hybrid KV cache manager off",
            "Every layer is allocated for the full length, windows and compressed layers too: one request "
            "needs far more memory. A KV "
            "connector (--kv-transfer-config) or --disable-hybrid-kv-cache-manager does that.",
            _lines(start, "hybrid_disabled"),
        )


def _latent(start: StartRecord, rebuilt: Rebuilt | None) -> Iterator[Observation]:
    if rebuilt is None or rebuilt.plan.engine.parallel.tp == 1:
        return
    parallel = rebuilt.plan.engine.parallel
    specs = [group.spec for group in rebuilt.plan.kv_cache.groups]
    flat = [
        s
        for spec in specs
        for s in ([run.spec for run in spec.runs] if isinstance(spec, UniformTypeKVCacheSpecs) else [spec])
    ]
    if flat and all(isinstance(spec, MLAAttentionSpec) for spec in flat) and parallel.dcp < parallel.tp:
        yield Observation(
            "latent KV cache",
            f"This model's KV cache is one latent vector per token, held whole by each of the {parallel.tp} "
            "tensor-parallel ranks: more "
            f"GPUs do not add tokens. --decode-context-parallel-size {parallel.tp} or data parallel "
            "attention multiplies them.",
        )


def _unused(start: StartRecord, rebuilt: Rebuilt | None) -> Iterator[Observation]:
    suggested, in_use = start.smallest("kv_to_gpu_gib"), start.smallest("kv_in_use_gib")
    if suggested is None:
        n_bytes = start.smallest("kv_to_gpu_bytes")
        suggested = n_bytes / GIB if n_bytes is not None else None
    if in_use is None:
        in_use = start.smallest("available_kv_gib")
    if suggested is not None and in_use is not None and suggested - in_use > 2.0:
        yield Observation(
            "memory left unused",
            f"The KV cache takes {in_use:g} GiB; by vLLM's own figures {suggested:g} GiB would fill the GPU.",
            _lines(start, "kv_to_gpu_bytes", "kv_in_use_gib"),
        )


def _survived(start: StartRecord, rebuilt: Rebuilt | None) -> Iterator[Observation]:
    if not came_up(start):
        return
    for failure in survived_failures(start)[:2]:
        yield Observation(
            "an error that the start outlived",
            "An allocation failed and was handled (autotuning does that); nothing follows from it.",
            (failure.evidence,),
        )


def _upgrade(start: StartRecord, earlier: Sequence[StartRecord]) -> Iterator[Observation]:
    """Two starts of one model by two releases in one log."""
    for other in reversed(earlier):
        if other.model == start.model and other.version and start.version and other.version != start.version:
            rows = []
            for field, words in (
                ("available_kv_gib", "available GiB"),
                ("kv_cache_size_tokens", "tokens"),
                ("max_concurrency", "concurrency"),
            ):
                before, after = other.smallest(field), start.smallest(field)
                if before is not None and after is not None:
                    rows.append(f"{words} {before:,g} -> {after:,g}")
            if rows:
                yield Observation(
                    "another release",
                    f"vLLM {other.version} -> {start.version}: {', '.join(rows)}. Tokens are comparable "
                    "only where both releases print them "
                    "alike; compare GiB, and the need of one request.",
                    _lines(other, "available_kv_gib", "kv_cache_size_tokens")
                    + _lines(start, "available_kv_gib", "kv_cache_size_tokens"),
                )
            return


_LOOKS: tuple[Callable[[StartRecord, Rebuilt | None], Iterator[Observation]], ...] = (
    _shared_gpu,
    _loader,
    _offload,
    _encoder,
    _graph_estimate,
    _tokens,
    _padding,
    _hybrid,
    _latent,
    _unused,
    _survived,
)


def missing_lines(start: StartRecord) -> Iterator[str]:
    """What the log leaves out, and what would show it."""
    if start.largest("activation_peak_gib") is None and start.largest("available_kv_gib") is not None:
        yield (
            "the profile's parts (activation peak, non-torch): vLLM prints them at DEBUG level only; "
            "start with "
            "VLLM_LOGGING_LEVEL=DEBUG"
        )
    if not start.non_default and not start.engine_config and not start.command:
        yield (
            "the engine's arguments (`non-default args`, `Initializing a V1 LLM engine`): the log begins "
            "after them"
        )
    for failure in start.failures:
        if failure.kind.value == "out_of_memory" and failure.phase.value == "unknown":
            yield (
                "the step that ran out of memory: neither a traceback nor earlier lines of the start are in "
                "the log"
            )
            break


def logged_budget(start: StartRecord) -> str | None:
    """The budget as far as the log states it, in one sentence."""
    requested, available = start.smallest("requested_gib"), start.smallest("available_kv_gib")
    weights = "profiled_weights_gib" if start.largest("profiled_weights_gib") is not None else "weights_gib"
    parts = [
        f"{words} {value:g}"
        for field, words in (
            (weights, "weights"),
            ("consumed_gib", "consumed"),
            ("activation_peak_gib", "activation peak"),
            ("non_torch_gib", "non-torch"),
            ("graph_estimate_gib", "graph estimate"),
        )
        if (value := start.largest(field)) is not None
    ]
    if available is None and not parts:
        return None
    head = f"requested {requested:g} GiB: " if requested is not None else ""
    tail = [f"{gib(available * GIB)} for the KV cache"] if available is not None else []
    return head + " -> ".join([", ".join(parts), *tail] if parts else tail)
