"""What a model is made of, before any layout: modules, mixers, layers, `Architecture`.

Families (`architecture/<family>.py`) build an `Architecture` from a `ModelConfig`. `weights/` turns its
modules into
tensors per rank; `kv_cache/` turns its mixers into KV specs; `activations/` reads both. Nothing here knows
about ranks,
releases or bytes.
"""

from __future__ import annotations

from enum import StrEnum

from vllm_capacity.frozen import dataclass


class Shard(StrEnum):
    """How tensor parallelism splits a linear layer (model_executor/layers/linear.py, 0.26.0)."""

    COLUMN = "column"
    """Outputs divided by tp; the bias too (ColumnParallelLinear, MergedColumnParallelLinear)."""
    ROW = "row"
    """Inputs divided by tp; the bias is whole on every rank (RowParallelLinear)."""
    REPLICATED = "replicated"
    """Whole on every rank (ReplicatedLinear, `disable_tp=True`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A linear layer: weight [sum(outputs), inputs]. `outputs` has one entry per fused slice (gate, up).

    `quantised` is False where vLLM passes `quant_config=None`; `dtype` None means the model's dtype.
    """

    name: str
    inputs: int
    outputs: tuple[int, ...]
    shard: Shard
    bias: bool = False
    quantised: bool = True
    dtype: str | None = None
    whole_if_sequence_parallel: bool = False
    """Whole on every rank where the MoE runs sequence-parallel: shared experts built with `disable_tp`."""
    num_groups: int = 0
    grouped: tuple[int, ...] = ()
    """Positions in `outputs` of slices made of `num_groups` groups (Mamba2's B and C): a rank holds at
    least one group.
    """
    pad_rows_to: int = 1
    """A rank's rows are rounded up to a multiple of this (Kimi K3); the padding is a slice of its own."""
    heads: int = 0
    """Attention heads that the outputs hold, of which a rank gets whole ones (an encoder's fused QKV); 0: any split."""
    whole_unless_divides: int = 0
    """Whole on every rank where tp does not divide this number of heads (MoonViT); 0: no such rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QkvLinear:
    """QKVParallelLinear: query heads divided by tp, KV heads divided or, when there are fewer than tp,
    replicated.
    """

    name: str
    inputs: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    bias: bool = False
    quantised: bool = True
    dtype: str | None = None
    index_size: int = 0
    """Size of the indexer's heads (MiniMax-M3): one more query per KV head, and one key that every rank holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """FusedMoE: w13 [E, (2 if gated else 1) * intermediate, hidden] and w2 [E, hidden, intermediate]."""

    name: str
    num_experts: int
    hidden_size: int
    intermediate_size: int
    gated: bool = True
    bias: bool = False
    quantised: bool = True
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabEmbedding:
    """VocabParallelEmbedding / ParallelLMHead: rows padded to `pad_to`, divided by tp when `sharded`."""

    name: str
    rows: int
    columns: int
    bias: bool = False
    pad_to: int = 64
    sharded: bool = True
    quantised: bool = False
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Any other parameter or buffer. `shard_dim` is the dimension divided by tp (None: replicated).

    `kv_replicated` divides by min(tp, shape[shard_dim]-like KV-head count) instead: give the KV-head count in
    `kv_heads`.
    `buffer` marks what is not a parameter (rope caches, scale placeholders): it counts as weights bytes, not
    in the
    parameter total. `per_token`: one more leading dimension, max_num_batched_tokens (buffers that model
    construction sizes
    for a whole batch). `eager_dtype` is the dtype where custom ops are on (`--enforce-eager`), if it differs.
    """

    name: str
    shape: tuple[int, ...]
    shard_dim: int | None = None
    dtype: str | None = None
    buffer: bool = False
    kv_heads: int | None = None
    per_token: bool = False
    per_decode_row: bool = False
    """One more leading dimension: the rows of a decode batch, min(max_num_batched_tokens, max_num_seqs x
    query length) + 1.
    """
    whole_extra: int = 0
    """Further elements of `shard_dim` that every rank holds in full."""
    eager_dtype: str | None = None
    per_token_extra: int = 0
    """With `per_token`: rows beyond max_num_batched_tokens."""
    backend: str | None = None
    """The attention backend whose layers hold this tensor; None is any."""
    scaled: bool = False
    """A rope cache whose cosines and sines are multiplied by a factor as it is built."""


Module = Linear | QkvLinear | Experts | VocabEmbedding | Tensor


class AttentionKind(StrEnum):
    DECODER = "decoder"
    ENCODER_ONLY = "encoder_only"
    CROSS = "cross"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Multi-head, grouped-query or multi-query attention with its own KV cache unless `shares_kv`.

    `index` facts: `sliding_window` in tokens (None: full), `chunk_size` for chunked local attention.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    sliding_window: int | None = None
    chunk_size: int | None = None
    shares_kv: bool = False
    kind: AttentionKind = AttentionKind.DECODER
    has_sinks: bool = False
    qk_norm: bool = False
    rope: bool = True
    indexer: Indexer | None = None
    """Block-sparse attention's own one-head key cache (MiniMax-M3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """The sparse-attention indexer of DeepSeek V3.2 and GLM-5: its own one-head key cache per layer."""

    num_heads: int
    head_size: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """DeepSeek V4: the last `sliding_window` latents as they are and, with `ratio` above 1, one latent per `ratio` tokens
    with the compressor's own state.
    """

    sliding_window: int
    ratio: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHeadLatentAttention:
    """MLA: one latent of kv_lora_rank + qk_rope_head_dim per token, whole on every tp rank."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: Indexer | None = None
    shared_top_k: int = 0
    """Tokens that an earlier layer's indexer chose for this one too (GLM-5.2); 0: without `indexer`, it sees all."""
    compression: Compression | None = None


