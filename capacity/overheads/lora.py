"""LoRA: stacked A and B matrices for `max_loras` adapters, allocated with the model whether or not an adapter
is loaded.

Source: lora/layers/*.py and lora/utils.py: get_supported_lora_modules (0.26.0): every linear layer, fused
experts, and the embedding and head of classes that declare `embedding_modules`.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_capacity.architecture.modules import (
    Experts,
    Linear,
    Module,
    Placement,
    QkvLinear,
    Shard,
    VocabEmbedding,
)
from vllm_capacity.context import RankContext
from vllm_capacity.errors import Reason, RefusedError
from vllm_capacity.frozen import dataclass
from vllm_capacity.ledger import Component, Lifetime, MemoryTerm, term
from vllm_capacity.overheads.terms import nothing
from vllm_capacity.units import DTYPE_BYTES
from vllm_capacity.weights.quantisation.ignored import FUSED

SOURCE = "lora/layers: create_lora_weights"

WITH_EMBEDDINGS = frozenset(
    {
        "ApertusForCausalLM",
        "CohereForCausalLM",
        "ExaoneForCausalLM",
        "Exaone4ForCausalLM",
        "FalconH1ForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "JambaForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "LlamaForCausalLM",
        "MiniCPMForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "NemotronForCausalLM",
        "NemotronHForCausalLM",
        "PhiMoEForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "SolarForCausalLM",
    }
)
"""vLLM classes with a non-empty `embedding_modules` (model_executor/models, 0.26.0)."""

MAX_VOCAB = 258_048


@dataclass(frozen=True, slots=True)
class _Elements:
    """Elements per adapter and unit of rank: A with the full rank, A with the rank over tp, and B."""

    whole: int = 0
    divided: int = 0
    b: int = 0

    def __add__(self, other: _Elements) -> _Elements:
        return _Elements(self.whole + other.whole, self.divided + other.divided, self.b + other.b)

    def times(self, count: int) -> _Elements:
        return _Elements(self.whole * count, self.divided * count, self.b * count)


def lora_terms(ctx: RankContext) -> Iterator[MemoryTerm]:
    """Adapter matrices (part of the loaded weights) and the index tensors of the Punica wrapper."""
    args = ctx.engine.args
    if not args.other("enable_lora"):
        yield nothing(
            "lora_adapters",
            Component.LORA,
            "--enable-lora is not given",
            source=SOURCE,
            lifetime=Lifetime.LOAD,
        )
        return
    slots, rank = int(args.other("max_loras", 1)), int(args.other("max_lora_rank", 16))
    sharded, dtype = bool(args.other("fully_sharded_loras")), args.other("lora_dtype", "auto")
    elements = _on_rank(ctx, sharded)
    yield term(
        "lora_adapters",
        Component.LORA,
        "slots * (rank * (a + b) + rank // split * a_split) * el",
        lifetime=Lifetime.LOAD,
        source=SOURCE,
        note="--max-loras x --max-lora-rank; every linear layer has its A and B",
        slots=slots,
        rank=rank,
        a=elements.whole,
        b=elements.b,
        a_split=elements.divided,
        split=ctx.engine.parallel.tp if sharded else 1,
        el=DTYPE_BYTES[ctx.engine.dtype if dtype == "auto" else str(dtype)],
    )
    yield term(
        "lora_metadata",
        Component.LORA,
        "8 * tokens * 5 + 3 * 8 * sequences + 2 * 8 * tokens",
        lifetime=Lifetime.LOAD,
        source="lora/punica_wrapper/punica_base.py; lora/ops/triton_ops/lora_kernel_metadata.py",
        tokens=ctx.engine.max_num_batched_tokens,
        sequences=ctx.engine.max_num_seqs,
    )


def _on_rank(ctx: RankContext, sharded: bool) -> _Elements:
    total = _Elements()
    for group, count in ctx.layers:
        for module in group.modules:
            if _is_target(ctx, module.name):
                total += _elements(ctx, module, sharded).times(count)
    if ctx.architecture.name in WITH_EMBEDDINGS:
        for placed in ctx.architecture.outside:
            module = placed.module
            if (
                isinstance(module, VocabEmbedding)
                and _here(ctx, placed.placement)
                and _is_target(ctx, module.name)
            ):
                total += _vocabulary(ctx, module)
    return total


def _is_target(ctx: RankContext, name: str) -> bool:
    """`is_in_target_modules`, lora/utils.py:271-305 (0.26.0): the end of the name, or of a part of a fused module."""
    targets = ctx.engine.args.other("lora_target_modules")
    if targets is None:
        return True
    last = name.rpartition(".")[2]
    wanted = {str(target) for target in targets}
    parts = FUSED.get(last, ()) if ctx.release.has("lora_targets_parts") else ()
    return last in wanted or any(part in wanted for part in parts)


def _here(ctx: RankContext, placement: Placement) -> bool:
    return {
        Placement.FIRST: ctx.is_first_stage,
        Placement.LAST: ctx.is_last_stage,
        Placement.ENDS: ctx.is_first_stage or ctx.is_last_stage,
        Placement.EVERY: True,
    }[placement]


def _elements(ctx: RankContext, module: Module, sharded: bool) -> _Elements:
    tp = ctx.engine.parallel.tp
    if isinstance(module, QkvLinear):
        kv = max(1, module.num_kv_heads // tp)
        b = module.num_heads // tp * module.head_size + kv * (module.head_size + module.head_size_v)
        return _column(3, module.inputs, b, sharded)
    if isinstance(module, Linear):
        if module.shard is Shard.COLUMN:
            return _column(len(module.outputs), module.inputs, sum(module.outputs) // tp, sharded)
        if module.shard is Shard.ROW:
            return _Elements(whole=module.inputs // tp, b=sum(module.outputs) // (tp if sharded else 1))
        return _Elements(whole=len(module.outputs) * module.inputs, b=sum(module.outputs))
    if isinstance(module, Experts):
        return _experts(ctx, module, sharded)
    return _Elements()


def _column(slices: int, inputs: int, outputs: int, sharded: bool) -> _Elements:
    a = slices * inputs
    return _Elements(divided=a, b=outputs) if sharded else _Elements(whole=a, b=outputs)


def _experts(ctx: RankContext, module: Experts, sharded: bool) -> _Elements:
    """lora/layers/fused_moe.py:173-227: per local expert; gated experts have two slices of w13."""
    parallel = ctx.engine.parallel
    ranks = parallel.moe_parallel_size
    ep = parallel.expert_parallel and ranks > 1
    local = -(-module.num_experts // ranks) if ep else module.num_experts
    width = module.intermediate_size if ep else module.intermediate_size // ranks
    slices = 2 if module.gated else 1
    down = module.hidden_size // (parallel.tp if sharded else 1)
    w13 = _column(slices, module.hidden_size, slices * width, sharded)
    return (w13 + _Elements(whole=width, b=down)).times(local)


def _vocabulary(ctx: RankContext, module: VocabEmbedding) -> _Elements:
    """Embedding: A is [vocab, rank]; head: B is [vocab, rank]; both whole on every rank."""
    if module.name.endswith("lm_head"):
        if module.rows > MAX_VOCAB:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE, f"When using LoRA, vocab size must be <= {MAX_VOCAB}"
            )
        return _Elements(whole=module.columns, b=module.rows)
    return _Elements(whole=module.rows, b=module.columns)
