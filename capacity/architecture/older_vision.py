"""Phi-3-vision and Molmo: CLIP-shaped towers whose sizes stand in vLLM's classes, not in the config.

Source: vllm/model_executor/models/phi3v.py (CLIP_VIT_LARGE_PATCH14_336_CONFIG, Phi3HDImageEmbedding), molmo.py
(VisionBackboneConfig, MolmoVisionBackbone); 0.26.0 and 0.33.0.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, dense_feed_forward, grouped_attention, plain_head_dim
from vllm_capacity.architecture.llama import llama_like
from vllm_capacity.architecture.modules import Architecture, LayerGroup, Linear, Module, Placed, Shard, Tensor
from vllm_capacity.architecture.vision import block, everywhere, linear, multimodal
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

CLIP_WIDTH, CLIP_MLP, CLIP_LAYERS, CLIP_POSITIONS, CLIP_PIXELS = 1024, 4096, 24, 577, 588
"""CLIP ViT-L/14 at 336 pixels: 24 x 24 patches of 14 x 14 x 3 and the class token."""
CLIP_HEADS = 16

MOLMO_ADDED_VOCABULARY = 128
"""ADDITIONAL_VOCAB_SIZE, molmo.py:91: embedded, but not in the head."""


def phi3_v(config: ModelConfig, release: Release) -> Architecture:
    """Phi3VForCausalLM: Llama's class behind CLIP, with a second embedding for prompts with images."""
    del release
    text = llama_like(config, name="LlamaForCausalLM", family="phi3")
    return multimodal(text, "Phi3VForCausalLM", _phi3_encoder(config), modalities=("image",), tp_data=False)


def _phi3_encoder(config: ModelConfig) -> tuple[Placed, ...]:
    processor = config.sub("img_processor")
    merged, hidden = 4 * processor.size("image_dim_out"), config.hidden_size
    layer = processor.get("layer_idx", -2)
    if type(layer) is not int or not -CLIP_LAYERS <= layer < CLIP_LAYERS:
        raise InputError(
            f"{config.name}: img_processor: 'layer_idx' must be a layer of CLIP, not {layer!r:.40}"
        )
    prefix = "vision_embed_tokens.img_processor.vision_model"
    modules: tuple[Module, ...] = (
        Tensor(name="vision_embed_tokens.glb_GN", shape=(1, 1, merged)),
        Tensor(name="vision_embed_tokens.sub_GN", shape=(1, 1, 1, merged)),
        Tensor(name=f"{prefix}.embeddings.class_embedding", shape=(CLIP_WIDTH,)),
        Tensor(name=f"{prefix}.embeddings.patch_embedding.weight", shape=(CLIP_WIDTH, CLIP_PIXELS)),
        Tensor(name=f"{prefix}.embeddings.position_embedding.weight", shape=(CLIP_POSITIONS, CLIP_WIDTH)),
        Tensor(
            name=f"{prefix}.embeddings.position_ids", shape=(1, CLIP_POSITIONS), dtype="int64", buffer=True
        ),
        *common.norm(f"{prefix}.pre_layrnorm", CLIP_WIDTH, bias=True),
        _whole("vision_embed_tokens.img_projection.0", merged, hidden),
        _whole("vision_embed_tokens.img_projection.2", hidden, hidden),
    )
    blocks = block(
        f"{prefix}.encoder.layers.0", CLIP_WIDTH, CLIP_MLP, qkv="self_attn.qkv_proj", out="self_attn.out_proj",
        norms=("layer_norm1", "layer_norm2"), heads=CLIP_HEADS,
    )  # fmt: skip
    count = CLIP_LAYERS + layer + 1 if layer < 0 else layer + 1
    embed = common.embedding(config.vocab_size, hidden, name="vision_embed_tokens.embed_tokens")
    return (*everywhere((embed,)), *everywhere(modules), *everywhere(blocks, count))


def _whole(name: str, inputs: int, outputs: int) -> Linear:
    return linear(name, inputs, outputs, Shard.REPLICATED, quantised=False)


