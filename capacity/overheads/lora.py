"""LoRA: stacked A and B matrices for `max_loras` adapters, allocated with the model whether or not an adapter
is loaded.

Source: lora/layers/*.py and lora/utils.py: get_supported_lora_modules (0.26.0): every linear layer, fused
experts, and the embedding and head of classes that declare `embedding_modules`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_capacity.architecture.modules import (
    Experts,
    Linear,
    Module,
    Placed,
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
from vllm_capacity.units import DTYPE_BYTES, round_up
from vllm_capacity.weights.allocator import LOAD_MAX_SPLIT, CachingAllocator
from vllm_capacity.weights.model import layout_of, method_of
from vllm_capacity.weights.quantisation.ignored import FUSED
from vllm_capacity.weights.sharding import shard_experts

SOURCE = "lora/layers: create_lora_weights"

WITH_EMBEDDINGS = frozenset(
    {
        "ApertusForCausalLM",
        "Cohere2ForCausalLM",
        "CohereForCausalLM",
        "CwmForCausalLM",
        "DeciLMForCausalLM",
        "Ernie4_5ForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneForCausalLM",
        "FalconH1ForCausalLM",
        "GlmForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeSharedForCausalLM",
        "IQuestCoderForCausalLM",
        "InternLM3ForCausalLM",
        "JambaForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Llama4ForCausalLM",
        "LlamaForCausalLM",
        "MiniCPMForCausalLM",
        "MixtralForCausalLM",
        "NemotronForCausalLM",
        "NemotronHForCausalLM",
        "Phi3ForCausalLM",
        "PhiMoEForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "SmolLM3ForCausalLM",
        "SolarForCausalLM",
        "TeleChat3ForCausalLM",
    }
)
"""vLLM classes with a non-empty `embedding_modules` (model_executor/models, 0.22.0 to 0.33.0), their own or a base's."""
WITH_EMBEDDINGS_SINCE: dict[str, frozenset[str]] = {
    "lora_embeds_olmo": frozenset({"OlmoForCausalLM", "Olmo2ForCausalLM", "Starcoder2ForCausalLM"}),
    "lora_embeds_qwen3_5": frozenset(
        {
            "HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM", "Olmo3ForCausalLM", "Qwen3_5ForCausalLM",
            "Qwen3_5MoeForCausalLM",
        }
    ),
    "lora_embeds_phi": frozenset({"ArceeForCausalLM", "GPTNeoXForCausalLM", "PhiForCausalLM", "SeedOssForCausalLM"}),
}  # fmt: skip
"""Feature -> classes that have them from then on."""
TEXT_CLASSES = {
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
}
"""The language model's class of multimodal ones: every module of the model is asked (`get_supported_lora_modules`,
lora/utils.py:219-240, 0.26.0).
"""

ONE_SLICE: dict[str, frozenset[str]] = {
    "BailingMoeForCausalLM": frozenset({"query_key_value"}),
    "ChatGLMForConditionalGeneration": frozenset({"query_key_value", "dense_h_to_4h"}),
    "GraniteMoeHybridForCausalLM": frozenset({"in_proj", "input_linear"}),
    "InternLM2ForCausalLM": frozenset({"wqkv"}),
    "JambaForCausalLM": frozenset({"in_proj"}),
    "Lfm2ForCausalLM": frozenset({"in_proj"}),
    "Lfm2MoeForCausalLM": frozenset({"in_proj"}),
    "Phi3ForCausalLM": frozenset({"qkv_proj", "gate_up_proj"}),
    "Qwen3NextForCausalLM": frozenset({"in_proj_qkvz", "in_proj_ba"}),
}
"""Class -> fused layers that its checkpoints hold fused too: `packed_modules_mapping` names one part, so that one adapter
serves all slices (lora/layers/column_parallel_linear.py: can_replace_layer; 0.26.0 and 0.33.0).
"""
FEWEST_OF_ONE_ADAPTER = 3
"""From as many slices on, one adapter that serves all is held once per slice: MergedColumnParallelLinearVariableSliceWithLoRA
(lora/layers/column_parallel_linear.py:674-716, 0.26.0; since before 0.20.0).
"""
FUSED_EXPERTS = frozenset(
    {"GptOssForCausalLM", "Qwen3VLMoeForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"}
)
"""Classes with `is_3d_moe_weight` (model_executor/models, 0.26.0 and 0.33.0)."""

