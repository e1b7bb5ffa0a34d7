"""Families that vLLM runs with transformers' own modules ("Using Transformers modeling backend").

Source: vllm/model_executor/models/transformers/base.py, causal.py, fusers/ (0.26.0): every nn.Linear becomes
the parallel class that transformers' `base_model_tp_plan` names, gate and up projections are merged since
0.25.0, embeddings are on the first pipeline stage (and the last if tied), final norm and head on the last;
rotary frequencies stay transformers' buffers on every stage instead of a cos/sin cache. The query, key and
value projections stay apart: the tracer does not get through the attention of transformers 5.24.0, so a rank
needs whole outputs, not whole KV heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, grouped_attention, layer_kinds
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    DenseMLP,
    LayerGroup,
    Linear,
    Module,
    Placed,
    Placement,
    Shard,
    Tensor,
)
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What differs between these families. `gated` None: one fused gate_up_proj in the checkpoint itself."""

    name: str
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    out: str = "o_proj"
    mlp_bias: bool = False
    gated: bool | None = True
    up: str = "up_proj"
    down: str = "down_proj"
    qk_norm: tuple[Module, ...] = ()
    final_norm: str | None = "norm"
    frequencies: int = 2
    """Buffers of rotary frequencies: two per rotary module and layer type."""
    default_kinds: tuple[str, ...] | None = None


def olmo(config: ModelConfig, release: Release) -> Architecture:
    """OlmoForCausalLM: its LayerNorms have no weights."""
    bias = config.boolean("attention_bias", False)
    return _build(
        config, release, Shape(name="olmo", norms=(), qkv_bias=bias, out_bias=bias, final_norm=None)
    )


def olmo2(config: ModelConfig, release: Release) -> Architecture:
    """Olmo2ForCausalLM: norms over all query and all KV heads, whole on every rank."""
    return _build(config, release, _olmo2_shape(config, "olmo2"))


def olmo3(config: ModelConfig, release: Release) -> Architecture:
    """Olmo3ForCausalLM. Without `layer_types` every fourth layer is full (Olmo3Config)."""
    layers = range(config.num_hidden_layers)
    kinds = tuple("sliding_attention" if (i + 1) % 4 else "full_attention" for i in layers)
    shape = _olmo2_shape(config, "olmo3")
    return _build(
        config,
        release,
        Shape(
            name=shape.name,
            norms=shape.norms,
            qkv_bias=shape.qkv_bias,
            out_bias=shape.out_bias,
            qk_norm=shape.qk_norm,
            default_kinds=kinds,
            frequencies=4,
        ),
    )


def smollm3(config: ModelConfig, release: Release) -> Architecture:
    """SmolLM3ForCausalLM."""
    bias = config.boolean("attention_bias", False)
    return _build(
        config,
        release,
        Shape(name="smollm3", qkv_bias=bias, out_bias=bias, mlp_bias=config.boolean("mlp_bias", False)),
    )


def starcoder2(config: ModelConfig, release: Release) -> Architecture:
    """Starcoder2ForCausalLM."""
    bias = config.boolean("use_bias", True)
    return _build(
        config,
        release,
        Shape(
            name="starcoder2",
            norm_bias=True,
            qkv_bias=bias,
            out_bias=bias,
            mlp_bias=bias,
            gated=False,
            up="c_fc",
            down="c_proj",
        ),
    )


def phi(config: ModelConfig, release: Release) -> Architecture:
    """PhiForCausalLM; the head has no bias here (causal.py)."""
    heads = config.num_attention_heads
    size = config.hidden_size // heads
    norms: tuple[Module, ...] = ()
    if config.boolean("qk_layernorm", False):
        norms = (
            *common.norm("self_attn.q_layernorm", size, bias=True),
            *common.norm("self_attn.k_layernorm", size, bias=True),
        )
    return _build(
        config,
        release,
        Shape(
            name="phi",
            norms=("input_layernorm",),
            norm_bias=True,
            qkv_bias=True,
            out_bias=True,
            out="dense",
            mlp_bias=True,
            gated=False,
            up="fc1",
            down="fc2",
            qk_norm=norms,
            final_norm="final_layernorm",
        ),
    )


def glm(config: ModelConfig, release: Release) -> Architecture:
    """GlmForCausalLM."""
    return _build(
        config, release, Shape(name="glm", qkv_bias=config.boolean("attention_bias", False), gated=None)
    )


def seed_oss(config: ModelConfig, release: Release) -> Architecture:
    """SeedOssForCausalLM."""
    return _build(
        config,
        release,
        Shape(
            name="seed_oss",
            qkv_bias=config.boolean("attention_bias", True),
            out_bias=config.boolean("attention_out_bias", False),
            mlp_bias=config.boolean("mlp_bias", False),
        ),
    )


def arcee(config: ModelConfig, release: Release) -> Architecture:
    """ArceeForCausalLM: an MLP without gate."""
    bias = config.boolean("attention_bias", False)
    return _build(
        config,
        release,
        Shape(
            name="arcee",
            qkv_bias=bias,
            out_bias=bias,
            gated=False,
            mlp_bias=config.boolean("mlp_bias", False),
        ),
    )


def hunyuan_dense(config: ModelConfig, release: Release) -> Architecture:
    """HunYuanDenseV1ForCausalLM: q and k norms per head."""
    bias, size = config.boolean("attention_bias", False), config.head_dim
    norms = (
        *common.norm("self_attn.query_layernorm", size),
        *common.norm("self_attn.key_layernorm", size),
    )
    return _build(config, release, Shape(name="hunyuan", qkv_bias=bias, out_bias=bias, qk_norm=norms))


