"""More vision encoders: Pixtral with Mistral 3's projector, Gemma 4's, MoonViT of Kimi K2.5, Qwen2-VL's.

Source: vllm/model_executor/models (0.26.0 and 0.33.0): pixtral.py (PixtralHFVisionModel) with mistral3.py, gemma4_mm.py
(the tower is Transformers' Gemma4VisionModel, its linears replaced by replicated ones), kimi_k25.py with
kimi_k25_vit.py, qwen2_vl.py.
"""

from __future__ import annotations

from dataclasses import replace

from vllm_capacity.architecture import common
from vllm_capacity.architecture.modules import Linear, Module, Placed, Shard, Tensor
from vllm_capacity.architecture.vision import block, everywhere, linear, vision_part
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig, SubConfig


def _whole(name: str, inputs: int, outputs: int, *, bias: bool = False, quantised: bool = True) -> Linear:
    """A linear that every rank holds in full."""
    return linear(name, inputs, outputs, Shard.REPLICATED, bias=bias, quantised=quantised)


def _square(vision: SubConfig, key: str, default: int) -> int:
    """The product of a pair such as `merge_kernel_size`."""
    pair = vision.get(key)
    if pair is None:
        return default * default
    if not (
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(type(v) is int and v > 0 for v in pair)
    ):
        raise InputError(f"{vision.model}: vision_config: {key!r} must be a pair of positive integers")
    return int(pair[0]) * int(pair[1])


