"""How tensor, expert and data parallelism split a module: whole modules in, one rank's shapes out.

Sources (0.26.0): model_executor/layers/linear.py, layers/vocab_parallel_embedding.py,
layers/fused_moe/config.py:1122-1221, layers/fused_moe/expert_map_manager.py:49-70. `layout.py` refuses what
does not divide; here it is an error of last resort.
"""

from __future__ import annotations

from vllm_capacity.architecture.modules import Experts, Linear, QkvLinear, Shard, Tensor, VocabEmbedding
from vllm_capacity.errors import Reason, RefusedError
from vllm_capacity.frozen import dataclass
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.units import round_up

SEQUENCE_PARALLEL_BACKENDS = frozenset({
    "allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "mori_high_throughput",
    "mori_low_latency", "nixl_ep",
})  # fmt: skip
"""all2all backends with which the MoE runs sequence-parallel (config/parallel.py:656-668)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The part of the configuration that decides shapes. `ep_rank` counts over dp x pcp x tp."""

    parallel: ParallelConfig
    ep_rank: int = 0
    redundant_experts: int = 0
    all2all_backend: str = "allgather_reducescatter"

    @property
    def tp(self) -> int:
        return self.parallel.tp

    @property
    def expert_ranks(self) -> int:
        """Ranks among which whole experts are divided; 1 without expert parallelism."""
        return self.parallel.moe_parallel_size if self.parallel.expert_parallel else 1

    @property
    def expert_tp(self) -> int:
        """Ranks that divide each expert: tensor parallelism flattened over dp and pcp, 1 with expert
        parallelism.
        """
        return 1 if self.expert_ranks > 1 else self.parallel.moe_parallel_size

    @property
    def sequence_parallel_moe(self) -> bool:
        return (
            self.parallel.expert_parallel
            and self.parallel.tp > 1
            and self.parallel.dp > 1
            and self.all2all_backend in SEQUENCE_PARALLEL_BACKENDS
        )


SINGLE = Layout(ParallelConfig())
"""One GPU: shapes as in the model."""


@dataclass(frozen=True, slots=True)
class LocalLinear:
    """One rank's part of a linear layer: weight [sum(outputs), inputs]; `bias` elements, 0 without one."""

    name: str
    inputs: int
    outputs: tuple[int, ...]
    bias: int
    dtype: str | None
    quantised: bool
    full_inputs: int
    full_outputs: int
    tp: int

    @property
    def rows(self) -> int:
        return sum(self.outputs)

    @property
    def input_divided(self) -> bool:
        return self.inputs != self.full_inputs


@dataclass(frozen=True, slots=True)
class LocalExperts:
    """One rank's routed experts of a layer. `total_experts` counts all ranks' (redundant ones too)."""

    name: str
    num_experts: int
    total_experts: int
    hidden_size: int
    intermediate_size: int
    gated: bool
    bias: bool
    dtype: str | None
    quantised: bool
    expert_tp: int
    expert_parallel: bool

    @property
    def slices(self) -> int:
        """Matrices fused into w13."""
        return 2 if self.gated else 1


@dataclass(frozen=True, slots=True)
class LocalVocab:
    """One rank's rows of an embedding or head."""

    name: str
    rows: int
    columns: int
    bias: int
    dtype: str | None
    quantised: bool
    tp: int


def divide(name: str, size: int, parts: int) -> int:
    """`divide`, distributed/utils.py: the size must be a multiple of the parts."""
    if size % parts:
        raise RefusedError(Reason.INVALID_LAYOUT, f"{size} is not divisible by {parts} ({name})")
    return size // parts


def kv_heads_per_rank(num_kv_heads: int, tp: int) -> int:
    """KV heads divided by tp, or one replica when there are fewer (linear.py:1003-1015)."""
    if num_kv_heads >= tp:
        return divide("KV heads", num_kv_heads, tp)
    divide("tensor parallel size over KV heads", tp, num_kv_heads)
    return 1