def llama(config: ModelConfig, release: Release) -> Architecture:
    """Llama's modules in transformers (CwmForCausalLM)."""
    bias = config.boolean("attention_bias", False)
    return _build(
        config,
        release,
        Shape(name="llama", qkv_bias=bias, out_bias=bias, mlp_bias=config.boolean("mlp_bias", False)),
    )


def _olmo2_shape(config: ModelConfig, name: str) -> Shape:
    bias = config.boolean("attention_bias", False)
    norms = (
        *common.norm("self_attn.q_norm", config.num_attention_heads * config.head_dim),
        *common.norm("self_attn.k_norm", config.num_key_value_heads * config.head_dim),
    )
    return Shape(
        name=name,
        norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=norms,
    )


def _build(config: ModelConfig, release: Release, shape: Shape) -> Architecture:
    hidden, layers = config.hidden_size, config.num_hidden_layers
    kinds = layer_kinds(config, shape.default_kinds or ("full_attention",) * layers)
    window = config.integer("sliding_window", 0) or None
    elsewhere = common.cache_sliding_window(config) if len(set(kinds)) == 1 and _uses_window(config) else None
    has_types = config.get("layer_types") is not None or shape.default_kinds is not None
    feed, feed_forward = _feed_forward(config, release, shape)

    def build(kind: str, indices: tuple[int, ...]) -> LayerGroup:
        sliding = window if has_types and kind == "sliding_attention" else elsewhere
        mixer = grouped_attention(
            config, config.head_dim, sliding_window=sliding, qk_norm=bool(shape.qk_norm)
        )
        return LayerGroup(
            indices=indices,
            modules=(
                *_attention(config, release, shape, mixer),
                *shape.qk_norm,
                *feed,
                *(
                    module
                    for each in shape.norms
                    for module in common.norm(each, hidden, bias=shape.norm_bias)
                ),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    tied = common.tied(config)
    final = () if shape.final_norm is None else common.norm(shape.final_norm, hidden, bias=shape.norm_bias)
    outside = common.llama_placement(
        config.vocab_size,
        hidden,
        tied=tied,
        head_allocated_first=True,
        final_norm=final,
        rope=_frequencies(config, shape),
    )
    return decoder(
        config,
        name="TransformersForCausalLM",
        family=f"transformers_{shape.name}",
        tied=tied,
        layers=common.group_layers(kinds, build),
        outside=outside,
    )


def _uses_window(config: ModelConfig) -> bool:
    """transformers' classes with `use_sliding_window` drop the window where it is false."""
    return config.boolean("use_sliding_window", True)


def _attention(config: ModelConfig, release: Release, shape: Shape, mixer: Attention) -> tuple[Module, ...]:
    """The projections and the scalars of vLLM's attention layer.

    Up to 0.29 that layer is no part of the module tree (`create_attention_instances` keeps a dict), so post-
    load
    processing passes it by and the scalars that it would move to the host stay on the GPU
    (layers/attention/attention.py:124-150, 601-617).
    """
    unmoved = () if release.has("transformers_attention_modules") else common.unmoved_scales(release)
    scalars = (*common.attention_scales(), *unmoved)
    hidden, size = config.hidden_size, mixer.head_size
    if release.has("transformers_qkv_fusion"):
        projections = common.attention_modules(
            hidden, mixer, qkv_bias=shape.qkv_bias, o_bias=shape.out_bias, out=shape.out
        )[:2]
        return (*projections, *scalars)
    widths = (
        ("q_proj", mixer.num_heads * size),
        ("k_proj", mixer.num_kv_heads * size),
        ("v_proj", mixer.num_kv_heads * size),
    )
    return (
        *(
            Linear(
                name=f"self_attn.{name}",
                inputs=hidden,
                outputs=(width,),
                shard=Shard.COLUMN,
                bias=shape.qkv_bias,
            )
            for name, width in widths
        ),
        Linear(
            name=f"self_attn.{shape.out}",
            inputs=mixer.num_heads * size,
            outputs=(hidden,),
            shard=Shard.ROW,
            bias=shape.out_bias,
        ),
        *scalars,
    )


def _feed_forward(config: ModelConfig, release: Release, shape: Shape) -> tuple[tuple[Module, ...], DenseMLP]:
    hidden, width = config.hidden_size, config.size("intermediate_size")
    facts = DenseMLP(intermediate_size=width, gated=shape.gated is not False)
    if shape.gated is False:
        return common.plain_mlp(hidden, width, bias=shape.mlp_bias, up=shape.up, down=shape.down), facts
    if shape.gated is None or release.has("transformers_glu_fusion"):
        return common.gated_mlp(hidden, width, bias=shape.mlp_bias), facts
    gate = Linear(
        name="mlp.gate_proj", inputs=hidden, outputs=(width,), shard=Shard.COLUMN, bias=shape.mlp_bias
    )
    return (gate, *common.plain_mlp(hidden, width, bias=shape.mlp_bias)), facts


def _frequencies(config: ModelConfig, shape: Shape) -> tuple[Placed, ...]:
    """inv_freq and original_inv_freq, fp32, half the rotated size each."""
    size = common.rotated_size(config, common.rope_parameters(config), config.head_dim) // 2
    return tuple(
        Placed(
            module=Tensor(name=f"rotary_emb.inv_freq.{i}", shape=(size,), dtype="float32", buffer=True),
            placement=Placement.EVERY,
        )
        for i in range(shape.frequencies)
    )