MAX_VOCAB = 258_048


@dataclass(frozen=True, slots=True)
class _Elements:
    """Elements per adapter and unit of rank, of one tensor or of several: A with the full rank, A with the rank over tp,
    and B.
    """

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
    slots, rank, split, el = _settings(ctx)
    elements, sizes = sum(_on_rank(ctx, split > 1), _Elements()), _matrices(ctx)
    yield term(
        "lora_adapters",
        Component.LORA,
        "slots * (rank * (a + b) + rank // split * a_split) * el + blocks",
        lifetime=Lifetime.LOAD,
        source=SOURCE,
        note="--max-loras x --max-lora-rank; every linear layer has its A and B; blocks: what PyTorch counts beyond them",
        slots=slots,
        rank=rank,
        a=elements.whole,
        b=elements.b,
        a_split=elements.divided,
        split=split,
        el=el,
        blocks=_allocated(ctx, sizes) - sum(sizes),
    )
    mapped = _mapped_vocabulary(ctx)
    yield term(
        "lora_metadata",
        Component.LORA,
        "8 * tokens * indices + 3 * 8 * sequences + 2 * 8 * tokens + 6 * block(4 * (slots + 2)) + 8 * mapped"
        " + fused * block(4 * (slots + 1))",
        lifetime=Lifetime.LOAD,
        source="lora/punica_wrapper/punica_base.py; lora/ops/triton_ops/lora_kernel_metadata.py",
        note="mapped: vocabulary that a divided head's logits are put in order by" if mapped else "",
        tokens=ctx.engine.max_num_batched_tokens,
        indices=_indices(ctx),
        sequences=ctx.engine.max_num_seqs,
        slots=slots,
        mapped=mapped,
        fused=_fused(ctx),
    )


def _settings(ctx: RankContext) -> tuple[int, int, int, int]:
    """Slots, rank, over how many GPUs the rank is divided, bytes of an element."""
    args = ctx.engine.args
    slots, rank = int(args.other("max_loras", 1)), int(args.other("max_lora_rank", 16))
    dtype = str(args.other("lora_dtype", "auto"))
    split = ctx.engine.parallel.tp if args.other("fully_sharded_loras") else 1
    return slots, rank, split, DTYPE_BYTES[ctx.engine.dtype if dtype == "auto" else dtype]


