"""Step-3: multi-matrix factorised attention with one KV head, experts beside a shared one, a vision tower.

Source: vllm/model_executor/models/step3_text.py, step3_vl.py (0.26.0 and 0.33.0). The down projection of q, k and v is whole
on every rank; `moe_layers_enum` is a comma-separated string; positions are `max_position_embedding`.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, dense_feed_forward, moe_feed_forward
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    FeedForward,
    LayerGroup,
    Linear,
    Module,
    Placed,
    Shard,
    Tensor,
)
from vllm_capacity.architecture.vision import block, everywhere, multimodal, vision_part
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def step3_text(config: ModelConfig, release: Release) -> Architecture:
    """Step3TextForCausalLM."""
    del release
    hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    size = config.size("head_dim", 256)
    query = config.integer("share_q_dim", 0) or size
    groups = config.size("num_attention_groups", 1)
    if groups != 1:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE, f"Step3TextAttention num_kv_heads must be 1, but got {groups}."
        )
    mixer = Attention(num_heads=heads, num_kv_heads=1, head_size=size, head_size_v=size)
    sparse = _sparse_layers(config)
    attention: tuple[Module, ...] = (
        Linear(name="self_attn.qkv_proj", inputs=hidden, outputs=(query, size, size), shard=Shard.REPLICATED),
        Linear(name="self_attn.o_proj", inputs=heads * size, outputs=(hidden,), shard=Shard.ROW),
        *common.norm("self_attn.inter_norm", query),
        Linear(name="self_attn.wq", inputs=query, outputs=(heads * size,), shard=Shard.COLUMN),
        *common.attention_scales(),
    )

    def build(is_sparse: bool, indices: tuple[int, ...]) -> LayerGroup:
        modules: tuple[Module, ...]
        feed_forward: FeedForward
        if is_sparse:
            modules, feed_forward = moe_feed_forward(
                config,
                num_experts=config.size("moe_num_experts"),
                top_k=config.size("moe_top_k"),
                intermediate_size=config.size("moe_intermediate_size"),
                shared=config.size("share_expert_dim"),
                prefix="moe",
                shared_name="share_expert",
            )
        else:
            modules, feed_forward = dense_feed_forward(config)
        norms = (*common.norm("input_layernorm", hidden), *common.norm("post_attention_layernorm", hidden))
        return LayerGroup(
            indices=indices,
            modules=(*attention, *modules, *norms),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    tied = common.tied(config)
    positions = config.size("max_position_embedding", config.size("max_position_embeddings", 65536))
    return decoder(
        config,
        name="Step3TextForCausalLM",
        family="step3",
        tied=tied,
        # step3_text.py:321-323 asks for the key on every stage but the first
        pp_error=(
            "AttributeError: 'Step3TextConfig' object has no attribute 'tie_word_embeddings'"
            if config.tie_word_embeddings is None
            else ""
        ),
        layers=common.group_layers([i in sparse for i in range(layers)], build),
        outside=common.llama_placement(
            config.vocab_size,
            hidden,
            tied=tied,
            head_allocated_first=False,
            rope=(common.rope_cache(config, size, max_position=positions),),
        ),
    )


def _sparse_layers(config: ModelConfig) -> frozenset[int]:
    """Layers with experts: those of `moe_layers_enum`, else all but the first (step3_text.py:200-206)."""
    text = config.get("moe_layers_enum")
    if text is None:
        return frozenset(range(1, config.num_hidden_layers))
    try:
        return frozenset(int(part) for part in text.strip().split(","))
    except (AttributeError, ValueError):
        raise InputError(
            f"{config.name}: config key 'moe_layers_enum' must be numbers with commas between, not {text!r:.60}"
        ) from None


def step3_vl(config: ModelConfig, release: Release) -> Architecture:
    """Step3VLForConditionalGeneration."""
    return multimodal(
        step3_text(config, release),
        "Step3VLForConditionalGeneration",
        _encoder(config),
        modalities=("image",),
    )


def _encoder(config: ModelConfig) -> tuple[Placed, ...]:
    vision = vision_part(config)
    hidden, out = vision.size("hidden_size", 1792), vision.size("output_hidden_size", 4096)
    patch, channels = vision.size("patch_size", 14), vision.size("num_channels", 3)
    positions = (vision.size("image_size", 728) // patch) ** 2 + 1
    bias = bool(config.root.get("projector_bias", True))
    prefix = "vision_model.embeddings"
    modules: tuple[Module, ...] = (
        Tensor(name=f"{prefix}.class_embedding", shape=(1, hidden)),
        Tensor(name=f"{prefix}.patch_embedding.weight", shape=(hidden, channels * patch * patch)),
        Tensor(name=f"{prefix}.patch_embedding.bias", shape=(hidden,)),
        Tensor(name=f"{prefix}.position_embedding.weight", shape=(positions, hidden)),
        Tensor(name=f"{prefix}.position_ids", shape=(1, positions), dtype="int64", buffer=True),
        Tensor(name="vit_downsampler.weight", shape=(out, hidden, 2, 2)),
        Tensor(name="vit_downsampler.bias", shape=(out,)),
        Tensor(name="vit_downsampler2.weight", shape=(2 * out, out, 3, 3)),
        Tensor(name="vit_downsampler2.bias", shape=(2 * out,)),
        Linear(
            name="vit_large_projector", inputs=2 * out, outputs=(config.hidden_size,), shard=Shard.REPLICATED,
            bias=bias, quantised=False,
        ),
    )  # fmt: skip
    blocks = block(
        "vision_model.transformer.layers.0", hidden, vision.size("intermediate_size", 3072),
        qkv="self_attn.qkv_proj", out="self_attn.out_proj", norms=("layer_norm1", "layer_norm2"),
        heads=vision.size("num_attention_heads", 16),
    )  # fmt: skip
    return (*everywhere(modules), *everywhere(blocks, vision.size("num_hidden_layers", 63)))