def molmo(config: ModelConfig, release: Release) -> Architecture:
    """MolmoForCausalLM: an MLP half as wide as the config says; embedding, final norm and head on every stage."""
    del release
    if config.get("norm_after") or config.get("attention_layer_norm"):
        raise InputError(f"{config.name}: Molmo with norm_after or attention_layer_norm is not modelled")
    hidden, rows = config.hidden_size, config.size("embedding_size", config.vocab_size)
    mixer = grouped_attention(config, plain_head_dim(config))
    feed, feed_forward = dense_feed_forward(config, max(1, config.size("intermediate_size") // 2))
    group = LayerGroup(
        indices=tuple(range(config.num_hidden_layers)),
        modules=(
            *common.attention_modules(hidden, mixer, qkv_bias=config.boolean("qkv_bias", False)),
            *feed,
            *common.norm("input_layernorm", hidden),
            *common.norm("post_attention_layernorm", hidden),
        ),
        mixers=(mixer,),
        feed_forward=feed_forward,
    )
    tied = config.boolean("weight_tying", False)
    if tied:
        raise InputError(f"{config.name}: Molmo with weight_tying is not modelled")
    placed = common.every_stage_placement(
        rows + MOLMO_ADDED_VOCABULARY, hidden, tied=False, rope=(common.rope_cache(config, mixer.head_size),)
    )
    head = Placed(module=common.lm_head(rows, hidden), placement=placed[-1].placement)
    text = decoder(
        config,
        name="MolmoForCausalLM",
        family="molmo",
        layers=(group,),
        outside=(*placed[:-1], head),
        vocab_size=rows,
    )
    encoder = _molmo_encoder(config, hidden)
    return multimodal(text, "MolmoForCausalLM", encoder, modalities=("image",), tp_data=False)


def _molmo_encoder(config: ModelConfig, hidden: int) -> tuple[Placed, ...]:
    width, vit, block_0 = (
        CLIP_WIDTH,
        "vision_backbone.image_vit",
        "vision_backbone.image_vit.transformer.resblocks.0",
    )
    modules: tuple[Module, ...] = (
        Tensor(name="vision_backbone.pad_embed", shape=(2, 2 * width)),
        Tensor(name=f"{vit}.class_embedding", shape=(width,)),
        Tensor(name=f"{vit}.positional_embedding", shape=(CLIP_POSITIONS, width)),
        Tensor(name=f"{vit}.patch_embedding.weight", shape=(width, CLIP_PIXELS)),
        *common.norm(f"{vit}.pre_ln", width, bias=True),
        *_molmo_attention("vision_backbone.image_pooling_2d", 2 * width),
        *common.gated_mlp(
            width,
            config.size("intermediate_size") // 2,
            prefix="vision_backbone.image_projector",
            up="merged_linear",
        ),
    )
    # the projector ends in the language model's width
    *rest, down = modules
    assert isinstance(down, Linear)
    down = linear(down.name, down.inputs, hidden, Shard.ROW, bias=False)
    blocks: tuple[Module, ...] = (
        *_molmo_attention(f"{block_0}.attention", width),
        linear(f"{block_0}.feed_forward.w1", width, CLIP_MLP, Shard.COLUMN),
        linear(f"{block_0}.feed_forward.w2", CLIP_MLP, width, Shard.ROW),
        *common.norm(f"{block_0}.attention_norm", width, bias=True),
        *common.norm(f"{block_0}.ffn_norm", width, bias=True),
    )
    return (*everywhere((*rest, down)), *everywhere(blocks, CLIP_LAYERS - 1))


def _molmo_attention(prefix: str, inputs: int) -> tuple[Module, ...]:
    return (
        *(
            Linear(
                name=f"{prefix}.{name}",
                inputs=inputs,
                outputs=(CLIP_WIDTH,),
                shard=Shard.COLUMN,
                bias=True,
                heads=CLIP_HEADS,
            )
            for name in ("wq", "wk", "wv")
        ),
        linear(f"{prefix}.wo", CLIP_WIDTH, CLIP_WIDTH, Shard.ROW),
    )
