"""Vision encoders and projectors: modules outside the language model, on every pipeline stage.

Source: vllm/model_executor/models (0.26.0): mllama4.py, qwen3_vl.py, qwen2_5_vl.py, siglip.py with
gemma3_mm.py, pixtral.py with
mistral3.py. With `--mm-encoder-tp-mode weights` (the default) the linears are divided by tp; norms, patch and
position
embeddings are whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vllm_capacity.architecture import common
from vllm_capacity.architecture.modules import Architecture, Linear, Module, Placed, Placement, Shard, Tensor
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.config_defaults import class_defaults, fill
from vllm_capacity.inputs.model_config import ModelConfig, SubConfig
from vllm_capacity.releases.release import Release


def everywhere(modules: Iterable[Module], count: int = 1) -> tuple[Placed, ...]:
    """Modules on every stage, `count` copies of each."""
    if count == 0:
        return ()
    return tuple(Placed(module=module, placement=Placement.EVERY, count=count) for module in modules)


def linear(
    name: str, inputs: int, outputs: int, shard: Shard, *, bias: bool = True, quantised: bool = True
) -> Linear:
    """One linear of an encoder."""
    return Linear(name=name, inputs=inputs, outputs=(outputs,), shard=shard, bias=bias, quantised=quantised)


def block(
    prefix: str,
    hidden: int,
    width: int,
    *,
    qkv: str,
    out: str,
    norms: tuple[str, str],
    heads: int,
    up: str = "mlp.fc1",
    down: str = "mlp.fc2",
    quantised: bool = True,
) -> tuple[Module, ...]:
    """A transformer block with LayerNorms, biases and an MLP without gate.

    Every class divides its heads: `divide(num_heads, tp_size)` in qwen2_vl.py:297, siglip.py:399, clip.py:397,
    `assert` in mllama4.py:255, whisper.py:161, step3_vl.py:314, idefics2_vision_model.py:146 (0.26.0).
    """
    return (
        Linear(
            name=f"{prefix}.{qkv}",
            inputs=hidden,
            outputs=(hidden,) * 3,
            shard=Shard.COLUMN,
            bias=True,
            quantised=quantised,
            heads=heads,
        ),
        linear(f"{prefix}.{out}", hidden, hidden, Shard.ROW, quantised=quantised),
        linear(f"{prefix}.{up}", hidden, width, Shard.COLUMN, quantised=quantised),
        linear(f"{prefix}.{down}", width, hidden, Shard.ROW, quantised=quantised),
        *(module for name in norms for module in common.norm(f"{prefix}.{name}", hidden, bias=True)),
    )


def multimodal(
    architecture: Architecture,
    name: str,
    encoder: tuple[Placed, ...],
    *,
    modalities: tuple[str, ...] = ("image", "video"),
    tp_data: bool = True,
    buffers: tuple[Placed, ...] = (),
) -> Architecture:
    """A language model behind an encoder.

    `modalities` are those of the class's `_mark_tower_model`, `tp_data` its `supports_encoder_tp_data`; `buffers` are
    built whether or not the encoder is.
    """
    tower = tuple(replace(placed, modalities=modalities) for placed in encoder)
    return replace(
        architecture,
        name=name,
        outside=(*tower, *buffers, *architecture.outside),
        is_multimodal=True,
        encoder_tp_data=tp_data,
    )


def positions_once(text: Architecture, config: ModelConfig, release: Release) -> Architecture:
    """The text model of Qwen3-VL and Qwen3.5, whose M-RoPE cache has one row a position where the release builds it so
    (`mrope_positions_factor`, qwen3_vl.py, asked by qwen3_5.py and qwen3_vl_moe.py too; 0.33.0). Video pruning, which keeps
    four, is not modelled.
    """
    if not release.has("qwen3_mrope_positions_once") or "mrope_section" not in common.rope_parameters(config):
        return text

    def shorter(placed: Placed) -> Placed:
        module = placed.module
        if not isinstance(module, Tensor) or not module.name.endswith("rotary_emb.cos_sin_cache"):
            return placed
        rows, size = module.shape
        return replace(placed, module=replace(module, shape=(rows // common.M_ROPE_FACTOR, size)))

    return replace(text, outside=tuple(shorter(placed) for placed in text.outside))


def vision_part(config: ModelConfig) -> SubConfig:
    """The vision part with its class's defaults; RefusedError where neither the file nor the class has one."""
    given = config.vision or {}
    kind = given.get("model_type") or class_defaults(config.model_type).parts.get("vision_config", "")
    values = fill(given, class_defaults(str(kind)))
    if not values:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            f"AttributeError: the config of model type {config.model_type!r} has no attribute 'vision_config', which"
            f" {config.architectures[0] if config.architectures else 'the class'} reads; name the text model's own"
            " class in 'architectures' instead",
        )
    return SubConfig(config.name, "vision_config", values)


