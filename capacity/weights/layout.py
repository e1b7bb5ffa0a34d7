"""Layouts that vLLM refuses, with its reason, before a single tensor is made."""

from __future__ import annotations

from functools import lru_cache

from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    Experts,
    LayerGroup,
    Linear,
    Module,
    MultiHeadLatentAttention,
    Placed,
    QkvLinear,
    Tensor,
    VocabEmbedding,
)
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.parallel import ParallelConfig, stage_bounds
from vllm_capacity.releases.release import Release
from vllm_capacity.weights.sharding import (
    Layout,
    shard_experts,
    shard_linear,
    shard_qkv,
    shard_tensor,
    shard_vocab,
)

ONE_EXPERT_PER_RANK = frozenset(
    {
        "Cohere2MoeForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "ExaoneMoeForCausalLM",
        "HunYuanMoEV1ForCausalLM",
        "HYV3ForCausalLM",
        "LagunaForCausalLM",
        "Lfm2MoeForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Step3TextForCausalLM",
        "Step3p5ForCausalLM",
    }
)
"""Classes that refuse a tensor parallel size above their number of experts (model_executor/models, 0.26.0).
"""


def check_layout(
    architecture: Architecture,
    parallel: ParallelConfig,
    release: Release,
    outside: tuple[Placed, ...] | None = None,
) -> None:
    """Raises RefusedError(INVALID_LAYOUT) where that release of vLLM does not start with this layout.

    `outside` is `architecture.outside` as flags divide it (`whole_towers`). A tower refuses a layout even where no modality
    needs it: its class is run with every module's weights thrown away (`_mark_tower_model`, models/interfaces.py).

    In vLLM's order: the parallel sizes among themselves (config/parallel.py, `_validate_parallel_config`),
    the sizes against the model (config/model.py, `verify_with_parallel_config`), then every layer's own
    division while the model is built. Raises InputError where vLLM's answer is not modelled.
    """
    _check_sizes(parallel, release)
    _check_model(architecture, parallel, release)
    _check_each(architecture.layers, architecture.outside if outside is None else outside, parallel)


def _refuse(message: str) -> RefusedError:
    return RefusedError(Reason.INVALID_LAYOUT, message)


def _check_sizes(parallel: ParallelConfig, release: Release) -> None:
    """config/parallel.py:505-520 (0.26.0)."""
    tp, pcp, dcp = parallel.tp, parallel.pcp, parallel.dcp
    if not release.has("pcp_layout_rules"):
        if pcp > 1:
            raise InputError("--prefill-context-parallel-size is modelled from vLLM 0.26.0 on; leave it at 1")
        if tp % dcp:
            raise _refuse(f"tp_size={tp} must be divisible bydcp_size={dcp}.")
        return
    if release.has("pcp_refuses_dp") and pcp > 1 and parallel.dp > 1:
        raise _refuse("PCP does not support data parallelism yet.")
    if pcp == 1:
        if tp % dcp:
            raise _refuse(f"tp_size={tp} must be divisible by dcp_size={dcp}.")
    elif dcp not in (1, pcp, tp * pcp):
        raise _refuse(
            "When PCP is enabled, DCP must be disabled, span the PCP axis, or span the full TP x PCP axis."
            f" Got TP={tp}, PCP={pcp}, DCP={dcp}; valid DCP sizes are {sorted({1, pcp, tp * pcp})}."
        )