def pixtral_vision(config: ModelConfig) -> tuple[Placed, ...]:
    """PixtralHFVisionModel and Mistral3MultiModalProjector (mistral3.py:92-170, pixtral.py)."""
    vision = vision_part(config)
    hidden, width = vision.size("hidden_size", 1024), vision.size("intermediate_size", 4096)
    patch, channels = vision.size("patch_size", 16), vision.size("num_channels", 3)
    heads = vision.size("num_attention_heads", 16)
    head = vision.size("head_dim", max(1, hidden // heads))
    merge, bias = config.root.get("spatial_merge_size"), bool(config.root.get("multimodal_projector_bias"))
    merged = hidden * (merge if type(merge) is int and merge > 0 else 2) ** 2
    prefix = "vision_tower.transformer.layers.0"
    return (
        *everywhere(
            (
                Tensor(name="vision_tower.patch_conv.weight", shape=(hidden, channels * patch * patch)),
                *common.norm("vision_tower.ln_pre", hidden),
            )
        ),
        *everywhere(
            (
                *common.norm(f"{prefix}.attention_norm", hidden),
                Linear(
                    name=f"{prefix}.attention.qkv_proj",
                    inputs=hidden,
                    outputs=(hidden,) * 3,
                    shard=Shard.COLUMN,
                    heads=heads,
                ),
                linear(f"{prefix}.attention.o_proj", hidden, hidden, Shard.ROW, bias=False),
                *common.gated_mlp(hidden, width, prefix=f"{prefix}.feed_forward"),
                *common.norm(f"{prefix}.ffn_norm", hidden),
            ),
            vision.size("num_hidden_layers", 24),
        ),
        *everywhere(
            (
                # PixtralRotaryEmbedding of Transformers: two fp32 tables of half a head
                *_frequencies("vision_tower.patch_positional_embedding", head // 2),
                *common.norm("multi_modal_projector.norm", hidden),
                _whole("multi_modal_projector.patch_merger.merging_layer", merged, hidden, quantised=False),
                linear("multi_modal_projector.linear_1", hidden, config.hidden_size, Shard.COLUMN, bias=bias),
                linear(
                    "multi_modal_projector.linear_2",
                    config.hidden_size,
                    config.hidden_size,
                    Shard.ROW,
                    bias=bias,
                ),
            )
        ),
    )


def _frequencies(prefix: str, size: int) -> tuple[Module, ...]:
    return tuple(
        Tensor(name=f"{prefix}.{name}", shape=(size,), dtype="float32", buffer=True)
        for name in ("inv_freq", "original_inv_freq")
    )


def gemma4_vision(config: ModelConfig) -> tuple[Placed, ...]:
    """Gemma4VisionModel and the embedder, whole on every rank (gemma4_mm.py:1045-1058, 0.26.0).

    Its linears are quantised only where the widths are multiples of 64 or the method does not mind; `use_clipped_linears`
    adds four scalars to each of a layer's seven linears.
    """
    vision = vision_part(config)
    hidden, width = vision.size("hidden_size", 768), vision.size("intermediate_size", 3072)
    heads, patch = vision.size("num_attention_heads", 12), vision.size("patch_size", 16)
    head = vision.size("head_dim", max(1, hidden // heads))
    inner, kv = heads * head, vision.size("num_key_value_heads", heads) * head
    method = str((config.quantization or {}).get("quant_method", ""))
    quantised = method in ("bitsandbytes", "torchao", "compressed-tensors") or not (hidden % 64 or width % 64)
    bias = bool(vision.get("attention_bias", False))
    prefix = "vision_tower.encoder.layers.0"
    norms = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
    linears = {
        "self_attn.q_proj": (hidden, inner), "self_attn.k_proj": (hidden, kv), "self_attn.v_proj": (hidden, kv),
        "self_attn.o_proj": (inner, hidden), "mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width),
        "mlp.down_proj": (width, hidden),
    }  # fmt: skip
    blocks: tuple[Module, ...] = (
        *(
            _whole(f"{prefix}.{name}.linear", *shape, bias=bias and "attn" in name, quantised=quantised)
            for name, shape in linears.items()
        ),
        *common.head_norms(head, prefix=f"{prefix}.self_attn"),
        *(module for name in norms for module in common.norm(f"{prefix}.{name}", hidden)),
    )
    if vision.get("use_clipped_linears", False):
        blocks += tuple(
            Tensor(name=f"{prefix}.{name}.{bound}", shape=(), buffer=True)
            for name in linears
            for bound in ("input_min", "input_max", "output_min", "output_max")
        )
    ends: tuple[Module, ...] = (
        Tensor(
            name="vision_tower.patch_embedder.position_embedding_table",
            shape=(2, vision.size("position_embedding_size", 10240), hidden),
        ),
        _whole("vision_tower.patch_embedder.input_proj", 3 * patch * patch, hidden, quantised=quantised),
        *_frequencies("vision_tower.encoder.rotary_emb", head // 4),
        # without weight: its ones are a plain tensor, as wide as the tower
        Tensor(name="embed_vision.embedding_pre_projection_norm.weight", shape=(hidden,), buffer=True),
        _whole("embed_vision.embedding_projection", hidden, config.hidden_size, quantised=quantised),
    )
    if vision.get("standardize", False):
        ends += tuple(
            Tensor(name=f"vision_tower.{name}", shape=(hidden,), buffer=True)
            for name in ("std_bias", "std_scale")
        )
    return (*everywhere(ends), *everywhere(blocks, vision.size("num_hidden_layers", 16)))


def moonvit(config: ModelConfig) -> tuple[Placed, ...]:
    """MoonViT3d and the patch merger's projector of Kimi K2.5; the projector is whole on every rank.

    compressed-tensors leaves both alone (`_maybe_ignore_quant_config`, kimi_k25.py:382-385, 0.26.0).
    """
    vision = vision_part(config)
    hidden, width = vision.size("vt_hidden_size", 1152), vision.size("vt_intermediate_size", 4304)
    patch, merged = vision.size("patch_size", 14), hidden * _square(vision, "merge_kernel_size", 2)
    shape = (vision.size("init_pos_emb_height", 64), vision.size("init_pos_emb_width", 64), hidden)
    time = vision.size("init_pos_emb_time", 4)
    quantised = (config.quantization or {}).get("quant_method") != "compressed-tensors"
    heads, prefix = vision.size("vt_num_attention_heads", 16), "vision_tower.encoder.blocks.0"
    blocks = moonvit_block(
        block(
            prefix, hidden, width, qkv="wqkv", out="wo", norms=("norm0", "norm1"), up="mlp.fc0", down="mlp.fc1",
            quantised=quantised, heads=heads,
        ),
        heads,
    )  # fmt: skip
    return (
        *everywhere(
            (
                Tensor(name="vision_tower.patch_embed.proj.weight", shape=(hidden, 3 * patch * patch)),
                Tensor(name="vision_tower.patch_embed.proj.bias", shape=(hidden,)),
                Tensor(name="vision_tower.patch_embed.pos_emb.weight", shape=shape),
                Tensor(
                    name="vision_tower.patch_embed.pos_emb.time_weight", shape=(time, 1, hidden), buffer=True
                ),
                *common.norm("vision_tower.encoder.final_layernorm", hidden, bias=True),
                *common.norm("mm_projector.pre_norm", hidden, bias=True),
                _whole("mm_projector.linear_1", merged, merged, bias=True, quantised=quantised),
                _whole("mm_projector.linear_2", merged, config.hidden_size, bias=True, quantised=quantised),
            )
        ),
        *everywhere(blocks, vision.size("vt_num_hidden_layers", 27)),
    )


def moonvit_block(modules: tuple[Module, ...], heads: int) -> tuple[Module, ...]:
    """MoonViT falls back to whole linears where tp does not divide its heads (`is_vit_use_data_parallel(num_heads)`,
    models/vision.py, asked in kimi_k25_vit.py: MoonViTEncoderLayer, 0.26.0 and 0.33.0).
    """
    return tuple(
        replace(module, whole_unless_divides=heads) if isinstance(module, Linear) else module
        for module in modules
    )


def qwen2_vision(config: ModelConfig) -> tuple[Placed, ...]:
    """Qwen2VisionTransformer (qwen2_vl.py:480-640): `embed_dim` wide, `mlp_ratio` in the MLP, `hidden_size` out."""
    vision = vision_part(config)
    hidden, out = vision.size("embed_dim", 1280), vision.size("hidden_size", config.hidden_size)
    patch, merged = vision.size("patch_size", 14), hidden * vision.size("spatial_merge_size", 2) ** 2
    pixels = vision.size("in_channels", 3) * vision.size("temporal_patch_size", 2) * patch * patch
    heads = vision.size("num_heads", 16)
    ratio = vision.get("mlp_ratio", 4)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < 1000:
        raise InputError(f"{config.name}: vision_config: 'mlp_ratio' must be a number above 0")
    blocks = block(
        "visual.blocks.0",
        hidden,
        int(hidden * ratio),
        qkv="attn.qkv",
        out="attn.proj",
        norms=("norm1", "norm2"),
        heads=heads,
    )
    return (
        *everywhere(
            (
                Tensor(name="visual.patch_embed.proj.weight", shape=(hidden, pixels)),
                Tensor(
                    name="visual.rotary_pos_emb.cos_sin_cache",
                    shape=(8192, max(1, hidden // heads) // 2),
                    buffer=True,
                ),
                *common.norm("visual.merger.ln_q", hidden, bias=True),
                linear("visual.merger.mlp.0", merged, merged, Shard.COLUMN),
                linear("visual.merger.mlp.2", merged, out, Shard.ROW),
            )
        ),
        *everywhere(blocks, vision.size("depth", 32)),
    )