def llama4_vision(config: ModelConfig) -> tuple[Placed, ...]:
    """Llama4VisionModel and its projector, never quantised (mllama4.py:769, :775 of 0.26.0).

    The rope cache is complex64 [patches + 1, 1, head size / 2], here as fp32 pairs.
    """
    vision = vision_part(config)
    hidden, width, count = (
        vision.size("hidden_size", 768),
        vision.size("intermediate_size", 5632),
        vision.size("num_hidden_layers", 34),
    )
    patch, channels = vision.size("patch_size", 14), vision.size("num_channels", 3)
    patches = (vision.size("image_size", 448) // patch) ** 2 + 1
    heads = vision.size("num_attention_heads", 16)
    inner, outer = vision.size("projector_input_dim", 4096), vision.size("projector_output_dim", 4096)
    prefix = "vision_model"
    return (
        *everywhere(
            (
                Tensor(name=f"{prefix}.class_embedding", shape=(hidden,)),
                Tensor(name=f"{prefix}.positional_embedding_vlm", shape=(patches, hidden)),
                linear(
                    f"{prefix}.patch_embedding.linear",
                    channels * patch * patch,
                    hidden,
                    Shard.COLUMN,
                    bias=False,
                    quantised=False,
                ),
                *common.norm(f"{prefix}.layernorm_pre", hidden, bias=True),
                *common.norm(f"{prefix}.layernorm_post", hidden, bias=True),
                Tensor(
                    name=f"{prefix}.rotary_emb.cos_sin_cache",
                    shape=(patches, hidden // heads),
                    dtype="float32",
                    buffer=True,
                ),
            )
        ),
        *everywhere(
            block(
                f"{prefix}.layers.0",
                hidden,
                width,
                qkv="self_attn.qkv_proj",
                out="self_attn.o_proj",
                norms=("input_layernorm", "post_attention_layernorm"),
                heads=heads,
                quantised=False,
            ),
            count,
        ),
        *everywhere(
            (
                linear(
                    f"{prefix}.vision_adapter.mlp.fc1",
                    vision.size("intermediate_size", 5632),
                    inner,
                    Shard.COLUMN,
                    bias=False,
                    quantised=False,
                ),
                linear(
                    f"{prefix}.vision_adapter.mlp.fc2", inner, outer, Shard.ROW, bias=False, quantised=False
                ),
                linear(
                    "multi_modal_projector.linear_1",
                    vision.size("vision_output_dim", 7680),
                    config.hidden_size,
                    Shard.COLUMN,
                    bias=False,
                    quantised=False,
                ),
            )
        ),
    )


def qwen3_vision(config: ModelConfig) -> tuple[Placed, ...]:
    """Qwen3_VisionTransformer (Qwen3-VL, Qwen3.5): a merger, and one more per entry of
    `deepstack_visual_indexes`.
    """
    vision = vision_part(config)
    hidden, width, count = (
        vision.size("hidden_size", 1152),
        vision.size("intermediate_size", 4304),
        vision.size("depth", 27),
    )
    patch, out = vision.size("patch_size", 16), vision.size("out_hidden_size", 3584)
    merged = hidden * vision.size("spatial_merge_size", 2) ** 2
    deep = vision.get("deepstack_visual_indexes") or []
    if not isinstance(deep, (list, tuple)):
        raise InputError(f"{config.name}: vision_config: 'deepstack_visual_indexes' must be a list")
    pixels = vision.size("in_channels", 3) * vision.size("temporal_patch_size", 2) * patch * patch
    heads = vision.size("num_heads", 16)

    def merger(prefix: str, norm: int) -> tuple[Module, ...]:
        return (
            *common.norm(f"{prefix}.norm", norm, bias=True),
            linear(f"{prefix}.linear_fc1", merged, merged, Shard.COLUMN),
            linear(f"{prefix}.linear_fc2", merged, out, Shard.ROW),
        )

    return (
        *everywhere(
            (
                Tensor(name="visual.patch_embed.proj.weight", shape=(hidden, pixels)),
                Tensor(name="visual.patch_embed.proj.bias", shape=(hidden,)),
                Tensor(
                    name="visual.pos_embed.weight",
                    shape=(vision.size("num_position_embeddings", 2304), hidden),
                ),
                Tensor(
                    name="visual.rotary_pos_emb.cos_sin_cache",
                    shape=(8192, hidden // heads // 2),
                    buffer=True,
                ),
                *merger("visual.merger", hidden),
            )
        ),
        *everywhere(merger("visual.deepstack_merger_list.0", merged), len(deep)),
        *everywhere(
            block(
                "visual.blocks.0",
                hidden,
                width,
                qkv="attn.qkv",
                out="attn.proj",
                norms=("norm1", "norm2"),
                heads=heads,
                up="mlp.linear_fc1",
                down="mlp.linear_fc2",
            ),
            count,
        ),
    )


def siglip_vision(config: ModelConfig) -> tuple[Placed, ...]:
    """Gemma 3's SigLIP tower and projector; the head of the tower is not built."""
    vision = vision_part(config)
    hidden, width, count = (
        vision.size("hidden_size", 1152),
        vision.size("intermediate_size", 4304),
        vision.size("num_hidden_layers", 27),
    )
    patch = vision.size("patch_size", 14)
    patches = (vision.size("image_size", 896) // patch) ** 2
    prefix = "vision_tower.vision_model"
    pixels = vision.size("num_channels", 3) * patch * patch
    return (
        *everywhere(
            (
                Tensor(name=f"{prefix}.embeddings.patch_embedding.weight", shape=(hidden, pixels)),
                Tensor(name=f"{prefix}.embeddings.patch_embedding.bias", shape=(hidden,)),
                Tensor(name=f"{prefix}.embeddings.position_embedding.weight", shape=(patches, hidden)),
                Tensor(
                    name=f"{prefix}.embeddings.position_ids", shape=(1, patches), dtype="int64", buffer=True
                ),
                *common.norm(f"{prefix}.post_layernorm", hidden, bias=True),
                Tensor(
                    name="multi_modal_projector.mm_input_projection_weight",
                    shape=(hidden, config.hidden_size),
                ),
                *common.norm("multi_modal_projector.mm_soft_emb_norm", hidden),
            )
        ),
        *everywhere(
            block(
                f"{prefix}.encoder.layers.0",
                hidden,
                width,
                qkv="self_attn.qkv_proj",
                out="self_attn.out_proj",
                norms=("layer_norm1", "layer_norm2"),
                heads=vision.size("num_attention_heads", 16),
            ),
            count,
        ),
    )
