"""Qwen3-VL, Qwen3-VL-MoE, Qwen2-VL, Qwen2.5-VL, GLM-4.5V, Mistral 3, Gemma 4 and Kimi K2.5: their text families behind an
encoder.

Source: vllm/model_executor/models/qwen3_vl.py, qwen3_vl_moe.py, qwen2_5_vl.py, glm4_1v.py (0.26.0). Qwen3-VL
allocates one
[max_num_batched_tokens, hidden] buffer per deepstack level at construction (qwen3_vl.py:1756-1760).
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.deepseek import deepseek_v3
from vllm_capacity.architecture.encoders import gemma4_vision, moonvit, pixtral_vision, qwen2_vision
from vllm_capacity.architecture.gemma4 import gemma4
from vllm_capacity.architecture.glm4_moe import glm4_moe
from vllm_capacity.architecture.mistral import mistral
from vllm_capacity.architecture.modules import Architecture, Linear, Module, Placed, Shard, Tensor
from vllm_capacity.architecture.qwen2 import qwen2
from vllm_capacity.architecture.qwen3 import qwen3
from vllm_capacity.architecture.qwen3_moe import qwen3_moe
from vllm_capacity.architecture.vision import (
    everywhere,
    linear,
    multimodal,
    positions_once,
    qwen3_vision,
    vision_part,
)
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def qwen3_vl(config: ModelConfig, release: Release) -> Architecture:
    """Qwen3VLForConditionalGeneration."""
    return multimodal(
        positions_once(qwen3(config, release), config, release),
        "Qwen3VLForConditionalGeneration",
        qwen3_vision(config),
        buffers=_deepstack(config),
    )


def qwen3_vl_moe(config: ModelConfig, release: Release) -> Architecture:
    """Qwen3VLMoeForConditionalGeneration."""
    return multimodal(
        positions_once(qwen3_moe(config, release), config, release), "Qwen3VLMoeForConditionalGeneration",
        qwen3_vision(config), buffers=_deepstack(config),
    )  # fmt: skip


def qwen2_5_vl(config: ModelConfig, release: Release) -> Architecture:
    """Qwen2_5_VLForConditionalGeneration."""
    return multimodal(qwen2(config, release), "Qwen2_5_VLForConditionalGeneration", _qwen2_5_encoder(config))


def glm4v_moe(config: ModelConfig, release: Release) -> Architecture:
    """Glm4vMoeForConditionalGeneration."""
    return multimodal(glm4_moe(config, release), "Glm4vMoeForConditionalGeneration", _glm4v_encoder(config))


def qwen2_vl(config: ModelConfig, release: Release) -> Architecture:
    """Qwen2VLForConditionalGeneration."""
    return multimodal(qwen2(config, release), "Qwen2VLForConditionalGeneration", qwen2_vision(config))


def mistral3(config: ModelConfig, release: Release) -> Architecture:
    """Mistral3ForConditionalGeneration: Mistral Small 3.x, Devstral 2, Ministral 3.

    Mistral Small 4's text part has no class in vLLM: only Mistral's own format names one (MistralLarge3ForCausalLM).
    """
    if config.text_model_type == "mistral4":
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            "No model architectures are specified (text_config of model type 'mistral4'; vLLM runs this model from"
            " Mistral's own format, --config-format mistral)",
        )
    return multimodal(
        mistral(config, release), "Mistral3ForConditionalGeneration", pixtral_vision(config),
        modalities=("image",), tp_data=False,
    )  # fmt: skip


def gemma4_multimodal(config: ModelConfig, release: Release) -> Architecture:
    """Gemma4ForConditionalGeneration; per-layer embeddings of a whole batch are kept (gemma4_mm.py:1093-1104)."""
    if config.audio:
        raise InputError(
            f"{config.name}: Gemma 4's audio tower is not modelled; pass --hf-overrides '{{\"audio_config\": null}}' to plan"
            " without it, or ask an installed vLLM with `vllm-capacity dry-run`"
        )
    inputs = config.integer("hidden_size_per_layer_input", 0)
    shape = (config.num_hidden_layers, inputs)
    buffer = Tensor(name="per_layer_embeddings", shape=shape, buffer=True, per_token=True)
    return multimodal(
        gemma4(config, release), "Gemma4ForConditionalGeneration", gemma4_vision(config), tp_data=False,
        buffers=everywhere((buffer,)) if inputs else (),
    )  # fmt: skip


def kimi_k25(config: ModelConfig, release: Release) -> Architecture:
    """KimiK25ForConditionalGeneration: Kimi K2 behind MoonViT3d."""
    return multimodal(
        deepseek_v3(config, release), "KimiK25ForConditionalGeneration", moonvit(config),
        modalities=("vision_chunk",),
    )  # fmt: skip


def _deepstack(config: ModelConfig) -> tuple[Placed, ...]:
    levels = vision_part(config).get("deepstack_visual_indexes") or []
    buffer = Tensor(
        name="visual.deepstack_input_embeds", shape=(config.hidden_size,), buffer=True, per_token=True
    )
    return everywhere((buffer,), len(levels))


def _qwen2_5_encoder(config: ModelConfig) -> tuple[Placed, ...]:
    vision = vision_part(config)
    hidden, width = vision.size("hidden_size", 1280), vision.size("intermediate_size", 3420)
    patch, heads = vision.size("patch_size", 14), vision.size("num_heads", 16)
    pixels = vision.size("in_channels", 3) * vision.size("temporal_patch_size", 2) * patch * patch
    merged = hidden * vision.size("spatial_merge_size", 2) ** 2
    prefix = "visual.blocks.0"
    return (
        *everywhere(
            (
                Tensor(name="visual.patch_embed.proj.weight", shape=(hidden, pixels)),
                Tensor(
                    name="visual.rotary_pos_emb.cos_sin_cache",
                    shape=(8192, hidden // heads // 2),
                    buffer=True,
                ),
            )
        ),
        *everywhere(
            (
                *common.norm(f"{prefix}.norm1", hidden),
                *common.norm(f"{prefix}.norm2", hidden),
                Linear(
                    name=f"{prefix}.attn.qkv",
                    inputs=hidden,
                    outputs=(hidden,) * 3,
                    shard=Shard.COLUMN,
                    bias=True,
                    heads=heads,
                ),
                linear(f"{prefix}.attn.proj", hidden, hidden, Shard.ROW),
                *common.gated_mlp(hidden, width, prefix=f"{prefix}.mlp", bias=True),
            ),
            vision.size("depth", 32),
        ),
        *everywhere(
            (
                *common.norm("visual.merger.ln_q", hidden),
                linear("visual.merger.mlp.0", merged, merged, Shard.COLUMN),
                linear("visual.merger.mlp.2", merged, vision.size("out_hidden_size", 3584), Shard.ROW),
            )
        ),
    )


def _glm4v_encoder(config: ModelConfig) -> tuple[Placed, ...]:
    vision = vision_part(config)
    hidden, width, out = (
        vision.size("hidden_size", 1536),
        vision.size("out_hidden_size", 4096),
        vision.size("out_hidden_size", 4096),
    )
    patch, merge = vision.size("patch_size", 14), vision.size("spatial_merge_size", 2)
    pixels = vision.size("in_channels", 3) * vision.size("temporal_patch_size", 2) * patch * patch
    positions = (vision.size("image_size", 336) // patch) ** 2
    heads = vision.size("num_heads", 12)
    bias = bool(vision.get("attention_bias", False))
    prefix = "visual.blocks.0"
    modules: tuple[Module, ...] = (
        Tensor(name="visual.patch_embed.proj.weight", shape=(hidden, pixels)),
        Tensor(name="visual.patch_embed.proj.bias", shape=(hidden,)),
        Tensor(name="visual.embeddings.position_embedding.weight", shape=(positions, hidden)),
        Tensor(name="visual.embeddings.position_ids", shape=(1, positions), dtype="int64", buffer=True),
        Tensor(name="visual.rotary_pos_emb.cos_sin_cache", shape=(8192, hidden // heads // 2), buffer=True),
        *common.norm("visual.post_conv_layernorm", hidden),
        *common.norm("visual.post_layernorm", hidden),
        Tensor(name="visual.downsample.weight", shape=(out, hidden, merge, merge)),
        Tensor(name="visual.downsample.bias", shape=(out,)),
        linear("visual.merger.proj", out, out, Shard.COLUMN, bias=False),
        *common.norm("visual.merger.post_projection_norm", out, bias=True),
        *common.gated_mlp(out, vision.size("intermediate_size", 10944), prefix="visual.merger"),
    )
    blocks: tuple[Module, ...] = (
        *common.norm(f"{prefix}.norm1", hidden),
        *common.norm(f"{prefix}.norm2", hidden),
        Linear(
            name=f"{prefix}.attn.qkv",
            inputs=hidden,
            outputs=(hidden,) * 3,
            shard=Shard.COLUMN,
            bias=bias,
            heads=heads,
        ),
        linear(f"{prefix}.attn.proj", hidden, hidden, Shard.ROW, bias=False),
        *common.gated_mlp(hidden, width, prefix=f"{prefix}.mlp"),
    )
    return (*everywhere(modules), *everywhere(blocks, vision.size("depth", 24)))