class StateSpaceKind(StrEnum):
    """vLLM's mamba_type (model_executor/layers/mamba/)."""

    MAMBA1 = "mamba1"
    MAMBA2 = "mamba2"
    GATED_DELTA_NET = "gdn_attention"
    KIMI_DELTA = "kda"
    SHORT_CONV = "short_conv"
    LINEAR_ATTENTION = "linear_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """A mixer with a fixed-size state per sequence. Fields that a kind does not use stay 0.

    `inner_size`: d_inner (mamba), conv dim (short conv). GDN/KDA use
    `num_key_heads/num_value_heads/key_head_dim/
    value_head_dim`. Shapes per rank: `kv_cache/state_shapes.py`.
    """

    kind: StateSpaceKind
    conv_kernel: int = 0
    inner_size: int = 0
    state_size: int = 0
    num_heads: int = 0
    head_dim: int = 0
    n_groups: int = 0
    num_key_heads: int = 0
    num_value_heads: int = 0
    key_head_dim: int = 0
    value_head_dim: int = 0
    chunk_size: int = 0
    ssm_dtype: str | None = None
    """What the model's config asks for the recurrent state with `--mamba-ssm-cache-dtype auto`; None: conv
    dtype.
    """


Mixer = Attention | MultiHeadLatentAttention | StateSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMLP:
    """`intermediate_size` is the width of one of gate and up; `gated` False means up and down only.

    `frees_gate_up`: the class's forward drops its reference to gate_up before down runs (`x = act(x)`), so that without
    compilation the two and down's output never exist at once.
    """

    intermediate_size: int
    gated: bool = True
    frees_gate_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """Routed experts with `top_k` per token; `shared_intermediate_size` 0 means no shared expert.

    `hidden_size` differs from the model's where experts work on a latent (Nemotron-3).
    """

    num_experts: int
    top_k: int
    hidden_size: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    gated: bool = True


FeedForward = DenseMLP | MixtureOfExperts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerGroup:
    """Layers that are equal in everything but their index; a group is equal only to itself.

    `mixers` are usually one; Falcon-H1 has two.
    """

    indices: tuple[int, ...]
    modules: tuple[Module, ...]
    mixers: tuple[Mixer, ...]
    feed_forward: FeedForward | None


class Placement(StrEnum):
    """On which pipeline stages vLLM builds a module."""

    FIRST = "first"
    LAST = "last"
    ENDS = "ends"
    """First and last stage (tied embeddings of the Llama pattern)."""
    EVERY = "every"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """A module outside the layers and where it is built; equal only to itself."""

    module: Module
    placement: Placement
    shares_storage_with: str | None = None
    """Name of the module whose storage it uses on stages that hold both (tied heads): no bytes of its own
    there.
    """
    count: int = 1
    """Equal copies (an encoder's blocks), each with its own storage."""
    layers: tuple[int, ...] | None = None
    """Built only on stages that hold at least one of these layers (rope caches of one layer type); None:
    any stage.
    """
    modalities: tuple[str, ...] = ()
    """Part of the encoder of these modalities: not built where all of them are limited to 0."""
    allocated_first: bool = False
    """With `shares_storage_with`: vLLM allocates the module and then drops its storage, which raises the
    load peak.
    """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Architecture:
    """The layers that vLLM builds for a model, whatever the layout; equal only to itself.

    `parameters` elsewhere means the sum over all modules of a single-GPU layout, buffers left out, tied heads
    once.
    """

    name: str
    """vLLM's model class, for example LlamaForCausalLM."""
    family: str
    hidden_size: int
    vocab_size: int
    num_hidden_layers: int
    layers: tuple[LayerGroup, ...]
    outside: tuple[Placed, ...]
    dtype: str
    """The checkpoint's dtype after vLLM's `auto` rule, before `--dtype`."""
    runner_type: str = "generate"
    """'generate' or 'pooling'."""
    is_multimodal: bool = False
    is_encoder_decoder: bool = False
    encoder_tp_data: bool = False
    """Class supports `--mm-encoder-tp-mode data`."""
    logits_soft_cap: bool = False
    norm_makes_residual: bool = False
    """Norms are GemmaRMSNorm, which adds into a new residual; others add in place, with custom ops on
    (layers/layernorm.py, 0.19.0 to 0.33.0).
    """
    tie_word_embeddings: bool = False
    supports_mamba_prefix_caching: bool = False
    """Class derives from SupportsMambaPrefixCaching (mamba cache mode 'all' up to 0.31)."""
    supports_pp: bool = True
    """Class derives from SupportsPP."""
    pp_error: str = ""
    """How the class fails while it is built with more than one pipeline stage; empty where it does not."""
    notes: tuple[str, ...] = ()

    @property
    def num_experts(self) -> int:
        return max(
            (g.feed_forward.num_experts for g in self.layers if isinstance(g.feed_forward, MixtureOfExperts)),
            default=0,
        )

    @property
    def has_state_space(self) -> bool:
        return any(isinstance(m, StateSpace) for g in self.layers for m in g.mixers)

    @property
    def has_attention(self) -> bool:
        return any(not isinstance(m, StateSpace) for g in self.layers for m in g.mixers)

    @property
    def is_hybrid(self) -> bool:
        return self.has_state_space and self.has_attention

    @property
    def use_mla(self) -> bool:
        return any(isinstance(m, MultiHeadLatentAttention) for g in self.layers for m in g.mixers)