def _matrices(ctx: RankContext) -> list[int]:
    slots, rank, split, el = _settings(ctx)
    return [
        slots * (rank * (t.whole + t.b) + rank // split * t.divided) * el for t in _on_rank(ctx, split > 1)
    ]


def _indices(ctx: RankContext) -> int:
    """Index tensors of one int64 a token: three of one row, and the embedding's."""
    return 4 if ctx.release.has("lora_embedding_indices_once") else 5


def lora_tensors(ctx: RankContext) -> tuple[int, ...]:
    """Bytes of every tensor that loading makes for adapters, in order and after the model's own.

    Source: v1/worker/lora_model_runner_mixin.py: load_lora_model; lora/model_manager.py: LoRAModelManager.__init__.
    """
    if not ctx.engine.args.other("enable_lora"):
        return ()
    tokens, row, slots = ctx.engine.max_num_batched_tokens, 8 * ctx.engine.max_num_seqs, _settings(ctx)[0]
    kernels = (4 * tokens, 4 * tokens, 4 * (slots + 1), 4 * (slots + 1), 4 * (slots + 2))
    indices = (*(8 * tokens,) * 3, 8 * tokens * (_indices(ctx) - 3), row, row, row)
    mapped = _mapped_vocabulary(ctx)
    more = ((8 * mapped,) if mapped else ()) + (4 * (slots + 1),) * _fused(ctx)
    return (*indices, *kernels, *kernels, *_matrices(ctx), *more)


def _fused(ctx: RankContext) -> int:
    """Layers of routed experts, each with a flag for every slot (`adapter_enabled`, lora/layers/fused_moe.py)."""
    return sum(count for group, count in ctx.layers for m in group.modules if isinstance(m, Experts))


def _allocated(ctx: RankContext, sizes: Sequence[int]) -> int:
    """Bytes of the blocks of these tensors, which follow the model's own in loading (v1/worker/gpu_worker.py:
    load_model): a segment of 20 MiB is cut until at most 1 MiB is left.
    """
    pool = CachingAllocator(LOAD_MAX_SPLIT if ctx.release.has("load_max_split_size") else None)
    pool.allocate_all(sizes)
    return pool.allocated


def lora_pointers(ctx: RankContext) -> MemoryTerm | None:
    """Tables of pointers, offsets and strides that the first call of each fused layer's kernels makes and keeps: one block
    of 512 bytes each. While kernels are timed, the first layer alone has them: see `timed`.

    Source: lora/ops/triton_ops/utils.py: _get_lora_a_ptr, _get_lora_b_ptr (0.26.0 to 0.33.0).
    """
    if not ctx.engine.args.other("enable_lora"):
        return None
    return _tables(sum(n * count for n, count in _tables_of_layers(ctx)), Lifetime.PROFILE_PERSISTENT)


def timed(ctx: RankContext) -> MemoryTerm | None:
    """What of `lora_pointers` is there while the kernels of a compiled model are timed, on its first layer."""
    if not ctx.engine.args.other("enable_lora"):
        return None
    return _tables(max((n for n, _ in _tables_of_layers(ctx)), default=0), Lifetime.PROFILE_TRANSIENT)


def _tables(tables: int, lifetime: Lifetime) -> MemoryTerm:
    return term(
        "lora_pointers",
        Component.LORA,
        "512 * tables",
        lifetime=lifetime,
        source="lora/ops/triton_ops/utils.py: _get_lora_a_ptr, _get_lora_b_ptr",
        tables=tables,
    )


def _tables_of_layers(ctx: RankContext) -> list[tuple[int, int]]:
    return [
        (sum(_pointer_tables(m) for m in group.modules if _is_target(ctx, m.name)), count)
        for group, count in ctx.layers
    ]


def _pointer_tables(module: Module) -> int:
    """A: pointers. B: pointers and offsets, and strides and widths where the slices differ."""
    if isinstance(module, QkvLinear):
        return 3 if module.num_heads * module.head_size == module.num_kv_heads * module.head_size_v else 7
    if isinstance(module, Linear) and len(module.outputs) > 1:
        return 3 if len(set(module.outputs)) == 1 else 7
    return 0


def _on_rank(ctx: RankContext, sharded: bool) -> list[_Elements]:
    """Every tensor, layer by layer; then those of embedding and head."""
    found: list[_Elements] = []
    for group, count in ctx.layers:
        targets = [module for module in group.modules if _is_target(ctx, module.name)]
        found += [t for module in targets for t in _tensors(ctx, module, sharded)] * count
    for placed in _embeddings(ctx):
        module = placed.module
        assert isinstance(module, VocabEmbedding)
        found += _vocabulary(module)
        if placed.shares_storage_with and not _tied_late(ctx, placed):
            # the head is the embedding's own module under a second name, wrapped a second time
            found += [_Elements(whole=module.rows), _Elements(b=module.columns)]
    return found


def _embeddings(ctx: RankContext) -> list[Placed]:
    """Embedding and head on this rank where adapters may change them."""
    name = TEXT_CLASSES.get(ctx.architecture.name, ctx.architecture.name)
    since = (names for feature, names in WITH_EMBEDDINGS_SINCE.items() if ctx.release.has(feature))
    if name not in WITH_EMBEDDINGS and not any(name in names for names in since):
        return []
    return [
        placed
        for placed in ctx.architecture.outside
        if isinstance(placed.module, VocabEmbedding)
        and _here(ctx, placed.placement)
        and _is_target(ctx, placed.module.name)
    ]


def _tied_late(ctx: RankContext, placed: Placed) -> bool:
    """A tied head that is a module of its own (`ParallelLMHead.tie_weights`)."""
    return placed.allocated_first or ctx.release.has("heads_tied_late")


def _mapped_vocabulary(ctx: RankContext) -> int:
    """`sharded_to_full_mapping_gpu`: one index per padded row of a head that tp divides (lora/layers/logits_processor.py:
    113-118, 0.26.0).
    """
    if ctx.engine.parallel.tp == 1:
        return 0
    heads = [p.module for p in _embeddings(ctx) if p.module.name.endswith("lm_head")]
    return sum(round_up(m.rows, m.pad_to) for m in heads if isinstance(m, VocabEmbedding))


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


def _tensors(ctx: RankContext, module: Module, sharded: bool) -> list[_Elements]:
    """One A and one B per slice of a fused layer."""
    tp = ctx.engine.parallel.tp
    one = module.name.rpartition(".")[2] in ONE_SLICE.get(ctx.architecture.name, ())
    if isinstance(module, QkvLinear):
        kv = max(1, module.num_kv_heads // tp)
        q = module.num_heads // tp * module.head_size
        slices = [q, kv * module.head_size, kv * module.head_size_v]
        return _column(module.inputs, [sum(slices)] if one else slices, sharded)
    if isinstance(module, Linear):
        if module.shard is Shard.COLUMN:
            slices = _column_slices(module, tp)
            whole = (one and len(slices) < FEWEST_OF_ONE_ADAPTER) or bool(
                module.num_groups and module.num_groups % tp
            )
            return _column(module.inputs, [sum(slices)] if whole else slices, sharded)
        if module.shard is Shard.ROW:
            b = sum(module.outputs) // (tp if sharded else 1)
            return [_Elements(whole=module.inputs // tp), _Elements(b=b)]
        return _column(module.inputs, module.outputs, sharded=False)
    if isinstance(module, Experts):
        return _experts(ctx, module, sharded)
    return []


def _column_slices(module: Linear, tp: int) -> list[int]:
    """Outputs per rank; groups that ranks cannot share are repeated (`extra_groups_for_head_shards`), and the layer then has
    one output (mamba/mamba_mixer2.py:314-359, 0.26.0).
    """
    repeated = module.num_groups is not None and module.num_groups > 0 and module.num_groups % tp != 0
    return [
        size // module.num_groups
        if repeated and module.num_groups and place in module.grouped
        else size // tp
        for place, size in enumerate(module.outputs)
    ]


def _column(inputs: int, outputs: Sequence[int], sharded: bool) -> list[_Elements]:
    a = _Elements(divided=inputs) if sharded else _Elements(whole=inputs)
    return [a] * len(outputs) + [_Elements(b=size) for size in outputs]


def _experts(ctx: RankContext, module: Experts, sharded: bool) -> list[_Elements]:
    """lora/layers/fused_moe.py:173-227, 497-530 (0.26.0): per local expert, in the sizes that the kernels pad to; gated
    experts have two slices of w13, which classes of `FUSED_EXPERTS` hold as one.
    """
    layer = shard_experts(module, layout_of(ctx, 0))
    hidden, width = method_of(ctx).padded_experts(layer)
    down = hidden // (ctx.engine.parallel.tp if sharded else 1)
    slices = (width,) * (2 if module.gated else 1)
    if ctx.architecture.name in FUSED_EXPERTS:
        slices = (sum(slices),)
    w13 = _column(hidden, slices, sharded)
    return [t.times(layer.num_experts) for t in (*w13, _Elements(whole=width), _Elements(b=down))]


def _vocabulary(module: VocabEmbedding) -> list[_Elements]:
    """Embedding: A is [vocab, rank]; head: B is [vocab, rank]; both whole on every rank."""
    if module.name.endswith("lm_head"):
        if module.rows > MAX_VOCAB:
            raise RefusedError(
                Reason.UNSUPPORTED_BY_RELEASE, f"When using LoRA, vocab size must be <= {MAX_VOCAB}"
            )
        return [_Elements(whole=module.columns), _Elements(b=module.rows)]
    return [_Elements(whole=module.rows), _Elements(b=module.columns)]
