"""What vLLM's log says about memory, with everything that identifies the machine taken out."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable

from vllm_capacity.errors import Reason
from vllm_capacity.validate.record import Printed

_MEMORY = re.compile(
    r"GiB|KV cache|Maximum concurrency|CUDA graph|cudagraph|Graph capturing|WORKSPACE DEBUG|"
    r"attention backend|Model Runner|num_gpu_blocks|max_model_len|memory|OutOfMemory|all.?reduce|"
    r"padding layers|block size|MoE backend|quantization|NCCL version|NCCL INFO.*(?:alloc|Mem)",
    re.IGNORECASE,
)
_NOISE = re.compile(r"Traceback|^\s*File \"|it/s\]|Compile env factors|Traced files|autotun", re.IGNORECASE)
_PREFIX = re.compile(r"^\(?\w+(?:_\w+)* pid=\d+\)?\s*")
_PATH = re.compile(r"(?<![\w.])(?:file://)?(?:/[\w.@+~-]+){2,}")
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b|\[[0-9a-f:]{4,}\](?::\d+)?", re.IGNORECASE)
_GPU_ID = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]+", re.IGNORECASE)


def anonymous(text: str) -> str:
    """A line without absolute paths, network addresses, GPU identifiers and this host's name."""
    text = _PATH.sub(lambda match: ".../" + match[0].rsplit("/", 1)[-1], text)
    text = _GPU_ID.sub("<gpu>", _ADDRESS.sub("<address>", text))
    host = socket.gethostname()
    return text.replace(host, "<host>") if len(host) > 2 else text


def memory_lines(lines: Iterable[str], limit: int = 120) -> list[str]:
    """The log's lines about memory, anonymous, in order, without repetitions; the first half and the last
    half of `limit`.
    """
    kept: list[str] = []
    for line in lines:
        clean = anonymous(line.rstrip())[:600]
        if _MEMORY.search(clean) and not _NOISE.search(clean) and (not kept or kept[-1] != clean):
            kept.append(clean)
    return kept if len(kept) <= limit else kept[: limit // 2] + kept[-limit // 2 :]


_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
_AVAILABLE = re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")


def printed(lines: Iterable[str]) -> Printed:
    """The KV cache figures that vLLM printed; the smallest where several engines print."""
    text = "\n".join(lines)
    tokens = [int(m.replace(",", "")) for m in _TOKENS.findall(text)]
    concurrency = [float(m) for m in _CONCURRENCY.findall(text)]
    available = [float(m) for m in _AVAILABLE.findall(text)]
    return Printed(
        kv_cache_size_tokens=min(tokens, default=None),
        max_concurrency=min(concurrency, default=None),
        available_kv_gib=min(available, default=None),
        compile_cache_hit=_compile_cache_hit(text),
    )


_COMPILED = re.compile(r"Cache the graph of compile range|saved AOT compiled function|Compiling a graph for")
_LOADED = re.compile(r"Directly load (?:AOT compilation|the compiled graph|the \S+-th graph)")


def _compile_cache_hit(text: str) -> bool | None:
    """Whether a start was warm, from what vLLM's compilation prints; any graph that was compiled makes it cold.

    Source: compilation/backends.py, compilation/decorators.py (0.20.0 to 0.33.0).
    """
    if _COMPILED.search(text):
        return False
    return True if _LOADED.search(text) else None


_OOM = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|"
    r"Cuda failure 2 'out of memory'"
)
_SENTENCES: tuple[tuple[Reason, str], ...] = (
    (
        Reason.FREE_BELOW_REQUESTED,
        r"Free memory on device .* on startup is less than desired GPU memory utilization",
    ),
    (Reason.ONE_REQUEST_DOES_NOT_FIT, r"To serve at least one request with .* max seq len"),
    (Reason.NO_KV_MEMORY, r"No available memory for the cache blocks"),
    (Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS, r"max_num_seqs .* exceeds available Mamba cache blocks"),
    (
        Reason.INVALID_LAYOUT,
        r"must be divisible by tensor parallel size|is not divisible by|not divisible by "
        r"tensor parallel|World size .* is larger than",
    ),
    (
        Reason.UNSUPPORTED_BY_RELEASE,
        r"are not supported for now|Model architectures .* failed|is not supported by|"
        r"does not support",
    ),
)
_SENTENCES_COMPILED = tuple((reason, re.compile(pattern, re.DOTALL)) for reason, pattern in _SENTENCES)
_PHASE_REASONS = (
    ("load_model", Reason.LOAD_PEAK),
    ("sampler", Reason.SAMPLER_WARMUP),
    ("compile_or_warm_up_model", Reason.GRAPH_CAPTURE),
)


def refusal(text: str) -> Reason | None:
    """The reason if the text holds one of vLLM's own sentences of refusal."""
    for reason, pattern in _SENTENCES_COMPILED:
        if pattern.search(text):
            return reason
    return None


def is_oom(text: str) -> bool:
    """Whether the text says that the GPU ran out of memory."""
    return bool(_OOM.search(text))


def oom_reason(phase: str, message: str) -> Reason | None:
    """What ran out, from the phase it happened in; vLLM's sampler warm-up says so itself."""
    if "warming up sampler" in message:
        return Reason.SAMPLER_WARMUP
    return next((reason for key, reason in _PHASE_REASONS if key in phase), None)