def shard_linear(linear: Linear, layout: Layout) -> LocalLinear:
    whole = (
        linear.shard is Shard.REPLICATED
        or (linear.whole_if_sequence_parallel and layout.sequence_parallel_moe)
        or bool(linear.whole_unless_divides % layout.tp)
    )
    tp = 1 if whole else layout.tp
    inputs, outputs = linear.inputs, linear.outputs
    total = sum(outputs)
    if tp > 1:
        if linear.heads:
            divide(f"attention heads of {linear.name}", linear.heads, tp)
        if linear.shard is Shard.ROW:
            inputs = divide(linear.name, inputs, tp)
        else:
            outputs = tuple(
                group_share(linear.name, size, linear.num_groups, tp) if i in linear.grouped
                else divide(linear.name, size, tp)
                for i, size in enumerate(outputs)
            )  # fmt: skip
    if padding := -sum(outputs) % linear.pad_rows_to:
        outputs = (*outputs, padding)
    return LocalLinear(
        linear.name, inputs, outputs, sum(outputs) if linear.bias else 0, linear.dtype, linear.quantised,
        linear.inputs, total, tp,
    )  # fmt: skip


def group_share(name: str, size: int, num_groups: int, tp: int) -> int:
    """One rank's part of `num_groups` groups: divided, or the only group on every rank.

    Source: MambaMixer2, layers/mamba/mamba_mixer2.py:303-345 (0.26.0), which allows a remainder with one
    group only.
    """
    if num_groups % tp == 0:
        return size // tp
    if num_groups != 1:
        raise RefusedError(
            Reason.INVALID_LAYOUT,
            "If tensor parallel world size does not divide num_groups, then num_groups must equal 1."
            f" ({name}: {num_groups}"
            f" groups, tensor parallel size {tp})",
        )
    return size


def shard_qkv(qkv: QkvLinear, layout: Layout) -> LocalLinear:
    tp = layout.tp
    heads, kv_heads = divide("attention heads", qkv.num_heads, tp), kv_heads_per_rank(qkv.num_kv_heads, tp)
    outputs: tuple[int, ...] = (heads * qkv.head_size, kv_heads * qkv.head_size, kv_heads * qkv.head_size_v)
    full = qkv.num_heads * qkv.head_size + qkv.num_kv_heads * (qkv.head_size + qkv.head_size_v)
    if qkv.index_size:
        outputs += (kv_heads * qkv.index_size, qkv.index_size)
        full += (qkv.num_kv_heads + 1) * qkv.index_size
    return LocalLinear(
        qkv.name,
        qkv.inputs,
        outputs,
        sum(outputs) if qkv.bias else 0,
        qkv.dtype,
        qkv.quantised,
        qkv.inputs,
        full,
        tp,
    )


def local_experts(num_experts: int, layout: Layout) -> int:
    """Experts of this rank; the first `num_experts % ranks` ranks hold one more."""
    total, ranks = num_experts + layout.redundant_experts, layout.expert_ranks
    return total // ranks + (layout.ep_rank < total % ranks)


def shard_experts(experts: Experts, layout: Layout) -> LocalExperts:
    tp = layout.expert_tp
    return LocalExperts(
        experts.name,
        local_experts(experts.num_experts, layout),
        experts.num_experts + layout.redundant_experts,
        experts.hidden_size,
        divide(f"{experts.name} intermediate size", experts.intermediate_size, tp),
        experts.gated,
        experts.bias,
        experts.dtype,
        experts.quantised,
        tp,
        layout.expert_ranks > 1,
    )


def shard_vocab(vocab: VocabEmbedding, layout: Layout) -> LocalVocab:
    """Rows padded to `pad_to`, then divided (vocab_parallel_embedding.py:245-330)."""
    tp = layout.tp if vocab.sharded else 1
    rows = divide(vocab.name, round_up(vocab.rows, vocab.pad_to), tp)
    bias = rows if vocab.bias else 0
    return LocalVocab(vocab.name, rows, vocab.columns, bias, vocab.dtype, vocab.quantised, tp)


def shard_tensor(tensor: Tensor, layout: Layout) -> tuple[int, ...]:
    """A tensor's shape on one rank."""
    if tensor.shard_dim is None:
        return tensor.shape
    shape = list(tensor.shape)
    if tensor.kv_heads is not None:
        per_head = divide(tensor.name, shape[tensor.shard_dim], tensor.kv_heads)
        shape[tensor.shard_dim] = per_head * kv_heads_per_rank(tensor.kv_heads, layout.tp)
    else:
        shape[tensor.shard_dim] = divide(tensor.name, shape[tensor.shard_dim], layout.tp) + tensor.whole_extra
    return tuple(shape)
