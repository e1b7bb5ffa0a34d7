"""Kimi K3: Kimi-Linear's plan with fused projections, a gated latent attention, experts on a latent, MoonViT.

Source: vllm/models/kimi_k3/nvidia/model.py, kda.py, mla.py and model_executor/models/kimi_k25_vit.py (0.33.0). Embedding on
the first and head on the last pipeline stage, never tied; latent attention without rope.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, dense_feed_forward, moe_feed_forward
from vllm_capacity.architecture.encoders import moonvit_block
from vllm_capacity.architecture.mla import mla_mixer
from vllm_capacity.architecture.modules import (
    Architecture,
    FeedForward,
    LayerGroup,
    Linear,
    Mixer,
    Module,
    MultiHeadLatentAttention,
    Placed,
    Placement,
    Shard,
    StateSpace,
    StateSpaceKind,
    Tensor,
)
from vllm_capacity.architecture.vision import everywhere, linear, multimodal, vision_part
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def kimi_k3(config: ModelConfig, release: Release) -> Architecture:
    """KimiK3ForConditionalGeneration."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    linear = config.sub("linear_attn_config")
    listed = linear.get("kda_layers", [])
    if not isinstance(listed, (list, tuple)) or not all(type(i) is int for i in listed):
        raise InputError(f"{config.name}: linear_attn_config: 'kda_layers' must be a list of integers")
    heads, head = linear.size("num_heads"), linear.size("head_dim")
    delta = StateSpace(
        kind=StateSpaceKind.KIMI_DELTA, conv_kernel=linear.size("short_conv_kernel_size"), num_heads=heads,
        head_dim=head, num_key_heads=heads, num_value_heads=heads, key_head_dim=head, value_head_dim=head,
        ssm_dtype="float32",
    )  # fmt: skip
    latent = mla_mixer(config)
    if latent.q_lora_rank is None or not config.boolean("mla_use_output_gate", False):
        raise InputError(f"{config.name}: Kimi K3 without q_lora_rank or mla_use_output_gate is not modelled")
    first, step = config.integer("first_k_dense_replace", 0), config.size("moe_layer_freq", 1)

    def build(kind: tuple[bool, bool], indices: tuple[int, ...]) -> LayerGroup:
        is_delta, sparse = kind
        mixer: Mixer = delta if is_delta else latent
        feed: tuple[Module, ...]
        feed_forward: FeedForward
        feed, feed_forward = _experts(config) if sparse else dense_feed_forward(config)
        return LayerGroup(
            indices=indices,
            modules=(
                *(_delta(hidden, delta) if is_delta else _latent(hidden, latent, release)),
                *feed,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
                *_residual_mixing("self_attention", hidden),
                *_residual_mixing("mlp", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    kinds = [(i + 1 in listed, i >= first and i % step == 0) for i in range(layers)]
    last = tuple(Placed(module=m, placement=Placement.LAST) for m in _residual_mixing("output_attn", hidden))
    text = decoder(
        config,
        name="KimiLinearForCausalLM",
        family="kimi_k3",
        layers=common.group_layers(kinds, build),
        outside=(
            *common.llama_placement(config.vocab_size, hidden, tied=False, head_allocated_first=False),
            *last,
        ),
    )
    return multimodal(text, "KimiK3ForConditionalGeneration", _encoder(config), modalities=("image",))


def _residual_mixing(name: str, hidden: int) -> tuple[Module, ...]:
    """A norm and a projection to one weight per block of layers (attn_res_block_size)."""
    return (
        *common.norm(f"{name}_res_norm", hidden),
        Linear(name=f"{name}_res_proj", inputs=hidden, outputs=(1,), shard=Shard.REPLICATED, quantised=False),
    )


def _delta(hidden: int, mixer: StateSpace) -> tuple[Module, ...]:
    """KimiK3DeltaAttention: q, k, v, gate, decay and beta in one projection; decode keeps fp32 copies of its own."""
    width, head, heads = mixer.num_heads * mixer.head_dim, mixer.head_dim, mixer.num_heads
    prefix = "self_attn"
    return (
        Tensor(name=f"{prefix}.dt_bias", shape=(width,), shard_dim=0, dtype="float32"),
        Tensor(name=f"{prefix}.A_log", shape=(heads,), shard_dim=0, dtype="float32"),
        # the decay's low-rank half is whole on every rank
        Linear(
            name=f"{prefix}.in_proj_qkvgfab", inputs=hidden, outputs=(width, width, width, width, head, heads),
            shard=Shard.COLUMN, num_groups=1, grouped=(4,), pad_rows_to=16,
        ),
        Linear(name=f"{prefix}.f_b_proj", inputs=head, outputs=(width,), shard=Shard.COLUMN),
        Linear(
            name=f"{prefix}.conv1d", inputs=mixer.conv_kernel, outputs=(width, width, width), shard=Shard.COLUMN,
            quantised=False, dtype="float32",
        ),
        *common.norm(f"{prefix}.o_norm", head),
        Linear(name=f"{prefix}.o_proj", inputs=width, outputs=(hidden,), shard=Shard.ROW),
        Tensor(
            name=f"{prefix}.decode_conv1d_weight", shape=(3, mixer.conv_kernel, width), shard_dim=2, dtype="float32",
            buffer=True,
        ),
        Tensor(name=f"{prefix}.decode_norm_weight", shape=(head,), dtype="float32", buffer=True),
    )  # fmt: skip


def _latent(hidden: int, mixer: MultiHeadLatentAttention, release: Release) -> tuple[Module, ...]:
    """Latent attention with an output gate of one value per head and dimension, fused with the down projections."""
    heads, rank, rope = mixer.num_heads, mixer.kv_lora_rank, mixer.qk_rope_head_dim
    query = mixer.q_lora_rank or 0
    values = heads * mixer.v_head_dim
    prefix = "self_attn"
    return (
        Linear(
            name=f"{prefix}.fused_qkv_a_g_proj", inputs=hidden, outputs=(query, rank + rope, values),
            shard=Shard.COLUMN, num_groups=1, grouped=(0, 1),
        ),
        *common.norm(f"{prefix}.q_a_layernorm", query),
        Linear(
            name=f"{prefix}.q_b_proj", inputs=query, outputs=(heads * (mixer.qk_nope_head_dim + rope),),
            shard=Shard.COLUMN,
        ),
        *common.norm(f"{prefix}.kv_a_layernorm", rank),
        Linear(
            name=f"{prefix}.kv_b_proj", inputs=rank, outputs=(heads * (mixer.qk_nope_head_dim + mixer.v_head_dim),),
            shard=Shard.COLUMN,
        ),
        Linear(name=f"{prefix}.o_proj", inputs=values, outputs=(hidden,), shard=Shard.ROW),
        *common.attention_scales(prefix),
        Tensor(name=f"{prefix}.attn._one_scale", shape=(1,), dtype="float32", buffer=True),
        *common.unmoved_scales(release, prefix),
    )  # fmt: skip


def _experts(config: ModelConfig) -> tuple[tuple[Module, ...], FeedForward]:
    """Router and shared experts on the hidden states, routed experts on a latent of `routed_expert_hidden_size`."""
    hidden, prefix = config.hidden_size, "block_sparse_moe"
    latent, width = config.size("routed_expert_hidden_size", hidden), config.size("moe_intermediate_size")
    routed, feed_forward = moe_feed_forward(
        config, num_experts=config.size("num_experts"), top_k=config.size("num_experts_per_token"),
        intermediate_size=width, prefix=prefix, hidden_size=latent,
    )  # fmt: skip
    count = config.size("num_experts")
    modules = (
        *common.router(hidden, count, name=f"{prefix}.gate", correction_bias=f"{prefix}.gate.e_score_correction_bias"),
        *common.gated_mlp(
            hidden, config.integer("num_shared_experts", 0) * width, prefix=f"{prefix}.shared_experts",
            whole_if_sequence_parallel=True,
        ),
        *(module for module in routed if "gate" not in module.name),
    )  # fmt: skip
    if latent != hidden:
        modules += (
            Linear(
                name=f"{prefix}.routed_expert_down_proj",
                inputs=hidden,
                outputs=(latent,),
                shard=Shard.REPLICATED,
            ),
            Linear(
                name=f"{prefix}.routed_expert_up_proj",
                inputs=latent,
                outputs=(hidden,),
                shard=Shard.REPLICATED,
            ),
        )
        if config.boolean("latent_moe_use_norm", False):
            modules += common.norm(f"{prefix}.routed_expert_norm", latent)
    return modules, feed_forward


def _encoder(config: ModelConfig) -> tuple[Placed, ...]:
    """MoonViT3d with RMSNorms and without biases, queries of `qkv_hidden_size`; the projector ends in a norm."""
    vision = vision_part(config)
    expected = {
        "norm_type": "rmsnorm", "linear_bias": False, "attn_bias": False, "patch_embed_proj_bias": False,
        "mlp_type": "mlp2", "mm_projector_type": "patchmergerv2",
    }  # fmt: skip
    for key, value in expected.items():
        if vision.get(key, value) != value:
            raise InputError(
                f"{config.name}: vision_config: {key!r} other than {value!r} is not modelled for Kimi K3"
            )
    hidden, width = vision.size("vt_hidden_size", 1024), vision.size("vt_intermediate_size", 4096)
    inner, patch = vision.size("qkv_hidden_size", hidden), vision.size("patch_size", 14)
    merge = vision.get("merge_kernel_size", [2, 2])
    if not (
        isinstance(merge, (list, tuple)) and len(merge) == 2 and all(type(v) is int and v > 0 for v in merge)
    ):
        raise InputError(
            f"{config.name}: vision_config: 'merge_kernel_size' must be a pair of positive integers"
        )
    merged, quantised = (
        hidden * merge[0] * merge[1],
        (config.quantization or {}).get("quant_method") != "compressed-tensors",
    )
    rows = (vision.size("init_pos_emb_height", 64), vision.size("init_pos_emb_width", 64), hidden)
    tower, block, heads = (
        "vision_tower",
        "vision_tower.encoder.blocks.0",
        vision.size("vt_num_attention_heads", 16),
    )

    def part(name: str, inputs: int, outputs: tuple[int, ...], shard: Shard) -> Linear:
        return Linear(name=name, inputs=inputs, outputs=outputs, shard=shard, quantised=quantised)

    blocks: tuple[Module, ...] = (
        *common.norm(f"{block}.norm0", hidden),
        *common.norm(f"{block}.norm1", hidden),
        part(f"{block}.mlp.fc0", hidden, (width,), Shard.COLUMN),
        part(f"{block}.mlp.fc1", width, (hidden,), Shard.ROW),
        part(f"{block}.wqkv", hidden, (inner, inner, inner), Shard.COLUMN),
        part(f"{block}.wo", inner, (hidden,), Shard.ROW),
    )
    ends: tuple[Module, ...] = (
        Tensor(name=f"{tower}.patch_embed.proj.weight", shape=(hidden, 3 * patch * patch)),
        Tensor(name=f"{tower}.patch_embed.pos_emb.weight", shape=rows),
        Tensor(
            name=f"{tower}.patch_embed.pos_emb.time_weight", shape=(vision.size("init_pos_emb_time", 4), 1, hidden),
            buffer=True,
        ),
        *common.norm(f"{tower}.encoder.final_layernorm", hidden),
        linear("mm_projector.linear_1", merged, merged, Shard.REPLICATED, bias=False, quantised=quantised),
        linear("mm_projector.linear_2", merged, config.hidden_size, Shard.REPLICATED, bias=False, quantised=quantised),
        *common.norm("mm_projector.post_norm", config.hidden_size),
    )  # fmt: skip
    return (
        *everywhere(ends),
        *everywhere(moonvit_block(blocks, heads), vision.size("vt_num_hidden_layers", 27)),
    )