def _check_model(architecture: Architecture, parallel: ParallelConfig, release: Release) -> None:
    """config/model.py:1224-1272 (0.26.0)."""
    heads, kv_heads = _heads(architecture)
    if heads % parallel.tp:
        raise _refuse(
            f"Total number of attention heads ({heads}) must be divisible by tensor parallel size"
            f" ({parallel.tp})."
        )
    if parallel.expert_parallel and not architecture.num_experts:
        raise _refuse(
            "Number of experts in the model must be greater than 0 when expert parallelism is enabled."
        )
    if parallel.pp > 1 and not architecture.supports_pp:
        raise _refuse(
            "Pipeline parallelism is not supported for this model."
            " Supported models implement the `SupportsPP` interface."
        )
    if parallel.pp > 1 and architecture.pp_error:
        raise _refuse(
            f"{architecture.pp_error} ({architecture.name} with pipeline_parallel_size {parallel.pp})"
        )
    if parallel.dcp > 1 and not architecture.use_mla and kv_heads:
        _check_decode_context(heads, kv_heads, parallel, release)
    try:
        stages = stage_bounds(architecture.num_hidden_layers, parallel)
    except ValueError as error:
        raise _refuse(str(error)) from error
    if any(start == stop for start, stop in stages):
        raise InputError(
            f"--pipeline-parallel-size {parallel.pp} leaves a stage of the {architecture.num_hidden_layers}"
            " layers empty,"
            " which is not modelled; use a smaller size"
        )
    if parallel.tp > architecture.num_experts > 0 and architecture.name in ONE_EXPERT_PER_RANK:
        raise _refuse(
            f"Tensor parallel size {parallel.tp} is greater than the number of experts"
            f" {architecture.num_experts}."
        )


def _check_decode_context(heads: int, kv_heads: int, parallel: ParallelConfig, release: Release) -> None:
    tp, dcp, per_kv = parallel.tp, parallel.dcp, heads // kv_heads
    flags = release.has("dcp_flag_sentences")
    if tp <= kv_heads:
        raise _refuse(
            "Decode context parallelism for GQA/MQA requires"
            f" `--tensor-parallel-size` ({tp}) to be greater than the model's total number of KV heads"
            f" ({kv_heads})."
            " Increase `--tensor-parallel-size` or set `--decode-context-parallel-size 1`."
            if flags
            else f"tensor parallel size {tp} must be greater than total num kv heads {kv_heads} when enable"
            " decode context parallel for GQA/MQA"
        )
    most = tp // kv_heads
    if dcp > most:
        raise _refuse(
            f"`--decode-context-parallel-size` ({dcp}) exceeds the maximum supported value ({most}) for"
            f" `--tensor-parallel-size` ({tp}) and {kv_heads} model KV heads."
            if flags
            else f"decode context parallel size must less than or equal to (tensor parallel size {tp} //"
            " total num kv"
            f" heads {kv_heads}) = {most}, but got {dcp}"
        )
    if per_kv % dcp:
        raise _refuse(
            f"The model's number of query heads per KV head ({per_kv}) must be divisible by"
            f" `--decode-context-parallel-size` ({dcp}) for GQA/MQA."
            if flags
            else f"Total number of q per kv attn heads ({per_kv}) must be divisible by dcp world size when"
            " enable"
            f" decode context parallel for GQA ({dcp})."
        )


def _heads(architecture: Architecture) -> tuple[int, int]:
    """(attention heads, KV heads) of the first attention layer; 0 without one."""
    for group in architecture.layers:
        for mixer in group.mixers:
            if isinstance(mixer, Attention):
                return mixer.num_heads, mixer.num_kv_heads
            if isinstance(mixer, MultiHeadLatentAttention):
                return mixer.num_heads, 1
    return 0, 0


@lru_cache(maxsize=256)
def _check_each(
    layers: tuple[LayerGroup, ...], outside: tuple[Placed, ...], parallel: ParallelConfig
) -> None:
    layout = Layout(parallel)
    for group in layers:
        for module in group.modules:
            _shard(module, layout)
    for placed in outside:
        _shard(placed.module, layout)


def _shard(module: Module, layout: Layout) -> None:
    """Divides the module as its class does, which refuses what does not divide."""
    if isinstance(module, Linear):
        shard_linear(module, layout)
    elif isinstance(module, QkvLinear):
        shard_qkv(module, layout)
    elif isinstance(module, Experts):
        shard_experts(module, layout)
    elif isinstance(module, VocabEmbedding):
        shard_vocab(module, layout)
    elif isinstance(module, Tensor):
        shard_tensor(module, layout)
