"""What attention backends let vLLM capture: the graph mode and sizes that the model runner ends up with."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_capacity.attention_backends import AttentionBackend
from vllm_capacity.device import Device
from vllm_capacity.engine_defaults.facts import refuse
from vllm_capacity.engine_defaults.graphs import Compilation, has_full
from vllm_capacity.engine_defaults.speculation import Speculation
from vllm_capacity.releases.release import Release
from vllm_capacity.units import round_up

_SINGLE_TOKEN = frozenset({"CUTLASS_MLA", "LINEAR_ATTN", "HPC_ATTN"})
_ALWAYS = frozenset({"TRITON_ATTN", "FLEX_ATTENTION", "ROCM_ATTN"})


def graph_support(backend: AttentionBackend, device: Device, release: Release) -> int:
    """AttentionCGSupport of a backend: 0 never, 1 single-token decode, 2 uniform batches, 3 always.

    `_cudagraph_support` of each metadata builder, v1/attention/backends (0.19.0 to 0.33.0).
    """
    name = backend.name
    if name == "TRITON_MLA":
        if not release.has("triton_mla_graphs"):
            return 0
        return 1 if release.has("triton_mla_single_token_graphs") else 2
    if name == "FLEX_ATTENTION" and not release.has("flex_attention_graphs"):
        return 0
    if name in ("FLASH_ATTN", "FLASH_ATTN_DIFFKV"):
        always = (3, 4) if release.has("flash_attention_4_always_graphs") else (3,)
        return 3 if backend.fa_version in always else 2
    if name == "FLASHINFER":
        xqa = (9, 12) if release.has("flashinfer_xqa_uniform_graphs") else ()
        return 2 if device.compute_capability[0] in (10, *xqa) else 1
    if name in _SINGLE_TOKEN:
        return 1
    return 3 if name in _ALWAYS else 2


def settle_graphs(
    compilation: Compilation,
    sizes: tuple[int, ...],
    backends: Iterable[AttentionBackend],
    device: Device,
    release: Release,
    *,
    speculation: Speculation,
    runs_on_v2: bool,
) -> tuple[str, tuple[int, ...]]:
    """(cudagraph mode, sizes) that the model runner ends up with.

    `CompilationConfig.resolve_cudagraph_mode_and_sizes`, config/compilation.py:1353-1500 (0.26.0).
    """
    graphs = compilation.graphs
    if graphs == "NONE":
        return "NONE", ()
    support = min((graph_support(b, device, release) for b in backends), default=3)
    splits = compilation.mode == "VLLM_COMPILE" or compilation.breakable
    if graphs == "FULL" and support != 3:
        if support == 0:
            raise refuse(
                "CUDAGraphMode.FULL is not supported with this attention backend; please try "
                "cudagraph_mode=PIECEWISE, and make sure compilation mode is VLLM_COMPILE"
            )
        graphs = "FULL_AND_PIECEWISE" if splits else "FULL_DECODE_ONLY"
    query = 1 + speculation.num_tokens
    if has_full(graphs) and (support == 0 or (query > 1 and support < 2)):
        graphs = "PIECEWISE" if splits else "NONE"
    if graphs == "NONE":
        return "NONE", ()
    rounds = query > 1 and has_full(graphs) and not (runs_on_v2 and release.has("sizes_rounded_on_v1_only"))
    return graphs, _whole_decodes(sizes, query) if rounds else sizes


def _whole_decodes(sizes: tuple[int, ...], query: int) -> tuple[int, ...]:
    """`adjust_cudagraph_sizes_for_spec_decode`, config/compilation.py (0.26.0): multiples of one decode's
    tokens.
    """
    if not sizes:
        return sizes
    largest = sizes[-1]
    rounded = sorted({round_up(s, query) for s in sizes if round_up(s, query) <= largest})
    if not rounded and query <= largest:
        rounded = [query]
    if not rounded:
        raise refuse(
            f"No valid cudagraph sizes after rounding to multiple of {query} (num_speculative_tokens + 1 or "
            f"tp if sequence parallelism is enabled) please adjust num_speculative_tokens ({query - 1}) or "
            f"max_cudagraph_capture_size ({largest}) or cudagraph_capture_sizes ({list(sizes)})"
        )
    return tuple(rounded)
